"""Shares of the test questions that a run was trained on: such figures say nothing about new data.

run.json names the rows that a run was trained on, and its stack holds the pairs that it was fitted to. Of the
rows only those of the tests' sources are read, by the index, and searched for the queried measurements.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.errors import PingError
from ping_llm.evaluate.inputs import EvaluationData
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import hashed
from ping_llm.model.export import remembered_data
from ping_llm.rows.store import RowStore
from ping_llm.splits.novelty import Novelty

if TYPE_CHECKING:
    from ping_llm.answer.stack import Stack

#: Largest share of seen questions without a warning: it changes no figure.
LEAST_SHARE = 0.01


def shares(run: Path, data: EvaluationData, stack: "Stack | None") -> dict[str, float] | None:
    """Return the share of each test's questions that the run was trained on; None if it is unknown."""
    trained = _trained_on(run, data)
    if trained is None and stack is None:
        return None
    out = {}
    for test in data.tests:
        share = 0.0 if trained is None else float(np.isin(_keys(test.asked), trained).mean())
        if stack is not None and test.kind == "pairs":
            # The pairs of this test should be new. If the rows are gone, only the stack knows.
            known = stack.trained.classes(test.asked.src, test.asked.dst) == Novelty.KNOWN_PAIR
            share = max(share, float(known.mean()))
        out[test.name] = round(share, 4)
    return out


def warning(found: dict[str, float] | None) -> str | None:
    """Return the first line of the report if the run was trained on its tests, else None."""
    seen = {name: share for name, share in (found or {}).items() if share > LEAST_SHARE}
    if not seen:
        return None
    each = ", ".join(f"{share:.0%} of {name}" for name, share in seen.items())
    return (
        f"THIS RUN WAS TRAINED ON ITS TESTS ({each} of the questions): its figures say nothing about new "
        "data. Train on what `evaluate --write-train` or `split --by held-out` leaves."
    )


def notes(data: EvaluationData, run: Path | None, seen: dict[str, float] | None) -> list[str]:
    """Return notes on the validity of the figures."""
    out = []
    if data.tests and not data.tests[0].timed:
        out.append(
            "The times of these data carry no information (fewer than ten distinct times, or hardly any "
            "repeated pair), so there is no test of later times, and answers may use all measurements that "
            "are not held out."
        )
    if run is not None and seen is None:
        out.append(
            "It is unknown whether this run was trained on these tests: the rows that it was trained on are "
            "missing or have changed."
        )
    return out


def _trained_on(run: Path, data: EvaluationData) -> np.ndarray | None:
    """Return sorted keys of the training measurements of the tests' sources; None if the rows are gone."""
    kept = remembered_data(run, "data")
    if kept is None:
        return None
    try:
        store = RowStore(kept["rows"])
    except (PingError, OSError):
        return None
    if store.fingerprint != kept["fingerprint"]:
        return None
    asked = np.unique(np.concatenate([hashed(test.asked.src) for test in data.tests]))
    rows = np.flatnonzero(np.isin(hashed(store.index.src), asked))
    block = store.read(rows)
    counts = np.diff(block.offsets)
    measured = Columns(block.time, np.repeat(block.src, counts, axis=0), block.dst, block.rtt)
    return np.unique(_keys(measured))


def _keys(columns: Columns) -> np.ndarray:
    numbers = np.stack([columns.time, columns.rtt.view(np.int64)], axis=1).view(np.uint8)
    return hashed(np.concatenate([columns.src, columns.dst, numbers.reshape(len(columns), 16)], axis=1))
