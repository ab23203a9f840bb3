"""Assignment of measurements to splits: by a hash of the source, pair or row, or by time.

The hash is the same on every machine and in every version (docs/formats.md). DuckDB's hash() is not used, as
it may change with its version: a source must stay in its split when data are added or programs are updated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.hashing import mix_one
from ping_llm.measurements.addresses import is_ipv4
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.parquet import ParquetInput
from ping_llm.measurements.schema import DAY_US, END_TIME_US, HOUR_US
from ping_llm.splits.options import ShardOptions


@kernel
def absorb(state, words, result):
    """Set result[i] to the hash of words[i, :] with an initial state."""
    for row in range(len(words)):
        value = mix_one(np.uint64(state))
        for column in range(words.shape[1]):
            value = mix_one(value ^ words[row, column])
        result[row] = value


def hash_words(seed: int, words: np.ndarray) -> np.ndarray:
    """Hash each row of uint64 [n, k] to uint64 [n]."""
    result = np.empty(len(words), np.uint64)
    absorb(np.uint64(seed), np.ascontiguousarray(words, np.uint64), result)
    return result


def address_words(packed: np.ndarray) -> np.ndarray:
    """Convert packed addresses to big-endian words, uint64 [n, 2]."""
    return np.ascontiguousarray(packed).view(">u8").astype(np.uint64).reshape(-1, 2)


def pair_words(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Words of both addresses, uint64 [n, 4], the smaller first, so that both directions are one pair."""
    first, second = address_words(one), address_words(other)
    swap = (first[:, 0] > second[:, 0]) | ((first[:, 0] == second[:, 0]) & (first[:, 1] > second[:, 1]))
    return np.where(
        swap[:, None], np.concatenate([second, first], axis=1), np.concatenate([first, second], axis=1)
    )


_VALUES = {
    "time": lambda batch, length: batch.time // length,
    "msm_id": lambda batch, _: batch.msm_id,
    "ip_version": lambda batch, _: is_ipv4(batch.src).astype(np.int64),
    "failed": lambda batch, _: (batch.rtt < 0).astype(np.int64),
    "probe_id": lambda batch, _: batch.probe_id,
}


def stratum_length_us(first_us: int, last_us: int) -> int:
    """Length of a time stratum, in µs: a day, or an hour if the data span less than three days."""
    return DAY_US if last_us - first_us >= 3 * DAY_US else HOUR_US


def stratum_values(batch: Columns, names: Sequence[str], time_us: int) -> np.ndarray:
    """The values of the strata for each row, int64 [n, columns]."""
    values = [_VALUES[name](batch, time_us).astype(np.int64) for name in names]
    return np.stack(values, axis=1) if values else np.zeros((len(batch), 0), np.int64)


class Numbers:
    """Numbers distinct values consecutively."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, values: np.ndarray) -> np.ndarray:
        """The numbers of integers [n], int64 [n]; consecutive batches share the numbers."""
        unique, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        numbers = np.empty(len(unique), np.int64)
        for position in np.argsort(first, kind="stable").tolist():
            numbers[position] = self._numbers.setdefault(int(unique[position]), len(self._numbers))
        return numbers[inverse.ravel()]


#: Split index of a measurement that is in no split, because it is in a gap.
LEFT_OUT = -1


@dataclass(frozen=True)
class TimeCuts:
    """Split i holds begins[i] <= time < ends[i], in µs."""

    begins: np.ndarray
    ends: np.ndarray


class Assigner:
    """Assigns the rows of consecutive batches to splits.

    The data are read twice, to count and to write; each pass needs a new Assigner.
    """

    def __init__(self, options: ShardOptions, cuts: TimeCuts | None):
        self._options, self._cuts = options, cuts
        self._strata = Numbers()
        self._keys = np.zeros(0, np.uint64)
        self._seen = np.zeros(0, np.int64)

    def splits(self, batch: Columns, values: np.ndarray) -> np.ndarray:
        """The index of each row's split, or LEFT_OUT.

        Args:
          values: int64 [n, columns], the values of the strata.
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
    """The split of each hash: the hash as a share of 2^64, in the ranges of the fractions."""
    limits = np.cumsum(fractions)[:-1]
    bounds = np.array([min(round(limit * 2.0**64), 2**64 - 1) for limit in limits.tolist()], np.uint64)
    split = np.searchsorted(bounds, hashed, side="right")
    # A last split with fraction 0 would otherwise get the one value 2^64 - 1.
    return np.minimum(split, max(index for index, part in enumerate(fractions) if part > 0)).astype(np.int64)


