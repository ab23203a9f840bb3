"""Loggers never stop a training."""

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest

from ping_llm.progress import Progress
from ping_llm.train.board import Board
from ping_llm.train.records import TrainingLine


def fill(board):
    for step in range(200):  # far more than any queue takes
        board.add_scalar("loss", 1.0 / (step + 1), step)
    board.flush()


@contextlib.contextmanager
def open_full():
    """A file on a disk without room; closing it fails as well."""
    with contextlib.suppress(OSError), Path("/dev/full").open("wb") as full:
        yield full


def events_of(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    return events


def test_events_can_be_read_back_and_a_resumed_run_replaces_them(tmp_path):
    board = Board(str(tmp_path))
    board.add_text("config", "steps=200")
    fill(board)
    board.close()
    resumed = Board(str(tmp_path), purge_step=150)
    resumed.add_scalars("both", {"one": 1.0, "other": 2.0}, 150)
    resumed.add_scalar("loss", 7.0, 150)
    resumed.close()
    events = events_of(tmp_path)
    assert {event.step: event.value for event in events.Scalars("loss")} == pytest.approx(
        {step: 1.0 / (step + 1) for step in range(150)} | {150: 7.0}
    )
    assert events.Scalars("both/other")[0].value == 2.0


def test_a_full_disk_ends_the_events_only(tmp_path, capsys):
    board = Board(str(tmp_path))
    board.add_scalar("loss", 1.0, 0)
    with open_full() as full:
        board._events._py_recordio_writer._writer.close()
        board._events._py_recordio_writer._writer = full
        fill(board)
        fill(board)
        board.close()
    assert capsys.readouterr().err.count("events in") == 1


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").touch()
    board = Board(str(tmp_path / "file" / "run"))
    fill(board)
    board.close()
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["a full disk", "a reader that went away"])
def test_nobody_reads_the_live_line(target, monkeypatch):
    if target == "a full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
    stream = io.TextIOWrapper(io.FileIO(descriptor, "w"), write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    TrainingLine(steps=1).train(0, loss=1.0, bits=2.0, tokens=3, waited=0.0)
    with Progress("rows", 10) as progress:
        progress.advance(10)
    monkeypatch.undo()
    with contextlib.suppress(OSError):  # what could not be written is still in its buffer
        stream.close()
