"""A report on questions that its run was trained on says so first."""

import json

import pytest

from ping_llm.evaluate.inputs import EvaluateOptions, evaluation_data
from ping_llm.evaluate.run import evaluate_data
from ping_llm.evaluate.seen import notes, shares, warning
from ping_llm.evaluate.verdict import headline
from ping_llm.measurements.parquet import read_measurements, write_measurements
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore
from ping_llm.simulate import WorldOptions, simulate
from ping_llm.splits.holdout import SplitOptions, split

OPTIONS = EvaluateOptions(
    queries=20,
    replicates=10,
    source_context=(0,),
    context_sizes=(),
    address_questions=0,
    baselines=("global",),
)
CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64)


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=3000, probes=30, targets=10, days=2, seed=1))
    return split(read_measurements(folder), SplitOptions(0.8, 0.15, 0.2, 0.2, 1))


@pytest.fixture
def run(request, splits, tmp_path):
    """An untrained model that claims to have been trained on these measurements."""
    write_measurements(getattr(splits, request.param), tmp_path / "m" / "measurements.parquet")
    build([tmp_path / "m"], tmp_path / "rows")
    folder = tmp_path / "run"
    export.write(CONFIG, random_tensors(CONFIG), {}, folder / "export")
    data = {"rows": str(tmp_path / "rows"), "fingerprint": RowStore(tmp_path / "rows").fingerprint}
    (folder / "run.json").write_text(json.dumps({"format": 1, "data": data}))
    return folder


@pytest.mark.parametrize("run", ["data"], indirect=True)
def test_a_run_that_was_trained_on_everything(run, splits, tmp_path):
    result = evaluate_data(evaluation_data(splits, OPTIONS), tmp_path / "out", OPTIONS, run)
    assert set(result["seen"].values()) == {1.0}
    assert headline(result)[0].startswith("THIS RUN WAS TRAINED ON ITS TESTS (100% of later")
    assert "THIS RUN WAS TRAINED ON ITS TESTS" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("run", ["train"], indirect=True)
def test_a_run_that_was_trained_on_the_training_part(run, splits, tmp_path):
    data = evaluation_data(splits, OPTIONS)
    assert set(shares(run, data, None).values()) == {0.0}
    assert warning(shares(run, data, None)) is None
    # Rows that are gone or were built anew are no proof of anything.
    content = json.loads((run / "run.json").read_text())
    content["data"]["fingerprint"] = "another"
    (run / "run.json").write_text(json.dumps(content))
    assert shares(run, data, None) is None
    assert "It is unknown whether" in notes(data, run, None)[0]
