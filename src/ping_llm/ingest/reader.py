"""One input file → blocks of judged records, whatever its container and format."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ping_llm.ingest import atlas, records
from ping_llm.ingest.columns import VERDICT, Columns, judge
from ping_llm.ingest.containers import contents
from ping_llm.ingest.options import RAW_BYTES, IngestOptions
from ping_llm.ingest.scan import is_open
from ping_llm.ingest.streams import Chunks, RawFile, Trouble
from ping_llm.schema import Reject

STDIN = "-"

#: What a format is recognised by: the first lines.
_LOOK_AHEAD = 64 << 10


@dataclass
class RejectedRecord:
    """A record that is not a measurement, as rejects/ tells of it."""

    stream: str
    number: int
    reason: Reject
    raw: bytes  # its first RAW_BYTES
    length: int


@dataclass
class JudgedBlock:
    """Records with their verdicts (see columns.judge); `apart` are those that never became columns."""

    stream: str
    columns: Columns
    numbers: np.ndarray
    rejected: list[RejectedRecord] = field(default_factory=list)
    apart: int = 0

    @property
    def results(self) -> int:
        return len(self.columns) + self.apart


class InputFile:
    """An input file being read.

    Iterate over it for its blocks; afterwards `trouble` holds what was wrong with it and `sha256` its hash.
    """

    def __init__(self, path: str, options: IngestOptions, spool: Path | None = None):
        self.path, self._options, self._spool = path, options, spool
        self.trouble = Trouble(path)
        self.bytes = 0
        self.sha256 = ""

    def __iter__(self) -> Iterator[JudgedBlock]:
        try:
            file = sys.stdin.buffer if self.path == STDIN else Path(self.path).open("rb")  # noqa: SIM115
        except OSError as error:
            self.trouble.add(f"{self.path}: cannot be opened: {error.strerror}")
            return
        with file:
            raw = RawFile(file)
            for stream in contents(Chunks(iter(raw), self.path, self.trouble)):
                yield from self._read_stream(stream)
            raw.drain()
        self.bytes, self.sha256 = raw.offset, raw.sha256

    def _read_stream(self, stream: Chunks) -> Iterator[JudgedBlock]:
        head = stream.peek(_LOOK_AHEAD)
        if head.startswith(b"\xef\xbb\xbf"):
            stream.read(3)
            head = head[3:]
        blocks = records.lines(stream) if _one_record_a_line(head) else records.values(stream)
        for block in blocks:
            yield self._judge_json(block, stream)

    def _judge_json(self, block: records.Block, stream: Chunks) -> JudgedBlock:
        columns = atlas.read_block(block.records, self._options)
        verdict = judge(columns)
        if block.unfinished and block.records and verdict[-1] == VERDICT[Reject.UNPARSABLE]:
            self._note_truncation(block.records[-1], stream, verdict)
        rejected = []
        for index in np.flatnonzero((verdict > 0) & (verdict <= len(Reject))):
            raw = block.records[index]
            reason = tuple(Reject)[verdict[index] - 1]
            number = int(block.numbers[index])
            rejected.append(RejectedRecord(stream.name, number, reason, raw[:RAW_BYTES], len(raw)))
        for record in block.oversize:
            rejected.append(
                RejectedRecord(stream.name, record.number, Reject.TOO_LARGE, record.head, record.length)
            )
        rejected.sort(key=lambda record: record.number)
        return JudgedBlock(stream.name, columns, block.numbers, rejected, apart=len(block.oversize))

    def _note_truncation(self, record: bytes, stream: Chunks, verdict: np.ndarray) -> None:
        """The last record is cut off: by the container (already noted), or because the text just ends."""
        if not stream.broken:
            if not (record.lstrip().startswith((b"{", b"[")) and is_open(record)):
                return
            self.trouble.add(
                f"{stream.name}: ends inside a record, at byte {stream.offset:,} of the content; "
                "what was whole before it is kept"
            )
        verdict[-1] = VERDICT[Reject.TRUNCATED]


def _one_record_a_line(head: bytes) -> bool:
    """JSON lines, or anything that is not JSON at all; False for an array or for values spread over lines."""
    first, newline, rest = head.lstrip().partition(b"\n")
    if first.startswith(b"["):
        return False
    if first.startswith(b"{") and is_open(first):
        # A record cut short is followed by another; a value spread over lines is not.
        return bool(newline) and rest.lstrip().startswith(b"{")
    return True
