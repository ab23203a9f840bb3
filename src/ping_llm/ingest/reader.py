"""One input file → blocks of judged records, whatever its container and format."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from ping_llm.ingest import atlas, records, tables
from ping_llm.ingest.columns import NOT_PING, REASONS, VERDICT, Columns, judge
from ping_llm.ingest.containers import contents
from ping_llm.ingest.inputs import STDIN
from ping_llm.ingest.options import RAW_BYTES, IngestOptions
from ping_llm.ingest.scan import is_open
from ping_llm.ingest.streams import Chunks, RawFile, Trouble
from ping_llm.schema import Reject

#: What a format is recognised by: the first lines.
_LOOK_AHEAD = 64 << 10

_PARQUET_MAGIC = b"PAR1"


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

    columns: Columns
    rejected: list[RejectedRecord] = field(default_factory=list)
    apart: int = 0

    @property
    def results(self) -> int:
        return len(self.columns) + self.apart


class InputFile:
    """An input file being read.

    Iterate over it for its blocks; afterwards `trouble` holds what was wrong with it and `sha256` its hash.

    Args:
      spool: a folder for Parquet that comes packed or from standard input; it has to be read from its end.
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
            for stream in contents(Chunks(iter(raw), self.path, self.trouble, is_file=self.path != STDIN)):
                yield from self._read_stream(stream)
            raw.drain()
        self.bytes, self.sha256 = raw.offset, raw.sha256

    def _read_stream(self, stream: Chunks) -> Iterator[JudgedBlock]:
        head = stream.peek(_LOOK_AHEAD)
        if head.startswith(_PARQUET_MAGIC):
            yield from self._read_parquet(stream)
            return
        if head.startswith(b"\xef\xbb\xbf"):
            stream.read(3)
            head = head[3:]
        form = tables.csv_format(head.partition(b"\n")[0])
        if form is not None:
            yield from self._read_csv(stream, form)
            return
        blocks = records.lines(stream) if _one_record_a_line(head) else records.values(stream)
        for block in blocks:
            yield self._judge(block, atlas.read_block(block, self._options), stream)

    def _read_csv(self, stream: Chunks, form: tables.CsvFormat) -> Iterator[JudgedBlock]:
        if absent := tables.missing_columns(form.places):
            names = stream.peek(_LOOK_AHEAD).partition(b"\n")[0].decode("utf-8", "replace")
            self.trouble.add(f"{stream.name}: {tables.absent_sentence(absent, names.split(form.delimiter))}")
            return
        for block in records.lines(stream):
            if len(block) and block.numbers[0] == 1:
                block = block.without_first()  # the header
            texts = [block.text(index) for index in range(len(block))]
            yield self._judge(block, tables.read_csv_block(texts, form), stream)

    def _judge(self, block: records.Block, columns: Columns, stream: Chunks) -> JudgedBlock:
        judge(columns)
        if block.unfinished and len(block):
            self._note_truncation(block.text(len(block) - 1), stream, columns.verdict)
        rejected = _rejected(stream.name, columns, block.numbers, block.text)
        for record in block.oversize:
            rejected.append(
                RejectedRecord(stream.name, record.number, Reject.TOO_LARGE, record.head, record.length)
            )
        rejected.sort(key=lambda record: record.number)
        return JudgedBlock(columns, rejected, apart=len(block.oversize))

    def _note_truncation(self, record: bytes, stream: Chunks, verdict: np.ndarray) -> None:
        """The last record may be cut off: by the container (already noted), or because the text just ends."""
        if stream.broken:
            # Whatever it seems to be, its end is missing: 10.25 may have been cut to 10.
            complete_json = (
                record.rstrip().endswith((b"}", b"]")) and verdict[-1] != VERDICT[Reject.UNPARSABLE]
            )
            if not complete_json:
                verdict[-1] = VERDICT[Reject.TRUNCATED]
        elif verdict[-1] == VERDICT[Reject.UNPARSABLE] and record.lstrip()[:1] in b"{[" and is_open(record):
            self.trouble.add(
                f"{stream.name}: ends inside a record, at byte {stream.offset:,} of the content; "
                "what was whole before it is kept"
            )
            verdict[-1] = VERDICT[Reject.TRUNCATED]

    def _read_parquet(self, stream: Chunks) -> Iterator[JudgedBlock]:
        # Read once through, for the hash and into a file when it is not one, then by its own directory.
        direct = stream.is_file
        with tempfile.TemporaryDirectory(dir=self._spool) as folder:
            path = Path(self.path) if direct else Path(folder) / "table.parquet"
            if direct:
                for _ in stream:
                    pass
            else:
                with path.open("wb") as copy:
                    for chunk in stream:
                        copy.write(chunk)
            row = 1
            try:
                for columns, batch in tables.read_parquet(path):
                    judge(columns)
                    numbers = np.arange(row, row + len(batch))
                    yield JudgedBlock(columns, _rejected(stream.name, columns, numbers, _row_texts(batch)))
                    row += len(batch)
            except LookupError as error:
                self.trouble.add(f"{stream.name}: {error.args[0]}")
            except (pa.ArrowException, OSError) as error:
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
                self.trouble.add(
                    f"{stream.name}: damaged Parquet after row {row - 1:,}, in {stream.offset:,} bytes "
                    f"({why}); the rows before are kept"
                )


def _row_texts(batch: pa.RecordBatch) -> Callable[[int], bytes]:
    return lambda index: tables.row_text(batch, index)


def _rejected(
    name: str, columns: Columns, numbers: np.ndarray, raw_text: Callable[[int], bytes]
) -> list[RejectedRecord]:
    rejected = []
    for index in np.flatnonzero((columns.verdict > 0) & (columns.verdict != NOT_PING)).tolist():
        raw = raw_text(index)
        reason = REASONS[columns.verdict[index] - 1]
        rejected.append(RejectedRecord(name, int(numbers[index]), reason, raw[:RAW_BYTES], len(raw)))
    return rejected


def _one_record_a_line(head: bytes) -> bool:
    """JSON lines, or anything that is not JSON at all; False for an array or for values spread over lines."""
    first, newline, rest = head.lstrip().partition(b"\n")
    if first.startswith(b"["):
        return False
    if first.startswith(b"{") and is_open(first):
        # A record cut short is followed by another; a value spread over lines is not.
        return bool(newline) and rest.lstrip().startswith(b"{")
    return True
