"""Names that are not text, links in circles, escape codes: each costs its own file at most."""

import gzip
import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from atlas_results import ping, write_lines
from ingest_program import program

from ping_llm.errors import PingError
from ping_llm.ingest.options import find_files
from ping_llm.ingest.run import ingest
from ping_llm.paths import printable, utf8_name
from ping_llm.rows.build import build
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard

LATIN = os.fsdecode(b"caf\xe9")
ESCAPES = "\x1b[31mred\x07\x9b2J\u202e"


def results(count, first=0):
    return [ping(timestamp=first + index) for index in range(count)]


def table_bytes(count):
    columns = {
        "event_time": pa.array(range(count), pa.timestamp("s", "UTC")),
        "src_addr": ["100.0.0.7"] * count,
        "dst_addr": ["192.0.2.1"] * count,
        "rtt": [1.0] * count,
    }
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def test_names_that_are_not_utf8(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"{LATIN}.jsonl").write_bytes(write_lines(results(5)) + b"rubbish\n")
    (folder / f"{LATIN}.parquet").write_bytes(table_bytes(7))
    (folder / f"{LATIN}.gz").write_bytes(gzip.compress(write_lines(results(3, 100)))[:-3])
    report = ingest([str(folder)], tmp_path / "out")
    assert (report.total.results, report.total.measurements) == (16, 15)
    assert report.troubles[0].startswith(rf"{folder}/caf\xe9.gz: gzip data ends early")
    summary = json.loads((tmp_path / "out" / "ingest.json").read_text())
    names = [entry["file"] for entry in summary["files"]]
    assert names == [rf"{folder}/caf\xe9.{end}" for end in ("gz", "jsonl", "parquet")]
    rejects = pq.read_table(tmp_path / "out" / "rejects" / "rejects.parquet")
    assert rejects["file"].to_pylist() == [rf"{folder}/caf\xe9.jsonl"]
    stamp = (tmp_path / "out" / "ingest.json").stat().st_mtime_ns
    assert ingest([str(folder)], tmp_path / "out").total.results == 16
    assert (tmp_path / "out" / "ingest.json").stat().st_mtime_ns == stamp


def test_where_a_name_must_be_utf8_it_is_said(tmp_path):
    path = tmp_path / f"{LATIN}.parquet"
    path.write_bytes(table_bytes(20))
    for run in (
        lambda: shard([str(path)], tmp_path / "splits", ShardOptions(shards=3)),
        lambda: build([path], tmp_path / "rows"),
    ):
        with pytest.raises(PingError):
            run()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(write_lines(results(4)))
    (folder / "sub" / "b.jsonl").write_bytes(write_lines(results(4, 100)))
    return folder


def test_links_in_circles(folder, tmp_path):
    (folder / "itself").symlink_to(folder / "itself")
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "nothing").symlink_to(tmp_path / "nothing")
    report = ingest([str(folder)], tmp_path / "out")
    assert report.total.measurements == 8
    assert sorted(report.troubles) == [
        f"{folder}/itself: cannot be opened: Too many levels of symbolic links",
        f"{folder}/nothing: cannot be opened: No such file or directory",
    ]


def test_linked_folders_are_read_once(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.jsonl").write_bytes(write_lines(results(4, 200)))
    for name in ("link", "again"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    found = find_files([str(folder)])
    assert found == [f"{folder}/{name}" for name in ("a.jsonl", "again/c.jsonl", "sub/b.jsonl")]


def test_pipes_and_the_own_output_are_left_out(folder):
    os.mkfifo(folder / "pipe")
    (folder / "out").mkdir()
    (folder / "out" / "x.jsonl").write_bytes(b"")
    (folder / "link").symlink_to(folder / "out")
    assert [name[len(str(folder)) :] for name in find_files([str(folder)], folder / "out")] == [
        "/a.jsonl",
        "/sub/b.jsonl",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_without_permission_is_said(folder, tmp_path):
    (folder / "sub").chmod(0)
    try:
        report = ingest([str(folder)], tmp_path / "out")
    finally:
        (folder / "sub").chmod(0o755)
    assert report.troubles == [f"{folder}/sub: cannot be opened: Permission denied"]


def test_escape_codes_do_not_reach_the_terminal(tmp_path):
    path = tmp_path / f"{ESCAPES}{LATIN}.gz"
    path.write_bytes(gzip.compress(write_lines(results(5)))[:-3])
    ended = program("ingest", os.fsencode(path).decode("utf-8", "surrogateescape"), "--out", tmp_path / "out")
    shown = (ended.stdout + ended.stderr).decode()
    assert r"\x1b[31mred\x07\x9b2J\u202ecaf\xe9.gz" in shown
    assert not any(code in shown for code in ("\x1b", "\x07", "\x9b", "\u202e"))
    ended = program("ingest", tmp_path / f"{ESCAPES}none", "--out", tmp_path / "out2")
    assert ended.returncode == 2
    assert "\x1b" not in ended.stderr.decode()


def test_texts():
    assert printable("ok é 東 \n\t") == "ok é 東 \n\t"
    assert printable(f"\x1b[0m{LATIN}") == r"\x1b[0mcaf\xe9"
    assert utf8_name("ok é") == "ok é"
    assert utf8_name(LATIN) == r"caf\xe9"


@pytest.mark.parametrize("where", [-1, -8, -5])
def test_a_gz_with_a_bad_checksum_keeps_what_is_readable(where, tmp_path):
    data = bytearray(gzip.compress(write_lines(results(1_000))))
    data[where] ^= 1
    (tmp_path / "bad.gz").write_bytes(data)
    (tmp_path / "good.jsonl").write_bytes(write_lines(results(1, 5_000)))
    report = ingest([str(tmp_path)], tmp_path / "out")
    assert report.total.measurements == 1_001
    assert report.total.rejected == 0
    assert len(report.troubles) == 1
    assert "bad.gz: corrupt gzip data at byte" in report.troubles[0]


def test_a_damaged_gz_keeps_what_is_before_the_damage(tmp_path):
    data = bytearray(gzip.compress(write_lines(results(1_000))))
    data[len(data) * 9 // 10 : len(data) * 9 // 10 + 20] = b"\xff" * 20
    (tmp_path / "bad.gz").write_bytes(data)
    report = ingest([str(tmp_path / "bad.gz")], tmp_path / "out")
    assert report.total.measurements > 700
    assert len(report.troubles) == 1
