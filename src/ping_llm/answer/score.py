"""Bits of measurements by field: improbable values cost many bits.

Measurements are grouped by source and scored in time order, each given those before it. A window holds as
many measurements as fit the length that the model was trained on. The next window repeats the newer half of
the previous one as its context. So every measurement is scored once, and after the first window of a source,
each has at least half a window of context. The bits are those of the tokens without masks, so their sum is
the training loss on the same tokens.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.conditions import COLUMNS
from ping_llm.measurements.columns import Columns
from ping_llm.tokens import vocab
from ping_llm.tokens.vocab import Field

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Largest number of sources whose last measurements are kept between the parts of a file.
_MOST_SOURCES = 20_000
#: Windows per batch.
_TOGETHER = 16

#: Columns of the bits: the token MEASUREMENT ("start"), and each field.
NAMES = ("start", "src", "dst", "time", "result", *vocab.OPTIONAL)
_USUAL = NAMES[: -len(vocab.OPTIONAL)]
#: Column by field; the last entry is that of vocab.NO_FIELD.
_COLUMN_OF_FIELD = np.zeros(len(Field) + 1, np.int64)
_COLUMN_OF_FIELD[[Field.SRC, Field.DST, Field.TIME, Field.RESULT]] = 1, 2, 3, 4
for _name, _field in vocab.OPTIONAL.items():
    _COLUMN_OF_FIELD[_field] = NAMES.index(_name)


@dataclass(frozen=True)
class Scored:
    """Scores of some measurements of a file.

    Attributes:
      columns: the measurements.
      row: int64 [n], their rows in the file.
      bits: float64 [n, NAMES]; 0 for fields that are not stated (the source is stated once per window, and
        optional fields only if the model was trained on them).
      known: int64 [n], number of earlier measurements of the source in the context of each.
      window: all measurements of the windows, context included.
      place: int64 [n], index of each scored measurement in `window`; window[place - known : place] is its
        context.
    """

    columns: Columns
    row: np.ndarray
    bits: np.ndarray
    known: np.ndarray
    window: Columns
    place: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.bits.sum(axis=1)


class Scorer:
    """Scores a stream part by part, and keeps the last measurements of each source between parts."""

    def __init__(self, model: "Model"):
        self._model = model
        self._past: OrderedDict[bytes, Columns] = OrderedDict()
        self._first_row = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of NAMES that the model can state."""
        return (*_USUAL, *self._model.optional_fields)

    def add(self, part: Columns) -> Iterator[Scored]:
        """Score one part of the stream."""
        windows = self._windows(part)
        while together := list(itertools.islice(windows, _TOGETHER)):
            yield self._score(together)
        self._first_row += len(part)

    def windows(self, part: Columns, count: int) -> list[np.ndarray]:
        """Return the tokens of the first `count` windows, as they would be scored."""
        told = [columns for columns, _, _ in itertools.islice(self._windows(part), count)]
        if not told:
            return []
        ids, offsets, starts = encode_windows(self._model, told)
        return [ids[offsets[begin] : offsets[end]] for begin, end in itertools.pairwise(starts)]

    def _windows(self, part: Columns) -> Iterator[tuple[Columns, np.ndarray, int]]:
        order = np.lexsort((part.time, *part.src.T[::-1]))
        sources = part.src[order]
        edges = np.flatnonzero((np.diff(sources, axis=0, prepend=sources[:1]) != 0).any(axis=1))
        bounds = [0, *edges.tolist(), len(part)] if len(part) else [0]
        for begin, end in itertools.pairwise(bounds):
            yield from self._windows_of_source(part, order[begin:end])

    def _windows_of_source(
        self, part: Columns, rows: np.ndarray
    ) -> Iterator[tuple[Columns, np.ndarray, int]]:
        """Windows of one source: (measurements, rows of the scored ones, number of context-only ones)."""
        source = part.src[rows[0]].tobytes()
        mine = part.take(rows)
        past = self._past.pop(source, None)
        most = self._most(part.src[rows[:1]])
        start = 0
        while start < len(mine):
            told = 0 if past is None else min(len(past), most // 2)
            take = min(most - told, len(mine) - start)
            fresh = mine.take(np.arange(start, start + take))
            window = (
                fresh
                if past is None or not told
                else Columns.concatenate([past.take(np.arange(len(past) - told, len(past))), fresh])
            )
            yield window, self._first_row + rows[start : start + take], told
            start += take
            past = window.take(np.arange(max(0, len(window) - most // 2), len(window)))
        if past is not None:
            self._past[source] = past
            if len(self._past) > _MOST_SOURCES:
                self._past.popitem(last=False)

    def _most(self, src: np.ndarray) -> int:
        """Number of measurements that always fit: each with the longest time, the source address once."""
        ipv4 = (src[0, :10] == 0).all() and (src[0, 10:12] == 255).all()
        address = 5 if ipv4 else 17
        each = 1 + address + 5 + 1 + self._model.encoding.bytes
        each += sum(vocab.OPTIONAL_LENGTHS[name] for name in self._model.optional_fields)
        return max((self._model.config.max_length - address - 9) // each, 1)

    def _score(self, windows: list[tuple[Columns, np.ndarray, int]]) -> Scored:
        model = self._model
        ids, offsets, starts = encode_windows(model, [columns for columns, _, _ in windows])
        # One segment per row: windows are of similar length, so packing would gain little.
        length = model.config.max_length
        batch = {
            name: np.zeros((_TOGETHER, length), np.int32) for name in ("inputs", "targets", "segmentation")
        }
        for row, (begin, end) in enumerate(itertools.pairwise(starts)):
            tokens = ids[offsets[begin] : offsets[end]]
            batch["targets"][row, : len(tokens)] = tokens
            batch["inputs"][row, 1 : len(tokens)] = tokens[:-1]
            batch["segmentation"][row, : len(tokens)] = 1
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), (_TOGETHER, length))
        log_probabilities = model.engine.log_probabilities(
            batch["inputs"], batch["targets"], positions, batch["segmentation"]
        )
        flat = np.concatenate(
            [
                log_probabilities[row, : offsets[end] - offsets[begin]]
                for row, (begin, end) in enumerate(itertools.pairwise(starts))
            ]
        )
        bits = field_bits(ids, offsets, -flat.astype(np.float64) / np.log(2))
        told = Columns.concatenate([columns for columns, _, _ in windows])
        known = np.concatenate([np.arange(context, len(columns)) for columns, _, context in windows])
        begins = np.repeat(starts[:-1], [len(columns) - context for columns, _, context in windows])
        place = begins + known
        rows = np.concatenate([window_rows for _, window_rows, _ in windows])
        return Scored(told.take(place), rows, bits[place], known, told, place)


def encode_windows(model: "Model", windows: list[Columns]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode windows: tokens, offset of each measurement, and index of each window's first measurement."""
    from ping_llm.tokens.columns import StatementColumns, encode_columns  # imported late: it loads Numba

    starts = np.cumsum([0] + [len(columns) for columns in windows])
    total = int(starts[-1])
    out = StatementColumns.empty(total)
    out.first[starts[:-1]] = True
    out.src[:] = np.concatenate([columns.src for columns in windows])
    out.dst[:] = np.concatenate([columns.dst for columns in windows])
    out.src_known[:] = out.dst_known[:] = 0
    time = np.concatenate([columns.time for columns in windows])
    out.seconds[:] = np.where(time >= 0, time // 1_000_000, -1)
    out.rtt[:] = np.concatenate([columns.rtt for columns in windows])
    for name in model.optional_fields:
        getattr(out, name)[:] = np.concatenate([columns.column(COLUMNS[name]) for columns in windows])
    out.state(model.optional_fields, model.has_time)
    ids, offsets = encode_columns(out, model.encoding)
    return ids, offsets, starts


def field_bits(ids: np.ndarray, offsets: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Sum the bits of tokens by measurement and field; PREFIX_END counts to its address."""
    count = len(offsets) - 1
    measurement = np.repeat(np.arange(count), np.diff(offsets))
    column = _COLUMN_OF_FIELD[vocab.fields_of(ids)]
    sums = np.bincount(measurement * len(NAMES) + column, bits, count * len(NAMES))
    return sums.reshape(count, len(NAMES))
