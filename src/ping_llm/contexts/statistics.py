"""What a stream of batches is made of: shares, lengths, tokens by role, padding."""

from typing import Any

import numpy as np

from ping_llm.contexts.batches import Batches
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
from ping_llm.contexts.shape import KIND_NAMES, MODE_NAMES, UNNAMED
from ping_llm.contexts.units import FilledUnit
from ping_llm.tokens.vocab import BYTE0, MEASUREMENT, PREFIX_END, ROLE_NAMES

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Statistics:
    """Adds up units. Shares of kinds and modes are those of planned contexts; fillers are counted apart."""

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
    """How many tokens belong to each role, its bytes and PREFIX_END included."""
    starts = (targets < BYTE0) & (targets != PREFIX_END)
    at = np.where(starts, np.arange(targets.shape[1]), 0)
    role = np.take_along_axis(targets, np.maximum.accumulate(at, axis=1), axis=1)
    counts = np.bincount(role[targets != 0], minlength=BYTE0)
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
