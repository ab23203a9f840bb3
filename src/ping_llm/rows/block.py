"""Blocks of many probe rows, as NumPy columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from ping_llm.measurements.schema import KINDS, PING

#: Bit positions of kind and throughput. A record holds size + (kind << KIND_BITS) in place of the size, which
#: gives the same bytes for pings. A size, or -1 if unknown, takes 17 bits after 1 is added. Above the two
#: bits of the kind is the throughput: 0, or 1 + its code (`measurements.throughput`).
KIND_BITS, THROUGHPUT_BITS = 17, 19


@dataclass(frozen=True)
class RowBlock:
    """R rows with N measurements in total; row r has [offsets[r], offsets[r + 1]) of every column.

    Unknown msm_id, probe_id, size and packet_error_count are -1; rtt is -1.0 where there was no reply.
    """

    src: np.ndarray  # uint8 [R, 16]
    offsets: np.ndarray  # int64 [R + 1]
    time: np.ndarray  # int64 [N], microseconds since 1970
    dst: np.ndarray  # uint8 [N, 16]
    rtt: np.ndarray  # float64 [N], ms
    msm_id: np.ndarray  # int64 [N]
    probe_id: np.ndarray  # int64 [N]
    size: np.ndarray  # int32 [N]
    packet_error_count: np.ndarray  # int32 [N]
    kind: np.ndarray  # uint8 [N], index in schema.KINDS
    throughput: np.ndarray  # uint16 [N], 0 (unknown) or 1 + its code

    def __len__(self) -> int:
        return len(self.src)

    @property
    def measurements(self) -> int:
        return len(self.time)

    def equals(self, other: "RowBlock") -> bool:
        """Whether both blocks are equal bit for bit (NaN equals NaN)."""
        return all(
            getattr(self, field.name).tobytes() == getattr(other, field.name).tobytes()
            for field in fields(self)
        )

    def rows(self, first: int, last: int) -> "RowBlock":
        """Rows [first, last), sharing memory where possible."""
        begin, end = self.offsets[first], self.offsets[last]
        return RowBlock(
            self.src[first:last],
            self.offsets[first : last + 1] - begin,
            **{name: getattr(self, name)[begin:end] for name in MEASUREMENT_COLUMNS},
        )

    @classmethod
    def empty(cls, rows: int, measurements: int) -> Self:
        """Unfilled columns of the right types and sizes."""
        return cls(
            np.empty((rows, 16), np.uint8),
            np.zeros(rows + 1, np.int64),
            np.empty(measurements, np.int64),
            np.empty((measurements, 16), np.uint8),
            np.empty(measurements, np.float64),
            np.empty(measurements, np.int64),
            np.empty(measurements, np.int64),
            np.empty(measurements, np.int32),
            np.empty(measurements, np.int32),
            np.full(measurements, PING, np.uint8),
            np.zeros(measurements, np.uint16),  # zero pages of the system cost nothing until they are read
        )

    @classmethod
    def from_columns(
        cls,
        src: np.ndarray | Sequence[bytes],
        counts: np.ndarray | Sequence[int],
        time: Any,
        dst: np.ndarray | Sequence[bytes],
        rtt: Any,
        msm_id: Any = None,
        probe_id: Any = None,
        size: Any = None,
        packet_error_count: Any = None,
        kind: Any = None,
        throughput: Any = None,
    ) -> Self:
        """Build a block from plain columns; `counts` is the number of measurements of each row."""
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])

        def column(values: Any, kind: type) -> np.ndarray:
            filled: np.ndarray = (
                np.full(total, -1, kind) if values is None else np.ascontiguousarray(values, kind)
            )
            if len(filled) != total:
                raise ValueError(f"a column has {len(filled)} values, the counts say {total}")
            return filled

        return cls(
            _addresses(src, len(counts)),
            offsets,
            column(time, np.int64),
            _addresses(dst, total),
            column(rtt, np.float64),
            column(msm_id, np.int64),
            column(probe_id, np.int64),
            column(size, np.int32),
            column(packet_error_count, np.int32),
            np.full(total, PING, np.uint8) if kind is None else column(kind, np.uint8),
            np.zeros(total, np.uint16) if throughput is None else column(throughput, np.uint16),
        )

    def size_and_kind(self) -> np.ndarray:
        """Sizes combined with kinds and throughputs, as in records; int32 [N]."""
        kind, throughput = self.kind.astype(np.int32), self.throughput.astype(np.int32)
        return self.size + (kind << KIND_BITS) + (throughput << THROUGHPUT_BITS)

    def part_kinds(self, with_throughput: bool) -> None:
        """Split the combined values of records in `size` into sizes, kinds and throughputs.

        Args:
          with_throughput: Whether the records are of the version that has throughputs.
        """
        if with_throughput:
            self.throughput[:] = np.maximum(self.size + 1, 0) >> THROUGHPUT_BITS
            self.size[:] -= self.throughput.astype(np.int32) << THROUGHPUT_BITS
        kind = (self.size + 1) >> KIND_BITS
        # An invalid kind stays in the size, which then breaks the rules.
        self.kind[:] = np.where((kind > PING) & (kind < len(KINDS)), kind, PING)
        self.size[:] -= self.kind.astype(np.int32) << KIND_BITS

    def has_other_kinds(self) -> np.ndarray:
        """Whether some measurement of each row is not a ping, bool [R]."""
        return self._has(self.kind != PING)

    def has_throughput(self) -> np.ndarray:
        """Whether some measurement of each row has a throughput, bool [R]."""
        return self._has(self.throughput > 0)

    def _has(self, chosen: np.ndarray) -> np.ndarray:
        before = np.concatenate([[0], np.cumsum(chosen)])
        out: np.ndarray = np.diff(before[self.offsets]) > 0
        return out

    def taken(self, chosen: np.ndarray) -> "RowBlock":
        """A block of the chosen measurements, bool [N]; it has all rows, some of which may be empty."""
        before = np.concatenate([[0], np.cumsum(chosen)])
        return RowBlock(
            self.src,
            before[self.offsets],
            **{name: getattr(self, name)[chosen] for name in MEASUREMENT_COLUMNS},
        )


MEASUREMENT_COLUMNS = tuple(
    field.name for field in fields(RowBlock) if field.name not in ("src", "offsets")
)  # in the order of the record


def _addresses(values: np.ndarray | Sequence[bytes], count: int) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        values = np.frombuffer(b"".join(values), np.uint8)
    return np.ascontiguousarray(values, np.uint8).reshape(count, 16)
