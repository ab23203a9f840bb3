"""Killed, out of disk, or beside another build: nothing lost, nothing mixed, nothing half finished."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rows_data import folder_bytes, write_measurements

from ping_llm.errors import PingError
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.rows import plan
from ping_llm.rows.build import RunOptions, build

KILLS = 20
# Of 200 sizes from 4 kB to 2.4 MB, 42 fail at the index of a part, the others at a shard: these meet both.
SMALL_DISKS = [("output", f"{size}k") for size in range(1000, 1100, 12)] + [("temporary", "1m")]

# Imports and loads the kernels once and forks a child for every build, so that the kills fall into builds. No
# thread may be started before the fork: neither DuckDB nor a shard's writer is touched.
STARTER = """
import os, sys, tempfile, time
from pathlib import Path
import numpy as np
import pyarrow.parquet as pq
from ping_llm.rows import plan, shard, sortable, sorting, spill
from ping_llm.rows import build as building
from ping_llm.rows.build import RunOptions, build

class Nothing:
    def __init__(self, path): pass
    def buffer(self, size): return np.empty(size, np.uint8)
    def write(self, piece): pass

def warm_up(path, folder):
    batch = next(pq.ParquetFile(path).iter_batches(100, use_threads=False))
    batch = batch.set_column(0, "event_time", batch.column("event_time").cast("int64"))
    batch = batch.set_column(3, "ip_version", batch.column("ip_version").cast("int64"))
    piece = sortable.from_batch(batch)
    table = plan.layout_table(plan.layout(plan.RowOptions(), 10))
    with spill.SpillReader([spill.make_spill([piece], table, False, folder / "spill")]) as reader:
        words = next(reader.read(0, 1000))
    real, shard.Output = shard.Output, Nothing
    shard.ShardWriter(folder / "shard", 1000, False).__enter__().add(words, sorting.sort_order(words, False))
    shard.Output = real

with tempfile.TemporaryDirectory() as name:
    warm_up(sys.argv[1], Path(name))
plan.SMALL_PART_MEASUREMENTS, plan._MIN_SLICE = 1500, 3000
sys.stderr = open(os.devnull, "w")
for number, line in enumerate(sys.stdin):
    building.HELD_FRACTION = 0.25 * (number % 3 == 0)  # spills in memory now and then, else on disk
    child = os.fork()
    if child == 0:
        build([sys.argv[1]], sys.argv[2], run=RunOptions(workers=2))
        os._exit(0)
    if line.strip() != "never":
        time.sleep(float(line))
        os.kill(child, 9)  # not yet waited for, so it is ours even if it has ended
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(plan, "SMALL_PART_MEASUREMENTS", 1500)
    monkeypatch.setattr(plan, "_MIN_SLICE", 3000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills_leave_the_same_bytes(tmp_path, small_parts, capsys):
    write_measurements(tmp_path / "in.parquet", 24_000, sources=900)
    build([tmp_path / "in.parquet"], tmp_path / "undisturbed")
    wanted = folder_bytes(tmp_path / "undisturbed")
    out = tmp_path / "out"
    command = [sys.executable, "-c", STARTER, str(tmp_path / "in.parquet"), str(out)]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdin is not None
    assert starter.stdout is not None
    rng = random.Random(4)
    kills = finished = kept = 0

    def one_build(kill_after: float | None) -> int:
        starter.stdin.write(f"{'never' if kill_after is None else kill_after}\n")
        starter.stdin.flush()
        return int(starter.stdout.readline())

    try:
        for _ in range(2):  # the first may compile kernels
            begun = time.monotonic()
            assert one_build(None) == 0
            seconds = time.monotonic() - begun
            shutil.rmtree(out)
        while kills < KILLS or not finished:
            # A part is finished when its marker is there, which is written after its shard.
            done = {marker.stem.removeprefix("part-") for marker in out.glob(".build/part-*.json")}
            shards = [path for part in done for path in out.glob(f"rows-{part}-of-*.arrayrecord")]
            before = {path: path.stat().st_mtime_ns for path in shards}
            kept += len(before)
            code = one_build(rng.random() * seconds if kills < KILLS else None)
            assert code in (0, -9)
            assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())
            if code == -9:
                kills += 1
                if (out / "manifest.json").exists():  # killed while it cleared up
                    assert not set(wanted.items()) - set(folder_bytes(out).items())
            else:
                finished += 1
                assert folder_bytes(out) == wanted
                shutil.rmtree(out)
    finally:
        starter.kill()
        starter.communicate()
    assert kept, "no kill fell behind a finished part"
    with capsys.disabled():
        print(f"[{kills} kills, {finished} builds finished, {kept} finished shards kept]", end=" ")


def mount(folder: Path, size: str) -> None:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.decode().strip()}")


@pytest.mark.parametrize(("full", "size"), SMALL_DISKS)
def test_a_full_disk_is_said_and_the_rerun_completes(tmp_path, small_parts, monkeypatch, full, size):
    monkeypatch.setattr("ping_llm.rows.build.HELD_FRACTION", 0)
    write_measurements(tmp_path / "in.parquet", 24_000, sources=900)
    build([tmp_path / "in.parquet"], tmp_path / "undisturbed")
    disk = tmp_path / "disk"
    mount(disk, size)
    try:
        out = disk / "rows" if full == "output" else tmp_path / "rows"
        run = RunOptions(workers=2, temp=tmp_path / "temp" if full == "output" else disk)
        with pytest.raises(PingError, match=r"cannot write .* MB free on that disk\); make room"):
            build([tmp_path / "in.parquet"], out, run=run)
        assert not (out / "manifest.json").exists()
        assert not [path for path in out.rglob(".*.part") if path.stat().st_size]
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        build([tmp_path / "in.parquet"], out, run=run)
        assert folder_bytes(out) == folder_bytes(tmp_path / "undisturbed")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_builds_do_not_share_a_folder(tmp_path):
    write_measurements(tmp_path / "in.parquet", 100)
    with only_writer(tmp_path / "out", "a test"):
        with pytest.raises(PingError, match=rf"is being written by process {os.getpid()} on .*a test"):
            build([tmp_path / "in.parquet"], tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / LOCK_FILE]
    assert not (tmp_path / "out").exists()
    build([tmp_path / "in.parquet"], tmp_path / "out")
    assert not (tmp_path / "out" / LOCK_FILE).exists()
