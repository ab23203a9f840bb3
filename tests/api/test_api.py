"""The public API: what it lists, what it costs, and tables of other libraries in and out."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

import ping_llm
from ping_llm.interchange import like, to_arrow
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=256)
SRC, OTHER, DST = "192.0.2.1", "192.0.2.9", "198.51.100.7"
LIBRARIES = {
    "pandas": lambda columns: pandas.DataFrame(columns, index=range(10, 10 + len(columns["src_addr"]))),
    "polars": polars.DataFrame,
    "pyarrow": pa.table,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ping_llm.Model:
    folder = tmp_path_factory.mktemp("model")
    return ping_llm.load(export.write(CONFIG, random_tensors(CONFIG, scale=3.0), {}, folder))


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_public_name_is_there():
    for name in ping_llm.__all__:
        assert getattr(ping_llm, name) is not None
    assert dir(ping_llm) == sorted(ping_llm.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = ping_llm.nothing


def test_importing_imports_nothing_heavy():
    heavy = "{'jax', 'numba', 'numpy', 'pyarrow', 'duckdb', 'grain'}"
    assert run_python(f"import sys, ping_llm; print({heavy} & set(sys.modules))") == "set()\n"
    # What only handles data imports neither JAX nor, to read a table in memory, Arrow's datasets.
    code = (
        "import sys, ping_llm, pyarrow as pa\n"
        "table = pa.table({'event_time': [0, 1], 'src_addr': ['192.0.2.1'] * 2,"
        " 'dst_addr': ['192.0.2.2'] * 2, 'rtt': [1.0, -1.0]})\n"
        "assert len(ping_llm.read(table)) == 2\n"
        "print({'jax', 'pyarrow.dataset', 'duckdb'} & set(sys.modules))"
    )
    assert run_python(code) == "set()\n"


def test_functions_stay_functions_beside_packages_of_the_same_name():
    code = (
        "import ping_llm, ping_llm.ingest.run, ping_llm.train.settings\n"
        "from ping_llm.evaluate import metrics\n"
        "from ping_llm import fit\n"
        "print([type(x).__name__ for x in (ping_llm.ingest, ping_llm.train, ping_llm.evaluate, fit)])"
    )
    assert run_python(code) == f"{['function'] * 4}\n"


def test_the_page_is_made_from_the_docstrings():
    path = Path(__file__).parents[2] / "scripts" / "api_docs.py"
    spec = importlib.util.spec_from_file_location("api_docs", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.render(), "run `make format`"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_of_questions_becomes_a_table_of_answers(model, library):
    columns = {
        "src_addr": [SRC, SRC, "2001:db8::1"],
        "dst_addr": [DST, "198.51.100.0/24", "2001:db8::/32"],
        "event_time": ["2024-05-01T00:00:00Z", None, "2024-05-02T00:00:00Z"],
        "kind": [1, 2, 3],
    }
    table = LIBRARIES[library](columns)
    answers = model.rtt(table, quantiles=(0.1, 0.5))
    assert type(answers) is type(table)
    if library == "pandas":
        assert list(answers.index) == [10, 11, 12]
    found = to_arrow(answers)
    assert found.column_names == [*columns, "failure", "point", "q0.1", "q0.5"]
    assert found["src_addr"].to_pylist() == columns["src_addr"]
    for row, values in enumerate(found.to_pylist()):
        one = model.rtt(columns["src_addr"][row], columns["dst_addr"][row], columns["event_time"][row])
        assert values["failure"] == one.failure
        assert values["point"] == one.distribution.point
        assert [values["q0.1"], values["q0.5"]] == one.distribution.quantile([0.1, 0.5]).tolist()


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_question_of_a_table_sees_the_context_of_its_source(model, library):
    known = {"src_addr": [SRC, OTHER, SRC], "dst_addr": [DST] * 3, "rtt": [20.0, 90.0, -1.0]}
    context = LIBRARIES[library](known)
    asked = LIBRARIES[library]({"src_addr": [OTHER, SRC, "192.0.2.77"], "dst_addr": [DST] * 3})
    answers = to_arrow(model.rtt(asked, context=context))
    own = [[index for index in range(3) if known["src_addr"][index] == src] for src in (OTHER, SRC)]
    for row, rows in enumerate([*own, []]):
        part = pa.table(known).take(pa.array(rows, pa.int64()))
        one = model.rtt(answers["src_addr"][row].as_py(), DST, context=part)
        assert one.context_given == len(rows)
        assert answers["point"][row].as_py() == one.distribution.point


def test_questions_that_cannot_be_asked(model):
    with pytest.raises(ping_llm.PingError, match="no column dst_addr"):
        model.rtt(pandas.DataFrame({"src_addr": [SRC]}))
    with pytest.raises(ping_llm.PingError, match="row 1: the source"):
        model.rtt(pandas.DataFrame({"src_addr": [SRC, "x"], "dst_addr": [DST] * 2}))
    with pytest.raises(ping_llm.UsageError, match="quantiles must be between 0 and 1"):
        model.rtt(pandas.DataFrame({"src_addr": [SRC], "dst_addr": [DST]}), quantiles=[95])
    with pytest.raises(ping_llm.UsageError, match="with a table of src_addr"):
        model.rtt(SRC)


def measured(count: int = 4000) -> dict[str, list]:
    generator = np.random.default_rng(0)
    return {
        "event_time": [1_700_000_000 + 60 * index for index in range(count)],
        "src_addr": [f"192.0.2.{number}" for number in generator.integers(1, 30, count)],
        "dst_addr": [f"198.51.100.{number}" for number in generator.integers(1, 30, count)],
        "rtt": generator.gamma(3.0, 10.0, count).round(3).tolist(),
    }


@pytest.mark.parametrize("library", LIBRARIES)
def test_measurements_come_from_tables_and_go_to_tables(library):
    columns = measured(50)
    measurements = ping_llm.read(LIBRARIES[library](columns))
    assert isinstance(measurements, ping_llm.Measurements)
    table = like(to_arrow(measurements), LIBRARIES["polars"](columns))
    assert table["dst_addr"].to_list() == columns["dst_addr"]
    assert polars.DataFrame(measurements)["rtt"].to_list() == columns["rtt"]


def test_what_cannot_be_read(tmp_path):
    columns = measured(3)
    with pytest.raises(ping_llm.PingError, match="without an event_time"):
        ping_llm.read(pa.table(columns | {"event_time": [0, None, 1]}))
    with pytest.raises(ping_llm.UsageError, match="int cannot be read"):
        ping_llm.read(3)
    (tmp_path / "empty.csv").write_text("event_time,src_addr,dst_addr,rtt\n")
    with pytest.raises(ping_llm.PingError, match="no measurement was found in"):
        ping_llm.read(tmp_path / "empty.csv")


def test_the_same_from_a_file_as_from_a_table(tmp_path):
    table = polars.DataFrame(measured())
    table.write_csv(tmp_path / "pings.csv")
    report = ping_llm.ingest(tmp_path / "pings.csv", tmp_path / "measurements", workers=1)
    assert report.total.measurements == len(table)
    splits = [ping_llm.split(source) for source in (table, tmp_path / "pings.csv", tmp_path / "measurements")]
    assert len({len(found.train) for found in splits}) == 1
    assert len(splits[0].test("pairs"))
    manifests = [
        ping_llm.build_rows(source, tmp_path / f"rows-{number}")
        for number, source in enumerate((splits[0].train, splits[2].train.to_arrow()))
    ]
    assert manifests[0]["counts"]["measurements"] == len(splits[0].train)
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
    assert not list(tmp_path.glob("*.parquet"))
    batch = next(ping_llm.Batches(tmp_path / "rows-0", batch_size=2, length=128))
    assert batch["inputs"].shape == (2, 128)


def test_a_report_of_simple_methods(tmp_path):
    ping_llm.ingest(_written(tmp_path), tmp_path / "measurements", workers=1)
    report = ping_llm.evaluate(
        tmp_path / "measurements", tmp_path / "report", queries=50, baselines=["global", "prefixes"]
    )
    assert set(report["splits"]["later"]) == {"global", "prefixes"}
    assert (tmp_path / "report" / "report.html").is_file()


def _written(folder: Path) -> Path:
    polars.DataFrame(measured()).write_csv(folder / "pings.csv")
    return folder / "pings.csv"
