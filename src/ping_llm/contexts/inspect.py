"""Inspection of batches: their measurements as text, statistics of a stream, and the time of each stage."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.draws import KIND_NAMES, MODE_NAMES, UNNAMED
from ping_llm.contexts.fill import (
    NOTE_CONTEXT,
    NOTE_COUNT,
    NOTE_CUT,
    NOTE_FILLER,
    NOTE_KIND,
    NOTE_LENGTH,
    NOTE_MODE,
    NOTES,
)
from ping_llm.contexts.units import FilledUnit, Rows
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.rows.block import RowBlock
from ping_llm.rows.manifest import RowIndex
from ping_llm.tokens import reference
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import BYTE0, MEASUREMENT, PAD, ROLE_NAMES, Field, roles_of

# ANSI colours of the fields.
_COLOURS = {
    Field.SRC: "36",
    Field.DST: "34",
    Field.TIME: "33",
    Field.RESULT: "32",
    Field.SIZE: "35",
    Field.ERRORS: "35",
    Field.MSM_ID: "35",
    Field.PROBE_ID: "35",
    Field.THROUGHPUT: "35",
}
_FAILED, _BOLD = "31", "1"


def show_batch(filled: FilledUnit, batch: int, encoding: RttEncoding, colour: bool) -> Iterator[str]:
    """Yield the lines of text for one batch of a unit."""
    for line in range(filled.targets.shape[1]):
        targets, segments = filled.targets[batch, line], filled.segments[batch, line]
        used = int(np.count_nonzero(targets))
        yield _paint(
            f"sequence {line}: {segments.max()} contexts, {used} tokens, {len(targets) - used} empty",
            _BOLD,
            colour,
        )
        for segment in range(1, segments.max() + 1):
            ids = targets[segments == segment]
            note = filled.notes[batch, line, segment - 1]
            statements = reference.decode(ids.tolist(), encoding)
            kind = f"{KIND_NAMES[note[NOTE_KIND]]}{', filler' if note[NOTE_FILLER] else ''}"
            head = f"  segment {segment}: {kind}, times {MODE_NAMES[note[NOTE_MODE]]}"
            yield f"{head}, {len(statements)} measurements, {len(ids)} tokens, source {statements[0].src}"
            previous: int | None = None
            for statement in statements:
                yield "    " + "  ".join(
                    _field(statement, field, previous, colour) for field in statement.order
                )
                if Field.TIME in statement.order:
                    previous = statement.seconds


def _field(statement: Statement, field: Field, previous: int | None, colour: bool) -> str:
    shade = _COLOURS[field]
    match field:
        case Field.SRC:
            text = f"from {statement.src}"
        case Field.DST:
            text = f"to {statement.dst}"
        case Field.TIME:
            seconds = statement.seconds or 0
            text = f"+{seconds - previous:,} s" if previous is not None else _time(seconds)
        case Field.RESULT:
            failed = statement.rtt == NO_REPLY
            shade = _FAILED if failed else shade
            text = "no reply" if failed else f"{statement.rtt:,.3f} ms"
        case Field.SIZE:
            text = f"{statement.size} bytes"
        case Field.ERRORS:
            text = f"{statement.errors} errors"
        case Field.MSM_ID:
            text = f"msm {statement.msm_id}"
        case Field.THROUGHPUT:
            text = f"{statement.throughput:g} Mbit/s"
        case _:
            text = f"probe {statement.probe_id}"
    return _paint(text, shade, colour)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Statistics:
    """Statistics of units. Shares of kinds and modes are of planned contexts; fillers are counted apart."""

    def __init__(self) -> None:
        self.sequences = self.places = self.tokens = 0
        self._roles = np.zeros(BYTE0, np.int64)
        self._notes: list[np.ndarray] = []
        self._segments: list[np.ndarray] = []
        self._bounds: list[np.ndarray] = []
        self._rows: set[int] = set()

    def add(self, filled: FilledUnit) -> None:
        targets = filled.targets.reshape(-1, filled.targets.shape[-1])
        notes = filled.notes.reshape(len(targets), -1, NOTES)
        self.sequences += len(targets)
        self.places += targets.size
        self.tokens += int(np.count_nonzero(targets))
        self._roles += tokens_by_role(targets)
        written = notes[..., NOTE_COUNT] > 0
        self._segments.append(written.sum(axis=1))
        self._notes.append(notes[written])
        planned = notes[written & (notes[..., NOTE_FILLER] == 0)][:, NOTE_CONTEXT]
        self._bounds.append(filled.unit.bound[planned])
        self._rows.update(np.unique(filled.unit.row[planned]).tolist())

    def summary(self) -> dict[str, Any]:
        notes = np.concatenate(self._notes) if self._notes else np.zeros((0, NOTES), np.int32)
        segments = np.concatenate(self._segments) if self._segments else np.zeros(1, np.int64)
        bounds = np.concatenate(self._bounds) if self._bounds else np.zeros(0, np.int64)
        filler = notes[:, NOTE_FILLER] == 1
        planned = notes[~filler]
        contexts = max(len(planned), 1)
        return {
            "sequences": self.sequences,
            "tokens": self.tokens,
            "padding_fraction": 1 - self.tokens / max(self.places, 1),
            "contexts_planned": len(planned),
            "contexts_filler": int(filler.sum()),
            "filler_token_fraction": float(notes[filler, NOTE_LENGTH].sum() / max(self.tokens, 1)),
            "unique_rows": len(self._rows),
            "kinds": _shares(planned[:, NOTE_KIND], KIND_NAMES),
            "timestamp_modes": _shares(planned[:, NOTE_MODE], MODE_NAMES),
            "source_cut_fraction": float((planned[:, NOTE_CUT] > 0).sum() / contexts),
            "source_unnamed_fraction": float((planned[:, NOTE_CUT] == UNNAMED).sum() / contexts),
            "segments_per_sequence": {"mean": float(segments.mean()), "max": int(segments.max())},
            "measurements_per_context": _quantiles(planned[:, NOTE_COUNT]),
            "context_length_bound": _quantiles(bounds),
            "context_length_before_packing": _quantiles(planned[:, NOTE_LENGTH]),
            "context_length_after_packing": _quantiles(notes[:, NOTE_LENGTH]),
            "tokens_by_role": {
                ROLE_NAMES[role]: int(count) for role, count in enumerate(self._roles) if count
            },
        }


def tokens_by_role(targets: np.ndarray) -> np.ndarray:
    """Number of tokens of each role, including its bytes and PREFIX_END."""
    counts = np.bincount(roles_of(targets)[targets != PAD], minlength=BYTE0)
    counts[MEASUREMENT] = np.count_nonzero(targets == MEASUREMENT)
    return counts[:BYTE0]


def collect(batches: Batches, count: int) -> Statistics:
    """The statistics of the next `count` batches, rounded up to whole units."""
    statistics = Statistics()
    seen = 0
    for unit in batches.units():
        statistics.add(unit)
        seen += len(unit)
        if seen >= count:
            break
    return statistics


def _shares(values: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    counts = np.bincount(values, minlength=len(names))
    return {name: float(count / max(len(values), 1)) for name, count in zip(names, counts, strict=True)}


def _quantiles(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    found = np.quantile(values, QUANTILES)
    return {f"p{100 * q:.0f}": float(value) for q, value in zip(QUANTILES, found, strict=True)} | {
        "mean": float(values.mean())
    }


#: Remedy for each stage that can be the bottleneck.
REMEDIES = {
    "plan": "planning is serial: a larger batch or longer sequences plan less often",
    "read": "faster storage or more threads; rows that stay in the page cache are read at memory speed",
    "fill": "more threads: filling holds no lock",
    "hand over": "the consumer is what is slow: the loader waits for it",
}


@dataclass(frozen=True)
class Stage:
    name: str
    seconds: float  # of work
    waiting: float  # wall-clock time beyond the work: another process had the core, or the disk was slow
    elements: int
    element: str


class TimedRows:
    """Rows that measure the time spent reading them, in seconds."""

    def __init__(self, rows: Rows):
        self._rows = rows
        self.seconds = self.wall = 0.0
        self.read_rows = 0

    @property
    def fingerprint(self) -> str:
        return self._rows.fingerprint

    @property
    def index(self) -> RowIndex:
        return self._rows.index

    def read(self, indices: Sequence[int] | np.ndarray) -> RowBlock:
        work, wall = time.thread_time(), time.perf_counter()
        block = self._rows.read(indices)
        self.seconds += time.thread_time() - work
        self.wall += time.perf_counter() - wall
        self.read_rows += len(block)
        return block


def profile(batches: Batches, seconds: float) -> dict[str, Any]:
    """Run and time the stages one after another in this thread, for about the given number of seconds."""
    rows = TimedRows(batches.stream.rows)
    filler = replace(batches.stream.filler(), rows=rows)
    plans = batches.plans()
    filler.fill(next(batches.plans()))  # compiles, and warms the cache
    rows.seconds = rows.wall = 0.0
    rows.read_rows = 0
    spent = {"plan": [0.0, 0.0], "fill": [0.0, 0.0], "hand over": [0.0, 0.0]}
    counts = {"units": 0, "contexts": 0, "batches": 0}
    tokens = 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        with _Clock(spent["plan"]):
            unit = next(plans, None)
        if unit is None:
            break
        with _Clock(spent["fill"]):
            filled = filler.fill(unit)
        with _Clock(spent["hand over"]):
            made = [filled.batch(index) for index in range(len(filled))]
        counts["units"] += 1
        counts["contexts"] += len(unit.row)
        counts["batches"] += len(made)
        tokens += int(np.count_nonzero(filled.targets))
    spent["fill"][0] -= rows.seconds
    spent["fill"][1] -= rows.wall
    stages = [
        _stage("plan", spent["plan"], counts["contexts"], "contexts"),
        _stage("read", [rows.seconds, rows.wall], rows.read_rows, "rows"),
        _stage("fill", spent["fill"], tokens, "tokens"),
        _stage("hand over", spent["hand over"], counts["batches"], "batches"),
    ]
    total = sum(stage.seconds + stage.waiting for stage in stages) or 1e-9
    slowest = max(stages, key=lambda stage: stage.seconds + stage.waiting)
    return {
        "stages": [
            {
                "stage": stage.name,
                "work_s": stage.seconds,
                "waiting_s": stage.waiting,
                "share": (stage.seconds + stage.waiting) / total,
                "elements": stage.element,
                "elements_per_s": stage.elements / max(stage.seconds + stage.waiting, 1e-9),
            }
            for stage in stages
        ],
        "tokens_per_s": tokens / total,
        "bottleneck": slowest.name,
        "advice": REMEDIES[slowest.name],
    }


def _stage(name: str, spent: list[float], elements: int, element: str) -> Stage:
    work, wall = spent
    return Stage(name, max(work, 0.0), max(wall - work, 0.0), elements, element)


class _Clock:
    """Context manager that adds its thread time and wall-clock time, in seconds, to a pair."""

    def __init__(self, pair: list[float]):
        self._pair = pair

    def __enter__(self) -> None:
        self._work, self._wall = time.thread_time(), time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._pair[0] += time.thread_time() - self._work
        self._pair[1] += time.perf_counter() - self._wall
