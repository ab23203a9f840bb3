"""One writer per output folder: said who it is, ended by a kill, and nothing else is ever written to."""

import errno
import fcntl
import os
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ping_llm import locks
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate.inputs import EvaluateOptions
from ping_llm.evaluate.run import evaluate
from ping_llm.fit.options import FitOptions
from ping_llm.fit.run import fit
from ping_llm.ingest.run import ingest
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.rows.build import build
from ping_llm.simulate import WorldOptions, simulate
from ping_llm.splits.holdout import SplitOptions, write_held_out
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard

HOLDER = """
import sys
from pathlib import Path
from ping_llm.locks import only_writer
with only_writer(Path(sys.argv[1]), "a long work"):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(out):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def table(tmp_path):
    columns = {
        "event_time": pa.array(range(60), pa.timestamp("s", "UTC")),
        "src_addr": ["100.0.0.7"] * 60,
        "dst_addr": ["192.0.2.1"] * 60,
        "rtt": [1.0] * 60,
    }
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)


COMMANDS = {
    "ingest": lambda table, out: ingest([table], out),
    "ingest --overwrite": lambda table, out: ingest([table], out, overwrite=True),
    "split": lambda table, out: shard([table], out, ShardOptions(shards=3)),
    "rows build": lambda table, out: build([table], out),
    "simulate": lambda table, out: simulate(out, WorldOptions(measurements=50, probes=3, targets=2, days=1)),
    "evaluate": lambda table, out: evaluate(world(out), out, EVALUATION),
    "export": lambda table, out: export.export(model(out), out),
    "fit": lambda table, out: fit([table], out, FitOptions(minutes=1)),
}
EVALUATION = EvaluateOptions(queries=20, replicates=10, baselines=("global",))
#: What comes after the lock takes minutes; tests/train has the same of `train`.
LONG = ("fit",)


def world(out):
    folder = out.with_name("world")
    simulate(folder, WorldOptions(measurements=2000, probes=20, targets=8, days=2))
    return folder


def model(out):
    config = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64)
    return export.write(config, random_tensors(config), {}, out.with_name("model"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_writer_is_refused_and_changes_nothing(command, table, tmp_path):
    out = tmp_path / "out"
    with only_writer(out, "a test"):
        before = {path: path.read_bytes() for path in out.iterdir()}
        with pytest.raises(
            PingError, match=rf"is being written by process {os.getpid()} on .* \(a test, since"
        ):
            COMMANDS[command](table, out)
        assert {path: path.read_bytes() for path in out.iterdir()} == before
    if command not in LONG:
        COMMANDS[command](table, out)
        assert not (out / LOCK_FILE).exists()


def test_a_second_split_of_held_out_measurements_is_refused(tmp_path):
    measured = [world(tmp_path / "out")]
    with (
        only_writer(tmp_path / ".out.part", "a test"),
        pytest.raises(PingError, match=r"is being written by"),
    ):
        write_held_out(measured, tmp_path / "out", SplitOptions())
    write_held_out(measured, tmp_path / "out", SplitOptions())
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out"]


def test_parts_of_a_work_hold_its_folder_too(tmp_path):
    with only_writer(tmp_path, "a fit", with_parts=True):
        with only_writer(tmp_path, "a training"):
            pass
        assert (tmp_path / LOCK_FILE).exists()
        refused = []

        def try_it():
            try:
                with only_writer(tmp_path, "another"):
                    pass
            except PingError as error:
                refused.append(str(error))

        other = threading.Thread(target=try_it)
        other.start()
        other.join()
        assert "(a fit, since" in refused[0]
    with only_writer(tmp_path, "another"):
        pass


@pytest.mark.parametrize("command", ["ingest", "split", "rows build"])
def test_a_finished_folder_needs_no_lock(command, table, tmp_path):
    """What is done is only read, as it must be in a read-only folder."""
    out = tmp_path / "out"
    COMMANDS[command](table, out)
    with only_writer(out, "a test"):
        COMMANDS[command](table, out)


def test_another_process_is_named_and_a_kill_frees_the_folder(tmp_path):
    out = tmp_path / "deep" / "out"
    process = holder(out)
    try:
        with (
            pytest.raises(PingError, match=rf"process {process.pid} on .* \(a long work"),
            only_writer(out, "a test"),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    assert (out / LOCK_FILE).exists()
    with only_writer(out, "a test"):
        assert str(os.getpid()) in (out / LOCK_FILE).read_text()
    assert list(out.iterdir()) == []


def test_no_two_hold_a_folder_however_often_they_try(tmp_path):
    """The lock file is removed and made again all the time: a lock on a removed file must not count."""
    inside, overlaps, held = [], [], []

    def hammer(name):
        for _ in range(300):
            try:
                with only_writer(tmp_path / "out", "a test"):
                    inside.append(name)
                    overlaps.extend(inside[1:])
                    held.append(name)
                    inside.remove(name)
            except PingError:
                pass

    threads = [threading.Thread(target=hammer, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held
    assert overlaps == []
    assert not (tmp_path / "out" / LOCK_FILE).exists()


@pytest.mark.parametrize("plant", ["symlink", "dangling", "hard link", "folder", "fifo", "file"])
def test_what_is_not_a_lock_is_neither_followed_nor_changed(plant, tmp_path):
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("precious")
    out.mkdir()
    lock = out / LOCK_FILE
    if plant == "symlink":
        lock.symlink_to(precious)
    elif plant == "dangling":
        lock.symlink_to(tmp_path / "nothing")
    elif plant == "hard link":
        lock.hardlink_to(precious)
    elif plant == "folder":
        lock.mkdir()
    elif plant == "fifo":
        os.mkfifo(lock)
    else:
        lock.write_text("precious too")
    with pytest.raises(PingError, match=r"\.lock .*remove it"), only_writer(out, "a test"):
        pass
    assert precious.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()
    assert plant != "file" or lock.read_text() == "precious too"


def test_a_folder_that_cannot_be_one_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "link"):
        with pytest.raises(UsageError, match="name another folder"), only_writer(out, "a test"):
            pass


def test_folders_that_were_made_and_left_empty_are_removed(tmp_path):
    with pytest.raises(ValueError, match="refused"), only_writer(tmp_path / "a" / "b", "a test"):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch, capsys):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    with only_writer(tmp_path / "out", "a test"):
        pass
    assert "has no locks" in capsys.readouterr().err
    assert fcntl.flock is no_locks
