"""The newest results of each pair and of each source, in bounded memory.

All data are arrays with one row per pair or per source, and a state file holds these arrays. A result takes
20 bytes, so 100,000 pairs of 32 results take 64 MB, and 133 MB with their kept answers and tests. Results are
kept in time order; one older than all results of a full row is not kept.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.measurements.addresses import is_ipv4

#: Number of bytes of a packed address that form its network, which alarms can share: /24, and /48 of IPv6.
NETWORK_BYTES = {4: 15, 6: 6}

#: Returned as the place of a result that was not kept, and of a duplicate.
NOT_KEPT, DUPLICATE = -1, -2


def network_of(packed: bytes) -> bytes:
    """Return the network of a packed address, filled with zeros."""
    known = NETWORK_BYTES[4 if is_ipv4(np.frombuffer(packed, np.uint8)[None])[0] else 6]
    return packed[:known].ljust(16, b"\0")


class Numbers:
    """Numbers of byte strings, from 0, in the order in which they were added."""

    def __init__(self, keys: Iterable[bytes] = ()):
        self._of = {key: number for number, key in enumerate(keys)}
        self.keys = list(self._of)

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, key: bytes) -> int:
        number = self._of.get(key)
        if number is None:
            number = self._of[key] = len(self.keys)
            self.keys.append(key)
        return number

    def find(self, key: bytes) -> int:
        """Return the number of a byte string, or -1 if it has none."""
        return self._of.get(key, -1)

    def packed(self) -> np.ndarray:
        width = len(self.keys[0]) if self.keys else 16
        return np.frombuffer(b"".join(self.keys), np.uint8).reshape(-1, width)


class Rows:
    """Arrays that grow together, by doubling; `fields` are (dtype, width or None for one value, fill)."""

    def __init__(self, fields: dict[str, tuple[Any, int | None, Any]]):
        self._fields = fields
        self.size = 0
        self.columns: dict[str, np.ndarray] = {}
        self._grow(1024)

    def _grow(self, room: int) -> None:
        for name, (dtype, width, fill) in self._fields.items():
            made = np.full(room if width is None else (room, width), fill, dtype)
            if name in self.columns:
                made[: self.size] = self.columns[name][: self.size]
            self.columns[name] = made

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def add(self) -> int:
        """Add a row; return its number."""
        if self.size == len(next(iter(self.columns.values()))):
            self._grow(2 * self.size)
        self.size += 1
        return self.size - 1

    def keep(self, rows: np.ndarray) -> None:
        """Keep only these rows, in this order."""
        kept = {name: column[rows] for name, column in self.columns.items()}
        self.size = len(rows)
        self.restore(kept)

    def save(self) -> dict[str, np.ndarray]:
        return {name: column[: self.size] for name, column in self.columns.items()}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Restore the arrays of `save`."""
        self.size = len(next(iter(saved.values())))
        self.columns = {}
        self._grow(max(1024, self.size))
        for name, column in self.columns.items():
            if saved[name].shape[1:] != column.shape[1:]:
                raise PingError(
                    f"the state was saved with other pair_results or source_results ({name} has "
                    f"{saved[name].shape[1:]} per row, not {column.shape[1:]}): use those, or another folder"
                )
            column[: self.size] = saved[name]


@kernel
def insert(
    times: np.ndarray, rtts: np.ndarray, marks: np.ndarray, count: int, time: int, rtt: float, mark: int
) -> int:
    """Insert a result in time order; a full row loses its oldest. Return the place, NOT_KEPT or DUPLICATE."""
    place = count
    while place > 0 and times[place - 1] > time:
        place -= 1
    look = place - 1
    while look >= 0 and times[look] == time:
        if rtts[look] == rtt and marks[look] == mark:
            return DUPLICATE
        look -= 1
    if count < len(times):
        for index in range(count, place, -1):
            times[index], rtts[index], marks[index] = times[index - 1], rtts[index - 1], marks[index - 1]
    else:
        if place == 0:
            return NOT_KEPT
        place -= 1
        for index in range(place):
            times[index], rtts[index], marks[index] = times[index + 1], rtts[index + 1], marks[index + 1]
    times[place], rtts[place], marks[place] = time, rtt, mark
    return place