def _row_words(batch: Columns) -> np.ndarray:
    numbers = [
        batch.time,
        batch.rtt.view(np.int64),
        *(batch.column(name) for name in ("msm_id", "size", "packet_error_count", "probe_id")),
    ]
    words = np.stack(numbers, axis=1).view(np.uint64)
    return np.concatenate([address_words(batch.src), address_words(batch.dst), words], axis=1)


@kernel
def _spread(strata, keys, seen, result):
    """Evenly spread hashes for the rows of each stratum: its counter with bits reversed, XOR its key.

    After n rows of a stratum each split has its share to within log2(n) rows; with a hash the error is √n.
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


def time_range(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> tuple[int, int]:
    """The first and last time, in µs."""
    query = f"SELECT min(epoch_us(event_time)), max(epoch_us(event_time)) FROM {data.scan}"
    first, last = connection.sql(query + " WHERE isfinite(event_time)").fetchall()[0]
    return first or 0, last or 0


def find_cuts(connection: duckdb.DuckDBPyConnection, data: ParquetInput, options: ShardOptions) -> TimeCuts:
    """Times that divide the rows by the fractions of the splits, as closely as equal times allow.

    Counting rows per hour, then per time within the hour of a cut, needs only a few thousand numbers in
    memory; the times are not sorted.
    """
    hours = _histogram(connection, data, f"epoch_us(event_time) // {HOUR_US}", "isfinite(event_time)")
    ends = np.cumsum(hours[:, 1])
    cuts = [0]
    for fraction in np.cumsum(options.fractions)[:-1].tolist():
        wanted = round(fraction * int(ends[-1]))
        position = int(np.searchsorted(ends, wanted, side="left").clip(0, len(hours) - 1))
        hour = int(hours[position, 0])
        inside = f"epoch_us(event_time) // {HOUR_US} = {hour}"
        times = _histogram(connection, data, "epoch_us(event_time)", inside)
        before = int(ends[position] - hours[position, 1])
        # Rows before each of these times, and before the end of the hour.
        candidates = np.append(times[:, 0], (hour + 1) * HOUR_US)
        rows_before = before + np.append(0, np.cumsum(times[:, 1]))
        cuts.append(int(candidates[np.abs(rows_before - wanted).argmin()]))
    cuts.append(END_TIME_US)
    begins = np.array(cuts[:-1], np.int64)
    begins[1:] += options.gap_seconds * 10**6
    ends_us = np.array(cuts[1:], np.int64)
    for index in options.used:
        if options.gap_seconds and begins[index] >= ends_us[index]:
            raise PingError(
                f"The gap of {options.gap_seconds:,} s leaves no time for the split {options.splits[index]}: "
                "give a smaller --gap or a larger fraction."
            )
    return TimeCuts(begins, ends_us)


def _histogram(connection: duckdb.DuckDBPyConnection, data: ParquetInput, key: str, where: str) -> np.ndarray:
    query = f"SELECT {key} AS k, count(*) AS n FROM {data.scan} WHERE {where} GROUP BY k ORDER BY k"
    found = connection.sql(query).fetchnumpy()
    return np.stack([np.asarray(found["k"], np.int64), np.asarray(found["n"], np.int64)], axis=1)
