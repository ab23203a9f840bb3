"""The intermediate form of one input file: its measurements, unsorted, and its rejects, in the work folder.

The parts of a file are written to a temporary folder, which is renamed, with `done.json` inside, when the
file has been read to its end. So a folder that exists is complete, and an interrupted run continues with the
files that have none.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.files import sync_directory, write_json
from ping_llm.ingest.accounting import FATES, Account
from ping_llm.ingest.columns import NOT_PING, NOT_USED, ParsedRecords
from ping_llm.ingest.options import PART_GROUP_ROWS, RAW_BYTES, REJECT_GROUP_ROWS
from ping_llm.ingest.reader import JudgedBlock, RejectedRecord
from ping_llm.measurements.rules import ACCEPTED, UNKNOWN
from ping_llm.measurements.schema import DAY_US, PING, THROUGHPUT

#: Schema of a part, with addresses as pairs of integers, which sort fastest.
PART = pa.schema(
    [
        pa.field("event_time", pa.int64()),
        pa.field("src_high", pa.uint64()),
        pa.field("src_low", pa.uint64()),
        pa.field("dst_high", pa.uint64()),
        pa.field("dst_low", pa.uint64()),
        pa.field("rtt", pa.float64()),
        pa.field("msm_id", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("packet_error_count", pa.int64()),
        pa.field("probe_id", pa.int64()),
        pa.field("kind", pa.uint8()),
        pa.field(THROUGHPUT, pa.float64()),
        pa.field("packets_hash", pa.uint64()),  # hash of all packets of the result (`--rtt each`), else 0
        pa.field("file", pa.uint32()),  # index of the input file among the inputs
        pa.field("record", pa.int64()),  # index of the result in the file
        pa.field("packet", pa.int32()),  # index of the packet in the result
    ]
)

REJECTS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.string(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ],
    metadata={"ping_llm.rejects": "1"},
)

#: Distance of the record indices of consecutive stretches. It exceeds the number of records of any stretch,
#: so that all records of a file are numbered in order.
_STRETCH_PLACES = 1 << 40


class PartWriter:
    """Writes the parts of one file, or of a stretch of it, to a folder."""

    def __init__(self, folder: Path, file_number: int, each: bool = False, stretch: int = 0):
        self._folder = folder
        self._aside = folder.with_name(folder.name + ".aside")
        shutil.rmtree(self._aside, ignore_errors=True)
        self._aside.mkdir(parents=True)
        self._file_number = file_number
        self._each = each
        self._places = stretch * _STRETCH_PLACES
        self._version = 1  # lowest version of the table that can hold all rows
        self._rows: list[pa.RecordBatch] = []
        self._rows_held = 0
        self._rejects: list[RejectedRecord] = []
        self._rejects_writer: pq.ParquetWriter | None = None
        self._rows_writer: pq.ParquetWriter | None = None
        self._days: dict[int, int] = {}
        self.account = Account()

    def add(self, block: JudgedBlock) -> None:
        """Add a block of judged records."""
        verdict = block.columns.verdict
        first_record = self._places
        self._places += block.places
        self.account.results += block.results
        self.account.not_pings += int((verdict == NOT_PING).sum())
        self._add_hops(block)
        for record in block.rejected:
            self.account.rejects[record.reason] += 1
        self._rejects.extend(block.rejected)
        if len(self._rejects) >= REJECT_GROUP_ROWS:
            self._flush_rejects()
        accepted = np.flatnonzero(verdict == ACCEPTED)
        if len(accepted):
            self._version = max(self._version, _version_of(block.columns, accepted))
            self._add_rows(part_rows(block, accepted, first_record, self._file_number, self._each))

    def _add_hops(self, block: JudgedBlock) -> None:
        if block.replies is None:
            return
        self.account.traceroutes += block.traceroutes
        for fate, count in zip(FATES, block.replies.tolist(), strict=True):
            self.account.replies[fate] += count
        for reason, code in NOT_USED.items():
            self.account.not_used[reason] += int((block.columns.verdict == code).sum())

    def _add_rows(self, rows: pa.RecordBatch) -> None:
        days, counts = np.unique(rows["event_time"].to_numpy() // DAY_US, return_counts=True)
        for day, count in zip(days.tolist(), counts.tolist(), strict=True):
            self._days[day] = self._days.get(day, 0) + count
        self._rows.append(rows)
        self._rows_held += len(rows)
        if self._rows_held >= PART_GROUP_ROWS:
            self._flush_rows()

    def _flush_rows(self) -> None:
        if self._rows_writer is None:
            # The file is read once, so it must be fast to write: dictionaries pay off for columns with
            # repeated values, not for RTTs and record numbers.
            self._rows_writer = pq.ParquetWriter(
                self._aside / "rows.parquet", PART, compression="lz4", use_dictionary=_REPEATING
            )
        self._rows_writer.write_table(pa.Table.from_batches(self._rows, PART).combine_chunks())
        self._rows, self._rows_held = [], 0

    def _flush_rejects(self) -> None:
        if self._rejects_writer is None:
            self._rejects_writer = pq.ParquetWriter(
                self._aside / "rejects.parquet", REJECTS, compression="zstd"
            )
        self._rejects_writer.write_table(rejects_table(self._rejects))
        self._rejects = []

    def finish(self, facts: dict[str, Any]) -> None:
        """Close the parts and rename the folder to its final name."""
        if self._rows:
            self._flush_rows()
        if self._rejects:
            self._flush_rejects()
        for writer in (self._rows_writer, self._rejects_writer):
            if writer is not None:
                writer.close()
        days = {str(day): count for day, count in sorted(self._days.items())}
        counts = self.account.as_json(with_packets=False, with_hops=True)
        sizes = {path.name: path.stat().st_size for path in sorted(self._aside.iterdir())}
        done = {"days": days, "version": self._version, "sizes": sizes, **counts, **facts}
        write_json(self._aside / "done.json", done)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._aside.rename(self._folder)
        sync_directory(self._folder.parent)


_REPEATING = [
    "src_high", "src_low", "dst_high", "dst_low", "msm_id", "size", "packet_error_count", "probe_id",
    "kind", THROUGHPUT, "packets_hash", "file", "packet",
]  # fmt: skip


def _version_of(columns: ParsedRecords, accepted: np.ndarray) -> int:
    """The lowest version of the table that can hold these records."""
    mbps = columns.throughput_mbps
    if mbps is not None and (mbps[accepted] != UNKNOWN).any():
        return 3
    return 1 if (columns.kind[accepted] == PING).all() else 2


def part_rows(
    block: JudgedBlock, accepted: np.ndarray, first_record: int, file_number: int, each: bool = False
) -> pa.RecordBatch:
    """Convert the accepted records of a block to part rows: one per record, or one per packet.

    Args:
      each: Whether results are compared by `packets_hash` (`--rtt each`). Table rows and hops are one packet.
    """
    columns = block.columns
    count = len(accepted)
    owners, packet, packets_hash = accepted, np.zeros(count, np.int32), np.zeros(count, np.uint64)
    errors = columns.packet_error_count
    if columns.packets is not None and columns.packet_offsets is not None:
        offsets = columns.packet_offsets
        counts = np.diff(offsets)[accepted]
        owners = np.repeat(accepted, counts)
        packet = (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32)
        rtt = columns.packets[offsets[:-1][owners] + packet] + 0.0
        packets_hash = np.repeat(_packets_hash(columns.packets, offsets, accepted), counts)
        owner_errors = (rtt < 0).astype(np.int64)
    else:
        rtt = columns.rtt[accepted] + 0.0  # -0.0 becomes 0.0, so that equal values have equal bytes
        owner_errors = errors[owners]
        if each:
            packets_hash = _packets_hash(
                np.stack([rtt, owner_errors], axis=1).ravel(), 2 * np.arange(count + 1), np.arange(count)
            )
    src, dst = _halves(columns.src[owners]), _halves(columns.dst[owners])
    throughput = np.full(len(owners), float(UNKNOWN))
    if columns.throughput_mbps is not None:
        throughput = columns.throughput_mbps[owners] + 0.0
    arrays = [
        columns.time_us[owners], *src, *dst, rtt,
        columns.msm_id[owners], columns.size[owners], owner_errors, columns.probe_id[owners],
        columns.kind[owners], throughput,
        packets_hash, np.full(len(owners), file_number, np.uint32), first_record + owners, packet,
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(
        [pa.array(array, field.type) for array, field in zip(arrays, PART, strict=True)], schema=PART
    )


def _halves(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    halves = packed.view(">u8").astype(np.uint64)
    return halves[:, 0], halves[:, 1]


def _packets_hash(packets: np.ndarray, offsets: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """A hash of the packets of each accepted result, the same on every machine; 0 only by chance."""

    return np.array(
        [
            int.from_bytes(
                hashlib.blake2b(
                    packets[offsets[index] : offsets[index + 1]].tobytes(), digest_size=8
                ).digest()
            )
            for index in accepted
        ],
        np.uint64,
    )


def rejects_table(rejects: list[RejectedRecord]) -> pa.Table:
    """Convert rejects to a table. Invalid UTF-8 in their text becomes U+FFFD."""
    return pa.table(
        {
            "file": [reject.stream for reject in rejects],
            "record": [reject.number for reject in rejects],
            "reason": [reject.reason.value for reject in rejects],
            "raw": [reject.raw[:RAW_BYTES].decode("utf-8", "replace") for reject in rejects],
            "length": [reject.length for reject in rejects],
        },
        schema=REJECTS,
    )