class Past:
    """Results by pair and by source.

    Attributes:
      pairs: `Rows`: addresses as numbers, newest results and time of the last result of each pair.
      sources: `Rows`: newest results of each source, with their destinations.
    """

    def __init__(self, pair_results: int, source_results: int, more: dict[str, tuple[Any, int | None, Any]]):
        self.addresses, self.networks = Numbers(), Numbers()
        self._pair_keys, self._source_keys = Numbers(), Numbers()
        self.pairs = Rows(
            {
                "src": (np.int32, None, 0),
                "dst": (np.int32, None, 0),
                "src_network": (np.int32, None, 0),
                "dst_network": (np.int32, None, 0),
                "source": (np.int32, None, 0),
                "count": (np.int32, None, 0),
                "times": (np.int64, pair_results, 0),
                "rtts": (np.float64, pair_results, 0),
                "marks": (np.int32, pair_results, 0),
                "heard": (np.int64, None, 0),
            }
            | more
        )
        self.sources = Rows(
            {
                "count": (np.int32, None, 0),
                "times": (np.int64, source_results, 0),
                "rtts": (np.float64, source_results, 0),
                "marks": (np.int32, source_results, 0),
            }
        )

    def __len__(self) -> int:
        return self.pairs.size

    def pair_of(self, src: bytes, dst: bytes) -> tuple[int, bool]:
        """Return the number of a pair, which is added if new, and whether its source is new."""
        pair = self._pair_keys.find(src + dst)
        if pair >= 0:
            return pair, False
        pair, number = self._pair_keys.of(src + dst), self.pairs.add()
        assert pair == number
        new_source = self._source_keys.find(src) < 0
        if new_source:
            self._source_keys.of(src)
            self.sources.add()
        row = self.pairs.columns
        row["src"][pair], row["dst"][pair] = self.addresses.of(src), self.addresses.of(dst)
        row["src_network"][pair] = self.networks.of(network_of(src))
        row["dst_network"][pair] = self.networks.of(network_of(dst))
        row["source"][pair] = self._source_keys.of(src)
        return pair, new_source

    def address(self, number: int) -> bytes:
        return self.addresses.keys[number]

    def push(self, pair: int, time: int, rtt: float) -> int:
        """Keep a result of a pair; return its place among the pair's results, NOT_KEPT or DUPLICATE."""
        pairs, sources = self.pairs.columns, self.sources.columns
        count = int(pairs["count"][pair])
        place = int(
            insert(pairs["times"][pair], pairs["rtts"][pair], pairs["marks"][pair], count, time, rtt, 0)
        )
        if place == DUPLICATE:
            return place
        if place >= 0 and count < pairs["times"].shape[1]:
            pairs["count"][pair] = count + 1
        source, room = int(pairs["source"][pair]), sources["times"].shape[1]
        if room:
            held = int(sources["count"][source])
            kept = insert(
                sources["times"][source], sources["rtts"][source], sources["marks"][source], held, time, rtt,
                int(pairs["dst"][pair]),
            )  # fmt: skip
            if kept >= 0 and held < room:
                sources["count"][source] = held + 1
        return place

    def drop(self, pair: int, begin: int, end: int) -> None:
        """Remove a pair's results with begin <= time < end."""
        row = self.pairs.columns
        count = int(row["count"][pair])
        time = row["times"][pair, :count]
        left = (time < begin) | (time >= end)
        for name in ("times", "rtts", "marks"):
            row[name][pair, : left.sum()] = row[name][pair, :count][left]
        row["count"][pair] = left.sum()

    def context(self, pair: int, before: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the context of a question about a pair: destinations [n, 16], times and RTTs, oldest first.

        It has the pair's own results and those of the source to other destinations, all before `before`.
        """
        pairs, sources = self.pairs.columns, self.sources.columns
        count, source, dst = int(pairs["count"][pair]), int(pairs["source"][pair]), int(pairs["dst"][pair])
        held = int(sources["count"][source])
        marks = sources["marks"][source, :held]
        others = marks != dst
        time = np.concatenate([pairs["times"][pair, :count], sources["times"][source, :held][others]])
        rtt = np.concatenate([pairs["rtts"][pair, :count], sources["rtts"][source, :held][others]])
        mark = np.concatenate([np.full(count, dst, np.int32), marks[others]])
        earlier = time < before
        order = np.argsort(time[earlier], kind="stable")
        packed = b"".join(self.addresses.keys[number] for number in mark[earlier][order].tolist())
        packed_dst = np.frombuffer(packed, np.uint8).reshape(-1, 16)
        return packed_dst, time[earlier][order], rtt[earlier][order]

    def forget(self, most: int, always: Iterable[int] = ()) -> np.ndarray | None:
        """Drop the pairs without a result for the longest time, down to nine tenths of `most`.

        Returns:
          int64 [pairs before]: the new number of each pair, -1 for a dropped one; None: nothing was dropped.
        """
        if self.pairs.size <= most:
            return None
        heard = self.pairs["heard"][: self.pairs.size].copy()
        heard[list(always)] = np.iinfo(np.int64).max
        kept = np.sort(np.argsort(-heard, kind="stable")[: max(1, most * 9 // 10)])
        moved = np.full(self.pairs.size, -1, np.int64)
        moved[kept] = np.arange(len(kept))
        self.pairs.keep(kept)
        sources, renumbered = np.unique(self.pairs["source"][: len(kept)], return_inverse=True)
        self.sources.keep(sources)
        self.pairs["source"][: len(kept)] = renumbered
        self._renumber_addresses(sources)
        return moved

    def _renumber_addresses(self, sources: np.ndarray) -> None:
        """Drop addresses that no pair and no kept result uses."""
        size, held = self.pairs.size, self.sources.size
        marks = self.sources["marks"]
        filled = np.arange(marks.shape[1]) < self.sources["count"][:held, None]
        used = np.unique(
            np.concatenate([self.pairs["src"][:size], self.pairs["dst"][:size], marks[:held][filled]])
        )
        new = np.zeros(len(self.addresses), np.int32)
        new[used] = np.arange(len(used))
        for name in ("src", "dst"):
            self.pairs[name][:size] = new[self.pairs[name][:size]]
        marks[:held] = np.where(filled, new[marks[:held]], 0)
        self.addresses = Numbers(self.addresses.keys[number] for number in used.tolist())
        self._source_keys = Numbers(self._source_keys.keys[number] for number in sources.tolist())
        self._number_pairs()

    def _number_pairs(self) -> None:
        size, keys = self.pairs.size, self.addresses.keys
        src, dst = self.pairs["src"][:size].tolist(), self.pairs["dst"][:size].tolist()
        self._pair_keys = Numbers(keys[a] + keys[b] for a, b in zip(src, dst, strict=True))
        self.networks = Numbers()
        for name in ("src", "dst"):
            numbers = [self.networks.of(network_of(keys[a])) for a in self.pairs[name][:size].tolist()]
            self.pairs[f"{name}_network"][:size] = numbers

    def save(self) -> dict[str, np.ndarray]:
        out = {"addresses": self.addresses.packed(), "source_keys": self._source_keys.packed()}
        out |= {f"pair_{name}": column for name, column in self.pairs.save().items()}
        return out | {f"source_{name}": column for name, column in self.sources.save().items()}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        self.addresses = Numbers(row.tobytes() for row in saved["addresses"])
        self._source_keys = Numbers(row.tobytes() for row in saved["source_keys"])
        for prefix, rows in (("pair_", self.pairs), ("source_", self.sources)):
            rows.restore({name: saved[prefix + name] for name in rows.columns})
        self._number_pairs()
