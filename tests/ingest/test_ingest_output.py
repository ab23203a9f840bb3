"""Done means that the files are there, whole; and nothing is removed that ingest did not write."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from atlas_results import ping, write_lines
from ingest_program import tree

from ping_llm.errors import UsageError
from ping_llm.ingest import run as ingest_run
from ping_llm.ingest.run import ingest

DAY = 86_400


@pytest.fixture
def table(tmp_path):
    """(inputs, out) of a table of three days, with rejects."""
    results = [ping(timestamp=1_600_000_000 + DAY * (index % 3), prb_id=index) for index in range(300)]
    (tmp_path / "in.jsonl").write_bytes(write_lines(results) + b"rubbish\n")
    inputs, out = [str(tmp_path / "in.jsonl")], tmp_path / "out"
    ingest(inputs, out)
    return inputs, out


def cut_the_middle(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3] + data[len(data) // 3 + 50 :])


DAMAGE = {
    "a day is gone": lambda out: shutil.rmtree(min(out.glob("date=*"))),
    "a day's file is gone": lambda out: next(out.glob("date=*/*.parquet")).unlink(),
    "a day is cut": lambda out: next(out.glob("date=*/*.parquet")).write_bytes(b"PAR1"),
    "a day is empty": lambda out: next(out.glob("date=*/*.parquet")).write_bytes(b""),
    "a day lacks bytes": lambda out: cut_the_middle(next(out.glob("date=*/*.parquet"))),
    "a day is there twice": lambda out: shutil.copytree(min(out.glob("date=*")), out / "date=2021-01-01"),
    "the rejects are gone": lambda out: shutil.rmtree(out / "rejects"),
    "rejects of another table": lambda out: pq.write_table(
        pq.read_table(out / "rejects" / "rejects.parquet").slice(0, 0), out / "rejects" / "rejects.parquet"
    ),
    "a killed run's file": lambda out: (next(out.glob("date=*")) / ".part-0.parquet.77.part").write_bytes(
        b"x"
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_table_is_not_done(damage, table, tmp_path):
    inputs, out = table
    wanted = tree(out)
    DAMAGE[damage](out)
    report = ingest(inputs, out)
    assert report.total.measurements == 300
    if damage == "a killed run's file":
        next(out.glob("date=*/.part*")).unlink()  # it does no harm, and the table is whole
    assert tree(out) == wanted


def test_a_whole_table_is_not_touched(table):
    inputs, out = table
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    ingest(inputs, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps


def test_with_a_row_per_packet_the_packets_are_counted(tmp_path, table):
    inputs, _ = table
    options = ingest_run.IngestOptions(rtt="each")
    first = ingest(inputs, tmp_path / "each", options)
    stamp = (tmp_path / "each" / "ingest.json").stat().st_mtime_ns
    assert ingest(inputs, tmp_path / "each", options).total.packets == first.total.packets == 900
    assert (tmp_path / "each" / "ingest.json").stat().st_mtime_ns == stamp


def test_a_leftover_work_folder_does_not_replace_another_table(table, tmp_path):
    _, out = table
    (out / ".ingest").mkdir()
    before = tree(out)
    (tmp_path / "other.jsonl").write_bytes(write_lines([ping()]))
    with pytest.raises(UsageError, match="--overwrite"):
        ingest([str(tmp_path / "other.jsonl")], out)
    assert tree(out) == before
    assert ingest([str(tmp_path / "other.jsonl")], out, overwrite=True).total.measurements == 1


def test_a_leftover_work_folder_of_a_finished_table_is_cleared_up(table):
    inputs, out = table
    wanted = tree(out)
    (out / ".ingest" / ("a" * 24)).mkdir(parents=True)
    ingest(inputs, out)
    assert tree(out) == wanted
    assert not (out / ".ingest").exists()


STRANGERS = [
    "date=2020-09-13/mine.parquet",
    "date=2020-09-13/notes/x",
    "rejects/mine.txt",
    "date=mine/x",
    ".ingest/mine",
]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_what_ingest_did_not_write_is_never_removed(stranger, table, tmp_path):
    inputs, out = table
    (out / stranger).parent.mkdir(parents=True, exist_ok=True)
    (out / stranger).write_text("mine")
    before = tree(out)
    (tmp_path / "in.jsonl").write_bytes(write_lines([ping()]))
    with pytest.raises(UsageError, match="was not written by ingest"):
        ingest(inputs, out, overwrite=True)
    assert tree(out) == before


def test_a_planted_link_is_not_followed(table, tmp_path):
    inputs, out = table
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("mine")
    for name in (".ingest", "date=2022-02-02"):
        (out / name).symlink_to(precious)
        with pytest.raises(UsageError, match="was not written by ingest"):
            ingest(inputs, out, overwrite=True)
        (out / name).unlink()
    assert tree(precious) == {"thesis.txt": b"mine"}


def test_while_a_table_is_replaced_it_has_no_summary(table, tmp_path, monkeypatch):
    """Killed in between, the folder does not claim to be the old table."""
    inputs, out = table
    (tmp_path / "in.jsonl").write_bytes(write_lines([ping()]))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ingest_run, "group_days", killed)
    with pytest.raises(KeyboardInterrupt):
        ingest(inputs, out, overwrite=True)
    monkeypatch.undo()
    assert not (out / "ingest.json").exists()
    assert ingest(inputs, out).total.measurements == 1


def test_parts_that_lost_their_bytes_are_read_again(tmp_path, monkeypatch):
    """After a power cut, a part may be there and empty."""
    (tmp_path / "in.jsonl").write_bytes(write_lines([ping(), ping(timestamp=5)]))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ingest_run, "group_days", killed)
    with pytest.raises(KeyboardInterrupt):
        ingest([str(tmp_path / "in.jsonl")], tmp_path / "out")
    monkeypatch.undo()
    (part,) = (tmp_path / "out" / ".ingest").glob("*/rows.parquet")
    part.write_bytes(b"")
    assert ingest([str(tmp_path / "in.jsonl")], tmp_path / "out").total.measurements == 2


def test_a_summary_that_is_not_one_is_said(table):
    inputs, out = table
    for text in ("", "[]", "7", json.dumps({"files": [], "options": {}})):
        (out / "ingest.json").write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            ingest(inputs, out)
