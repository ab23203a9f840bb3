"""Calibration of a trained run: its stack is fitted on questions that were held out of its training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.methods.registry import usable
from ping_llm.answer.model import Model
from ping_llm.answer.stack import FOLDER, Stack
from ping_llm.answer.stacking import fit_stack
from ping_llm.errors import PingError
from ping_llm.fit.held_out import further_splits, held_out
from ping_llm.locks import only_writer
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model import export
from ping_llm.splits.holdout import SplitOptions


def calibrate(
    run: Path, data: Path, options: SplitOptions, most: int, names: Sequence[str] | None = None
) -> Stack:
    """Fit and save the stack of a run that was trained on `data` without what `options` hold out.

    Args:
      most: largest number of held-out questions of each kind.
      names: the simple methods; by default all that are usable.
    """
    train = read_measurements(data, every_column=export.optional_fields(run) != ())
    return calibrate_columns(run, train, options, most, names)


def calibrate_columns(
    run: Path, train: Columns, options: SplitOptions, most: int, names: Sequence[str] | None = None
) -> Stack:
    """Fit and save the stack of a run, as `calibrate`, with measurements in memory."""
    network_train, tests = held_out(train, options, most)
    if not tests:
        raise PingError("no measurement is held out to calibrate with: hold out more, or give more data")
    model = Model.load(run, data=False)
    with only_writer(run, "calibrate"):
        further = further_splits(train, options, most // 2, tests)
        stack = fit_stack(model, network_train, tests, train, tuple(names or usable()), about(train), further)
        stack.save(run / FOLDER)
    return stack


def about(train: Columns) -> dict[str, Any]:
    """Describe the data that a stack was fitted to, for `Stack.about`."""
    return {
        "trained_on": {
            "measurements": len(train),
            "sources": len(Ids(train.src)),
            "destinations": len(Ids(train.dst)),
            "pairs": len(Ids(pairs_of(train.src, train.dst))),
            "first_time": str(np.datetime64(int(train.time.min()), "us")) + "Z",
            "last_time": str(np.datetime64(int(train.time.max()), "us")) + "Z",
        }
    }
