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
from ping_llm.ingest.run import ingest
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.rows.build import build
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
}


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
    COMMANDS[command](table, out)
    assert not (out / LOCK_FILE).exists()


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
