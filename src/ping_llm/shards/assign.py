"""Which split and which shard a measurement belongs to.

The data are read twice in the same order: once to count (rows of each split and stratum), once to write.
Each time the same `Assigner` decides, so both agree. Within a split, the rows of a stratum go to the shards
in turn, and each stratum begins where the one before it ended: shards are equal to within one row, and so is
every stratum in them.
"""

from dataclasses import dataclass, field

import numpy as np

from ping_llm.addresses import is_ipv4
from ping_llm.compiled import kernel
from ping_llm.shards.hashing import address_words, hash_words, pair_words
from ping_llm.shards.measurements import Columns
from ping_llm.shards.options import ShardOptions

#: A measurement that is in no split: it lies in a gap.
LEFT_OUT = -1

_DAY_US, _HOUR_US = 86_400 * 10**6, 3_600 * 10**6


@dataclass(frozen=True)
class TimeCuts:
    """Split i holds begins[i] <= time < ends[i], in µs."""

    begins: np.ndarray
    ends: np.ndarray


@dataclass
class Assigner:
    """Decides on consecutive batches; keeps count of the strata it has seen.

    Attributes:
      stratum_us: length of a stratum of time, a day or an hour.
    """

    options: ShardOptions
    cuts: TimeCuts | None
    stratum_us: int
    _numbers: dict[int, int] = field(default_factory=dict)
    _values: list[tuple[int, ...]] = field(default_factory=list)  # of each stratum, by column
    _seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # [strata, splits]

    def __post_init__(self) -> None:
        self.counts = np.zeros((0, len(self.options.fractions)), np.int64)

    def splits(self, batch: Columns) -> tuple[np.ndarray, np.ndarray]:
        """(split or LEFT_OUT, number of the stratum) of each row; counts the rows."""
        stratum = self._strata(batch)
        split = self._split(batch, stratum)
        kept = split != LEFT_OUT
        np.add.at(self.counts, (stratum[kept], split[kept]), 1)
        return split, stratum

    def _split(self, batch: Columns, stratum: np.ndarray) -> np.ndarray:
        by, seed = self.options.by, self.options.seed
        if by == "time":
            assert self.cuts is not None
            split = np.searchsorted(self.cuts.begins, batch.time, side="right") - 1
            return np.where(batch.time < self.cuts.ends[split], split, LEFT_OUT).astype(np.int64)
        if by == "probe":
            hashed = hash_words(seed, address_words(batch.src))
        elif by == "pair":
            hashed = hash_words(seed, pair_words(batch.src, batch.dst))
        elif self.options.stratify:
            hashed = np.empty(len(batch), np.uint64)
            keys = np.fromiter(self._numbers, np.uint64, len(self._numbers))
            _spread(stratum, keys, self._seen, hashed)
        else:
            hashed = hash_words(seed, _row_words(batch))
        return split_of_hash(hashed, self.options.fractions)

    def _strata(self, batch: Columns) -> np.ndarray:
        """Numbers of strata, in the order of their first row."""
        if not self.options.stratify:
            self.counts = self.counts if len(self.counts) else np.zeros((1, self.counts.shape[1]), np.int64)
            return np.zeros(len(batch), np.int64)
        words = np.stack([_STRATUM[name](batch, self.stratum_us) for name in self.options.stratify], axis=1)
        keys = hash_words(self.options.seed, words)
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        numbers = np.empty(len(unique), np.int64)
        for position in np.argsort(first, kind="stable").tolist():
            key = int(unique[position])
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers)
                self._values.append(tuple(words[first[position]].tolist()))
            numbers[position] = self._numbers[key]
        new = len(self._numbers) - len(self.counts)
        self.counts = np.concatenate([self.counts, np.zeros((new, self.counts.shape[1]), np.int64)])
        self._seen = np.concatenate([self._seen, np.zeros(new, np.int64)])
        return numbers[inverse.ravel()]

    def order_of_strata(self) -> np.ndarray:
        """Strata one after another: by the column with the most values first.

        Each value of that column is then a contiguous run, dealt out to within one row. The others' values
        add up the remainders of their strata, but being few they are large.
        """
        if not self._values:
            return np.arange(len(self.counts))
        values = np.array(self._values, np.uint64)
        columns = sorted(range(values.shape[1]), key=lambda column: len(np.unique(values[:, column])))
        return np.lexsort([values[:, column] for column in columns])


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
def _spread(stratum, keys, seen, result):
    """Evenly spread hashes for the rows of each stratum: its counter, bits reversed, shifted by its key.

    After n rows of a stratum each split has its share to within log2(n) rows; a hash would be off by √n.
    """
    for row in range(len(stratum)):
        number = stratum[row]
        value = np.uint64(seen[number])
        reverse = np.uint64(0)
        for _ in range(64):
            reverse = (reverse << np.uint64(1)) | (value & np.uint64(1))
            value = value >> np.uint64(1)
        seen[number] += 1
        result[row] = reverse ^ keys[number]


_STRATUM = {
    "time": lambda batch, length: (batch.time // length).astype(np.uint64),
    "msm_id": lambda batch, _: batch.msm_id.astype(np.uint64),
    "ip_version": lambda batch, _: is_ipv4(batch.src).astype(np.uint64),
    "failed": lambda batch, _: (batch.rtt < 0).astype(np.uint64),
    "probe_id": lambda batch, _: batch.probe_id.astype(np.uint64),
}


def stratum_length_us(first_us: int, last_us: int) -> int:
    """Days, or hours where there are less than three days."""
    return _DAY_US if last_us - first_us >= 3 * _DAY_US else _HOUR_US


@dataclass
class Dealer:
    """Deals the rows of each split to its shards in turn.

    Attributes:
      next_shard: [strata, splits]: the shard, within its split, of the next row.
      first_shard: [splits]: number of a split's first shard.
    """

    next_shard: np.ndarray
    shards: np.ndarray
    first_shard: np.ndarray

    @classmethod
    def plan(cls, counts: np.ndarray, order: np.ndarray, shards: list[int]) -> "Dealer":
        """From the counts [strata, splits], the order of the strata and the shards of each split."""
        starts = np.empty_like(counts)
        starts[order] = np.cumsum(counts[order], axis=0) - counts[order]
        per_split = np.array(shards, np.int64)
        return cls(starts % np.maximum(per_split, 1), per_split, np.cumsum(per_split) - per_split)

    def deal(self, split: np.ndarray, stratum: np.ndarray) -> np.ndarray:
        """The number of the shard of each row, LEFT_OUT for none."""
        result = np.empty(len(split), np.int64)
        _deal(split, stratum, self.next_shard, self.shards, self.first_shard, result)
        return result


@kernel
def _deal(split, stratum, next_shard, shards, first_shard, result):
    for row in range(len(split)):
        part = split[row]
        if part < 0:
            result[row] = part
            continue
        position = next_shard[stratum[row], part]
        result[row] = first_shard[part] + position
        next_shard[stratum[row], part] = (position + 1) % shards[part]
