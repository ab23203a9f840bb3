"""A path that exists is that path: in every command, whatever characters it has."""

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ping_llm import paths
from ping_llm.answer.files import read_columns
from ping_llm.describe.run import describe
from ping_llm.describe.sample import sample
from ping_llm.errors import UsageError
from ping_llm.ingest.options import find_files
from ping_llm.ingest.run import ingest
from ping_llm.measurements.parquet import read_measurements
from ping_llm.rows.build import RowOptions, RunOptions, build
from ping_llm.rows.inputs import find_files as find_row_files
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard

#: Each name, and another that it matches as a pattern.
NAMES = {
    "d[1]": "d1", "a*b": "axb", "a**b": "ab", "q?": "qq", "d[1-3]": "d2", "[[]": "[", "n[!a]z": "nbz",
    "{a,b}": "a", "it's": "its", "~": "home", "x\ny": "xy",
}  # fmt: skip
NO_REPLIES, REPLIES = 20, 400


def write_table(path, rtt, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "event_time": pa.array([1_600_000_000 + index for index in range(count)], pa.timestamp("s", "UTC")),
        "src_addr": ["100.0.0.7"] * count,
        "dst_addr": ["192.0.2.1"] * count,
        "rtt": [rtt] * count,
    }
    pq.write_table(pa.table(columns), path)


@pytest.fixture(params=NAMES)
def place(request, tmp_path, monkeypatch):
    """The name of a folder with REPLIES rows; as a pattern it matches one with NO_REPLIES."""
    write_table(tmp_path / request.param / "t.parquet", 5.0, REPLIES)
    write_table(tmp_path / NAMES[request.param] / "t.parquet", -1.0, NO_REPLIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return request.param


def test_every_command_reads_the_folder_it_is_given(place, tmp_path):
    assert describe([place]).as_json()["rows"] == REPLIES
    assert len(sample([place], 1_000)) == REPLIES
    splits = shard([place], tmp_path / "splits", ShardOptions(by="row", shards=3))
    assert splits.content["rows"]["out"] == REPLIES
    manifest = build([place], tmp_path / "rows", RowOptions(), RunOptions(workers=1))
    assert manifest["counts"]["measurements"] == REPLIES
    assert ingest([place], tmp_path / "table").total.results == REPLIES
    # query score, --context and watch; evaluate, fit and the held-out split.
    assert len(read_columns(Path(place))) == REPLIES
    assert len(read_measurements(Path(place))) == REPLIES


def test_every_command_writes_to_the_folder_it_is_given(place):
    """Parts and shards are read back by DuckDB: from the output folder and no other."""
    for folder, data in ((Path(NAMES[place]) / "out", NAMES[place]), (Path(place) / "out", place)):
        rows, data = (REPLIES if data == place else NO_REPLIES), f"{data}/t.parquet"
        assert ingest([data], folder / "table").total.measurements == rows
        splits = shard([data], folder / "splits", ShardOptions(by="row", shards=3))
        assert sum(split["rows"] for split in splits.content["splits"].values()) == rows
        assert build([data], folder / "rows", RowOptions(), RunOptions(workers=1))["counts"]["in"] == rows


@pytest.mark.parametrize("find", [find_files, lambda places: [file.path for file in find_row_files(places)]])
def test_a_pattern_below_a_folder_that_exists_is_about_that_folder(place, find, tmp_path):
    found = [os.path.realpath(path) for path in find([f"{place}/*.parquet"])]
    assert found == [str(tmp_path / place / "t.parquet")]
    with pytest.raises(UsageError, match=r"no (Parquet )?file"):
        find([f"{place}/*.json"])


def test_patterns_still_match(tmp_path):
    for name in ("a/1.parquet", "a/b/2.parquet", "c/3.parquet"):
        write_table(tmp_path / name, 1.0, 1)
    assert len(paths.matching_files(f"{tmp_path}/**/*.parquet")) == 3
    assert len(paths.matching_files(f"{tmp_path}/[ac]/*.parquet")) == 2
    assert paths.matching_files(f"{tmp_path}/none/*.parquet") == []


def test_names_in_sql(place, tmp_path):
    name = paths.sql_path(tmp_path / place / "t.parquet")
    assert duckdb.sql(f"SELECT count(*), min(rtt) FROM read_parquet([{name}])").fetchall() == [(REPLIES, 5.0)]
