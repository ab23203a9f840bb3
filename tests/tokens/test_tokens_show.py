"""ping-llm tokens show: the examples have every form, files are read, mistakes are named."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from ping_llm.cli import contexts as command
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.schema import TABLE_VERSIONS
from ping_llm.tokens import reference
from ping_llm.tokens.rtt import RTT_ENCODINGS, rtt_encoding
from ping_llm.tokens.vocab import PAD, ROLE_NAMES, Field

SCHEMA = TABLE_VERSIONS[3]
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ROWS = [
    (
        datetime(2024, 5, 1, 12, 0, 0, 900_000, UTC),
        "192.0.2.1",
        "198.51.100.7",
        4,
        12.345,
        1001,
        64,
        1,
        7,
        "ping",
        94.3,
    ),
    (
        datetime(2024, 5, 1, 12, 1, 0, 0, UTC),
        "192.0.2.1",
        "198.51.100.8",
        4,
        -1.0,
        None,
        None,
        None,
        None,
        "ping",
        None,
    ),
    (
        datetime(2024, 5, 1, 12, 2, 0, 0, UTC),
        "2001:db8::1",
        "2001:db8::2",
        6,
        20.0,
        5,
        1000,
        0,
        8,
        "ping",
        0.0,
    ),
]


def run(*arguments: object) -> str:
    app = typer.Typer()
    command.register_tokens(app)
    result = CliRunner().invoke(app, ["tokens", "show", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def table(tmp_path):
    columns = list(zip(*ROWS, strict=True))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), tmp_path / "day.parquet")
    return tmp_path / "day.parquet"


@pytest.mark.parametrize("name", list(RTT_ENCODINGS))
def test_examples_show_every_role_and_decode(name):
    shown = json.loads(run("--json", "--rtt-encoding", name))
    seen = set()
    for context in shown["contexts"]:
        ids = [token for one in context["measurements"] for token in one["ids"]]
        seen |= set(ids)
        decoded = reference.decode(ids, rtt_encoding(name))
        for one, statement in zip(context["measurements"], decoded, strict=True):
            assert one["measurement"]["src_addr"] == str(statement.src)
    assert seen >= set(range(len(ROLE_NAMES))) - {PAD}
    assert shown["rtt_encoding"] == name


def test_the_text_is_readable():
    text = run()
    for line in (
        "    TIME_ABS     00 00 00 00 66 32 2e c0  2024-05-01T12:00:00Z",
        "    RTT          1c 0e                    12.344 ms, for 12.3415 to 12.3465",
        "    TIME_DELTA4  00 00 0e 10  3,600 s later",
        "    MEASUREMENT                 from 192.0.2.0/24, as before",
        "    SRC_IPV4     c0 00 02 PREFIX_END  192.0.2.0/24",
        "    ERRORS       ff                       255 packet errors or more",
        "    EXTRA        02 05 38                 94.208 Mbit/s",
    ):
        assert line in text.splitlines()
    assert "1,000 ms, for 999.9915 and up" in run("--rtt-encoding", "clipped")
    assert "100 ms, for 99.9985 and up" in run("--rtt-encoding", "clipped", "--clip-limit-ms", "100")
    assert "12.345 ms, exactly" in run("--rtt-encoding", "float64")


def test_a_file_and_a_folder(table):
    shown = json.loads(run(table, "--json", "--all-fields"))
    first, second = shown["contexts"]
    assert [len(first["measurements"]), len(second["measurements"])] == [2, 1]
    ids = [token for one in first["measurements"] for token in one["ids"]]
    one, two = reference.decode(ids)
    assert one.order == tuple(Field)
    assert (one.rtt, one.size, one.errors, one.msm_id) == (12.344, 64, 1, 1001)
    assert (one.probe_id, one.throughput, shown["tokens_format"]) == (7, 94.208, 3)
    assert two.order == (Field.DST, Field.TIME, Field.RESULT)
    assert (str(two.src), two.rtt, two.seconds - one.seconds) == ("192.0.2.1", -1.0, 60)
    assert run(table.parent) == run(table)
    assert len(json.loads(run(table, "--json", "-n", "1"))["contexts"]) == 1


def test_mistakes_are_named(table, tmp_path):
    with pytest.raises(UsageError, match="choose one of compact"):
        run("--rtt-encoding", "zip")
    with pytest.raises(UsageError, match="clip limit of 0"):
        run("--rtt-encoding", "clipped", "--clip-limit-ms", "0")
    with pytest.raises(UsageError, match="does not exist"):
        run(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no Parquet files"):
        run(tmp_path / "empty")
    (tmp_path / "text.parquet").write_text("not Parquet")
    with pytest.raises(PingError, match=r"text\.parquet is not a Parquet file"):
        run(tmp_path / "text.parquet")
    whole = pq.read_table(table)
    for column, value, reason in (
        ("rtt", [1.0, float("nan"), 2.0], "row 2: rtt nan must be -1"),
        ("rtt", [1.0, -1.0, -3.0], "row 3: rtt -3.0 must be -1"),
        ("src_addr", ["192.0.2.1", "localhost", "::1"], "row 2: src_addr localhost is not an address"),
    ):
        index = whole.schema.get_field_index(column)
        bad = whole.set_column(index, whole.schema.field(index), pa.array(value))
        pq.write_table(bad, tmp_path / "bad.parquet")
        with pytest.raises(PingError, match=f"bad.parquet, {reason}"):
            run(tmp_path / "bad.parquet")
    pq.write_table(whole.drop_columns(["dst_addr"]), tmp_path / "bad.parquet")
    with pytest.raises(PingError, match="has no column dst_addr"):
        run(tmp_path / "bad.parquet")
    pq.write_table(whole.set_column(0, "event_time", pa.array(["x", "y", "z"])), tmp_path / "bad.parquet")
    with pytest.raises(PingError, match="column event_time has type string"):
        run(tmp_path / "bad.parquet")


def test_the_program_exits_with_a_sentence():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from ping_llm.cli import main; main()",
            "tokens",
            "show",
            "--rtt-encoding",
            "zip",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ping-llm: there is no RTT encoding 'zip'")
    assert not done.stdout
