"""The table of measurements as NumPy columns, and queries about measurements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import pyarrow as pa

from ping_llm.errors import PingError
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import ACCEPTED, UNKNOWN, candidates_of, complaint, judge, kind_codes
from ping_llm.measurements.schema import (
    KINDS,
    NO_REPLY,
    PING,
    TABLE_VERSIONS,
    THROUGHPUT,
    kind_names,
    table_version,
)

#: Time of a measurement or query whose time is unknown; it is neither before nor after any other.
NO_TIME = -1

_NUMBERS = ("msm_id", "size", "packet_error_count", "probe_id")


@dataclass(frozen=True)
class Queries:
    """The measurements that a method has to predict, with all their columns except the result.

    Attributes:
      time: int64 [n], µs since 1970; NO_TIME where it is not known.
      src, dst: uint8 [n, 16]; the bytes after a prefix are zero.
      src_bits, dst_bits: int64 [n], length of each prefix; 0 is a whole address. None: all are whole.
      owner: int64 [n], index of each query's context, where queries have their own (`History.of_contexts`).
      size, packet_error_count, msm_id, probe_id: int64 [n], UNKNOWN where not stated; None: never stated.
        Only networks that were trained on these columns use them.
      throughput_mbps: float64 [n], likewise.
    """

    time: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    src_bits: np.ndarray | None = None
    dst_bits: np.ndarray | None = None
    owner: np.ndarray | None = None
    size: np.ndarray | None = None
    packet_error_count: np.ndarray | None = None
    msm_id: np.ndarray | None = None
    probe_id: np.ndarray | None = None
    throughput_mbps: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: np.ndarray | slice) -> "Queries":
        return Queries(**{name: part[index] for name, part in vars(self).items() if part is not None})

    def without_time(self) -> "Queries":
        return replace(self, time=np.full(len(self), NO_TIME, np.int64))


@dataclass(frozen=True)
class Columns:
    """A table of measurements that obey the rules of `rules.py`.

    The last six columns are None unless they were read; None means that all values are unknown, or for
    `kind` that all measurements are pings.
    """

    time: np.ndarray  # int64 [n], µs since 1970
    src: np.ndarray  # uint8 [n, 16], packed as ping_llm.measurements.addresses does
    dst: np.ndarray  # uint8 [n, 16]
    rtt: np.ndarray  # float64 [n], ms; NO_REPLY where there was no reply
    msm_id: np.ndarray | None = None  # int64 [n], UNKNOWN where null; the next three likewise
    size: np.ndarray | None = None
    packet_error_count: np.ndarray | None = None
    probe_id: np.ndarray | None = None
    kind: np.ndarray | None = None  # uint8 [n], index in schema.KINDS
    throughput_mbps: np.ndarray | None = None  # float64 [n], UNKNOWN where null

    def __len__(self) -> int:
        return len(self.time)

    @property
    def replied(self) -> np.ndarray:
        out: np.ndarray = self.rtt != NO_REPLY
        return out

    def take(self, index: np.ndarray | slice) -> "Columns":
        columns = {name: column[index] for name, column in vars(self).items() if column is not None}
        return Columns(**columns)

    def queries(self) -> Queries:
        known = {name: getattr(self, name) for name in ("size", "msm_id", "probe_id", THROUGHPUT)}
        return Queries(self.time, self.src, self.dst, **known)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export to Arrow readers: `polars.DataFrame(measurements)` or `pyarrow.table(measurements)`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def sorted_by_time(self) -> "Columns":
        return self.take(np.argsort(self.time, kind="stable"))

    @classmethod
    def empty(cls) -> Self:
        none = np.zeros((0, 16), np.uint8)
        return cls(np.zeros(0, np.int64), none, none, np.zeros(0))

    @classmethod
    def concatenate(cls, parts: Sequence["Columns"]) -> Self:
        """Concatenate the parts in order. A column that a part lacks is unknown there (kind: ping)."""
        known = [
            field.name for field in fields(cls) if any(vars(part)[field.name] is not None for part in parts)
        ]
        return cls(**{name: np.concatenate([part.column(name) for part in parts]) for name in known})

    def optional(self) -> dict[str, np.ndarray]:
        """The optional columns that were read, by name, without `kind`."""
        names = (*_NUMBERS, THROUGHPUT)
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    def column(self, name: str) -> np.ndarray:
        """A column by its name; if it was not read, an array of the value that None stands for."""
        column: np.ndarray | None = getattr(self, name)
        if column is not None:
            return column
        unknown, kind = {"kind": (PING, np.uint8), THROUGHPUT: (UNKNOWN, np.float64)}.get(
            name, (UNKNOWN, np.int64)
        )
        return np.full(len(self), unknown, kind)

    @classmethod
    def from_table(
        cls,
        table: pa.Table | pa.RecordBatch,
        every: bool = False,
        place: Callable[[int], str] = lambda row: f"row {row + 1:,}",
        stand_in: str | None = None,
        with_kind: bool = False,
    ) -> Self:
        """Convert an Arrow table to columns and check its rows.

        Args:
          every: Whether to take the optional columns as well.
          place: Function that describes the place of a row, for the error message.
          stand_in: `src` or `dst`, if that column was not read and holds placeholders only.
          with_kind: Whether to take `kind` even without the other optional columns.

        Raises:
          PingError: a row breaks a rule; the message names the row.
        """
        candidates = candidates_of(table)
        if stand_in:
            other = candidates.dst if stand_in == "src" else candidates.src
            candidates = replace(candidates, **{stand_in: other})
        verdict = judge(candidates)
        if verdict.any():
            row = int((verdict != ACCEPTED).argmax())
            raise _refusal(place(row), complaint(table, row, int(verdict[row])))
        columns = cls(candidates.time_us, candidates.src, candidates.dst, candidates.rtt)
        if not every and not with_kind:
            return columns
        kind = kind_codes(table["kind"]) if "kind" in table.schema.names else None
        if kind is not None and (kind == len(KINDS)).any():
            row = int((kind == len(KINDS)).argmax())
            raise _refusal(place(row), f"kind {table['kind'][row]} is not one of {', '.join(KINDS)}")
        if not every:
            return replace(columns, kind=kind)
        return replace(
            columns,
            msm_id=candidates.msm_id,
            size=candidates.size,
            packet_error_count=candidates.packet_error_count,
            probe_id=candidates.probe_id,
            kind=kind,
            throughput_mbps=candidates.throughput_mbps,
        )

    def to_arrow(self, version: int | None = None) -> pa.Table:
        """Convert to an Arrow table of measurements, with addresses as canonical texts.

        Args:
          version: Version of the table; None: the lowest version that has the columns that were read.
        """
        if version is None:
            version = table_version([name for name, column in vars(self).items() if column is not None])
        numbers = [self.column(name) for name in _NUMBERS]
        ip_version = np.where(addresses.is_ipv4(self.src), 4, 6).astype(np.uint8)
        src, dst = addresses.unpack(self.src), addresses.unpack(self.dst)
        time = pa.array(self.time, pa.timestamp("us", tz="UTC"))
        unknown = [pa.array(column, pa.int64(), mask=column == UNKNOWN) for column in numbers]
        columns = [time, src, dst, pa.array(ip_version), pa.array(self.rtt), *unknown]
        schema = TABLE_VERSIONS[version]
        if "kind" in schema.names:
            columns.append(kind_names(self.column("kind")))
        if THROUGHPUT in schema.names:
            mbps = self.column(THROUGHPUT)
            columns.append(pa.array(mbps, pa.float64(), mask=mbps == UNKNOWN))
        return pa.Table.from_arrays(columns, schema=schema)


def _refusal(place: str, why: str) -> PingError:
    return PingError(f"{place}: {why}; `ping-llm ingest` leaves such rows out.")
