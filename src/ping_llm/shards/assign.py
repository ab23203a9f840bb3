"""Which split a measurement belongs to."""

from dataclasses import dataclass

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.shards.hashing import address_words, hash_words, pair_words
from ping_llm.shards.measurements import Columns
from ping_llm.shards.options import ShardOptions
from ping_llm.shards.strata import Numbers

#: A measurement that is in no split: it lies in a gap.
LEFT_OUT = -1


@dataclass(frozen=True)
class TimeCuts:
    """Split i holds begins[i] <= time < ends[i], in µs."""

    begins: np.ndarray
    ends: np.ndarray


class Assigner:
    """Decides on consecutive batches. The data are read twice, to count and to write; a new one each time."""

    def __init__(self, options: ShardOptions, cuts: TimeCuts | None):
        self._options, self._cuts = options, cuts
        self._strata = Numbers()
        self._keys = np.zeros(0, np.uint64)
        self._seen = np.zeros(0, np.int64)

    def splits(self, batch: Columns, values: np.ndarray) -> np.ndarray:
        """The index of each row's split, or LEFT_OUT.

        Args:
          values: int64 [n, columns] of the strata.
        """
        by, seed = self._options.by, self._options.seed
        if by == "time":
            assert self._cuts is not None
            split = np.searchsorted(self._cuts.begins, batch.time, side="right") - 1
            return np.where(batch.time < self._cuts.ends[split], split, LEFT_OUT).astype(np.int64)
        if by == "probe":
            hashed = hash_words(seed, address_words(batch.src))
        elif by == "pair":
            hashed = hash_words(seed, pair_words(batch.src, batch.dst))
        elif self._options.stratify:
            hashed = self._spread_over_strata(hash_words(seed, values.view(np.uint64)))
        else:
            hashed = hash_words(seed, _row_words(batch))
        return split_of_hash(hashed, self._options.fractions)

    def _spread_over_strata(self, keys: np.ndarray) -> np.ndarray:
        strata = self._strata.of(keys)
        new = len(self._strata) - len(self._seen)
        if new:
            self._seen = np.append(self._seen, np.zeros(new, np.int64))
            self._keys = np.append(self._keys, np.zeros(new, np.uint64))
            self._keys[strata] = keys
        hashed = np.empty(len(keys), np.uint64)
        _spread(strata, self._keys, self._seen, hashed)
        return hashed


def split_of_hash(hashed: np.ndarray, fractions: tuple[float, ...]) -> np.ndarray:
    """The hash as a share of 2^64, in the ranges of the fractions."""
    limits = np.cumsum(fractions)[:-1]
    bounds = np.array([min(round(limit * 2.0**64), 2**64 - 1) for limit in limits.tolist()], np.uint64)
    split = np.searchsorted(bounds, hashed, side="right")
    # A last split of nothing would still get the one value 2^64 - 1.
    return np.minimum(split, max(index for index, part in enumerate(fractions) if part > 0)).astype(np.int64)


def _row_words(batch: Columns) -> np.ndarray:
    numbers = [
        batch.time,
        batch.rtt.view(np.int64),
        batch.msm_id,
        batch.size,
        batch.packet_error_count,
        batch.probe_id,
    ]
    words = np.stack(numbers, axis=1).view(np.uint64)
    return np.concatenate([address_words(batch.src), address_words(batch.dst), words], axis=1)


@kernel
def _spread(strata, keys, seen, result):
    """Evenly spread hashes for the rows of each stratum: its counter, bits reversed, shifted by its key.

    After n rows of a stratum each split has its share to within log2(n) rows; a hash would be off by √n.
    """
    for row in range(len(strata)):
        number = strata[row]
        value = np.uint64(seen[number])
        reverse = np.uint64(0)
        for _ in range(64):
            reverse = (reverse << np.uint64(1)) | (value & np.uint64(1))
            value = value >> np.uint64(1)
        seen[number] += 1
        result[row] = reverse ^ keys[number]
