"""Reading of one input file, in any container and format, as blocks of judged records."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa

from ping_llm.ingest import atlas, parquet_tables, records, scan, tables, tool_text
from ping_llm.ingest.columns import TRACEROUTE, ParsedRecords, is_reject
from ping_llm.ingest.containers import contents
from ping_llm.ingest.options import RAW_BYTES, STDIN, IngestOptions
from ping_llm.ingest.records import Chunks, RawFile, Trouble
from ping_llm.ingest.stretches import Stretch, StretchText, cut, first_text
from ping_llm.ingest.too_fast import reject_too_fast
from ping_llm.ingest.traceroutes import TOO_FAST, USED, read_traceroutes
from ping_llm.measurements.rules import REASONS, VERDICT, judge
from ping_llm.measurements.schema import Reject
from ping_llm.paths import literal, utf8_name

#: Bytes at the beginning of a text from which its format is recognised.
LOOK_AHEAD = 64 << 10

#: Word that marks the sentence about an error that is a bug in this package.
UNEXPECTED = "unexpected"

PARQUET_MAGIC = b"PAR1"


@dataclass
class RejectedRecord:
    """A record that is not a measurement, as stored in rejects/."""

    stream: str
    number: int
    reason: Reject
    raw: bytes  # its first RAW_BYTES
    length: int


@dataclass
class JudgedBlock:
    """Records with their verdicts (see rules.judge), or hops with theirs.

    Attributes:
      apart: Number of records that were not converted to columns.
      traceroutes: Number of traceroutes to which the hops belong.
      replies: Counts of the replies of these hops, by accounting.FATES.
    """

    columns: ParsedRecords
    rejected: list[RejectedRecord] = field(default_factory=list)
    apart: int = 0
    traceroutes: int = 0
    replies: np.ndarray | None = None

    @property
    def results(self) -> int:
        """Number of results counted here; traceroutes split into hops are counted in a separate block."""
        return self.places - int((self.columns.verdict == TRACEROUTE).sum())

    @property
    def places(self) -> int:
        return len(self.columns) + self.apart


class InputFile:
    """An input file being read.

    Iteration gives its blocks; afterwards `trouble` holds the errors found and `sha256` the hash.

    Args:
      spool: Folder for copies of Parquet that is compressed or from standard input; Arrow must seek in it.
      stretch: Read only the lines of this stretch, from `stretches_of`. Their numbers begin with 1, there is
        no hash, and any error means that the file should be read whole.
    """

    def __init__(
        self,
        path: str,
        options: IngestOptions,
        spool: Path | None = None,
        stretch: Stretch | None = None,
    ):
        self.path, self._options, self._spool, self._stretch = path, options, spool, stretch
        self._name = utf8_name(path)
        self.trouble = Trouble(self._name)
        self.bytes = 0
        self.sha256 = ""
        #: Number of lines of a stretch, and the stored checksums of its bzip2 blocks.
        self.lines = 0
        self.checksums: list[list[int]] = []

    def __iter__(self) -> Iterator[JudgedBlock]:
        try:
            file = sys.stdin.buffer if self.path == STDIN else Path(self.path).open("rb")  # noqa: SIM115
        except OSError as error:
            self.trouble.add(f"{self._name}: cannot be opened: {error.strerror}")
            return
        if self._stretch is not None:
            with file:
                yield from self._blocks_of_stretch(file, self._stretch)
            return
        with file:
            raw = RawFile(file)
            yield from self._blocks(raw)
            raw.drain()
        self.bytes, self.sha256 = raw.offset, raw.sha256

    def _blocks(self, raw: RawFile) -> Iterator[JudgedBlock]:
        """All blocks. An unexpected error ends only this file; the other files are read."""
        try:
            chunks = Chunks(iter(raw), self._name, self.trouble, is_file=self.path != STDIN)
            with closing(contents(chunks)) as streams:
                for stream in streams:
                    yield from self._read_stream(stream)
        except OSError:
            raise  # an error of writing, such as a full disk, not of the input
        except Exception as error:
            self.trouble.add(
                f"{self._name}: {UNEXPECTED} {type(error).__name__} ({error}) before byte {raw.offset:,}; "
                "what was read before it is kept. Please report it"
            )

    def _blocks_of_stretch(self, file: BinaryIO, stretch: Stretch) -> Iterator[JudgedBlock]:
        text = StretchText(file, stretch)
        try:
            head = first_text(file, stretch.kind, LOOK_AHEAD)
            stream = Chunks(iter(text), self._name, self.trouble)
            yield from self._read_text(stream, head, from_start=stretch.number == 0)
        except OSError:
            raise
        except Exception as error:
            self.trouble.add(f"{self._name}: {UNEXPECTED} {type(error).__name__} ({error})")
        self.lines, self.checksums = text.lines, text.checksums

    def _read_stream(self, stream: Chunks) -> Iterator[JudgedBlock]:
        head = stream.peek(LOOK_AHEAD)
        if head.startswith(PARQUET_MAGIC):
            yield from self._read_parquet(stream)
            return
        if head.startswith(b"\xef\xbb\xbf"):
            stream.read(3)
            head = head[3:]
        if self._options.src is not None and tool_text.is_tool_text(head):
            yield from self._read_tool_text(stream, self._options.src)
            return
        yield from self._read_text(stream, head)

    def _read_text(self, stream: Chunks, head: bytes, from_start: bool = True) -> Iterator[JudgedBlock]:
        """Read JSON or CSV of a file that begins with `head`; the stream may begin at a later line of it."""
        form = tables.csv_format(head.partition(b"\n")[0])
        if form is not None:
            yield from self._read_csv(stream, form, from_start)
            return
        by_line = one_record_a_line(head)
        blocks = records.lines(stream) if by_line else records.values(stream)
        keys = tables.json_keys(first_value(head))
        if keys is not None and not tables.missing_columns(keys):
            for block in blocks:
                yield self._judge(block, tables.read_json_block(block.texts, keys), stream)
            return
        for block in blocks:
            read = atlas.read_block(block, self._options)
            if by_line and (split := block.with_lines_split(odd_lines(read.columns.verdict))):
                block = split
                read = atlas.read_block(block, self._options)
            yield self._judge(block, read.columns, stream)
            if read.traceroutes:
                yield self._judge_hops(block, read.traceroutes, stream)

    def _read_csv(self, stream: Chunks, form: tables.CsvFormat, from_start: bool) -> Iterator[JudgedBlock]:
        if absent := tables.missing_columns(form.places):
            names = stream.peek(LOOK_AHEAD).partition(b"\n")[0].decode("utf-8", "replace")
            self.trouble.add(f"{stream.name}: {tables.absent_sentence(absent, names.split(form.delimiter))}")
            return
        for block in records.lines(stream):
            if from_start and len(block) and block.numbers[0] == 1:
                block = block.without_first()  # the header
            yield self._judge(block, tables.read_csv_block(block.texts, form), stream)

    def _read_tool_text(self, stream: Chunks, src: str) -> Iterator[JudgedBlock]:
        output = tool_text.read_output(stream, self.path, src)
        if output.trouble:
            self.trouble.add(output.trouble)
            for _ in stream:
                pass
        lines = output.lines
        columns = tables.from_arrays(output.columns, len(lines))
        judge(columns)
        reject_too_fast(columns, self._options.places)
        texts = [line.encode() for line in output.text.decode("utf-8", "replace").splitlines()]
        rejected = _rejected(
            stream.name, columns, np.array(lines, np.int64), lambda row: texts[lines[row] - 1]
        )
        for line in output.strange:
            raw = texts[line - 1]
            rejected.append(RejectedRecord(stream.name, line, Reject.UNPARSABLE, raw[:RAW_BYTES], len(raw)))
        yield JudgedBlock(columns, rejected, apart=len(output.strange))

    def _judge(self, block: records.Block, columns: ParsedRecords, stream: Chunks) -> JudgedBlock:
        judge(columns)
        if block.unfinished and len(block):
            self._note_truncation(block.text(len(block) - 1), stream, columns.verdict)
        reject_too_fast(columns, self._options.places)
        rejected = _rejected(stream.name, columns, block.numbers, block.text)
        for record in block.oversize:
            rejected.append(
                RejectedRecord(stream.name, record.number, Reject.TOO_LARGE, record.head, record.length)
            )
        rejected.sort(key=lambda record: record.number)
        return JudgedBlock(columns, rejected, apart=len(block.oversize))

    def _judge_hops(
        self, block: records.Block, traceroutes: dict[int, dict[str, Any]], stream: Chunks
    ) -> JudgedBlock:
        places = list(traceroutes)
        read = read_traceroutes(list(traceroutes.values()), self._options)
        replies_too_fast = read.used[reject_too_fast(read.columns, self._options.places)].sum()
        read.replies[USED] -= replies_too_fast
        read.replies[TOO_FAST] += replies_too_fast

        def raw_text(row: int) -> bytes:
            hop = read.raw(row)
            return block.text(places[read.owners[row]]) if hop is None else hop

        rejected = _rejected(stream.name, read.columns, block.numbers[places][read.owners], raw_text)
        return JudgedBlock(read.columns, rejected, traceroutes=read.taken_apart, replies=read.replies)

    def _note_truncation(self, record: bytes, stream: Chunks, verdict: np.ndarray) -> None:
        """Reject a last record that is cut off, by a damaged container (already reported) or at the end."""
        if stream.broken:
            # A record that looks valid may still be cut: 10.25 may have become 10.
            complete_json = (
                record.rstrip().endswith((b"}", b"]")) and verdict[-1] != VERDICT[Reject.UNPARSABLE]
            )
            if not complete_json:
                verdict[-1] = VERDICT[Reject.TRUNCATED]
        elif (
            verdict[-1] == VERDICT[Reject.UNPARSABLE]
            and record.lstrip()[:1] in b"{["
            and scan.is_open(record)
        ):
            self.trouble.add(
                f"{stream.name}: ends inside a record, at byte {stream.offset:,} of the content; "
                "what was whole before it is kept"
            )
            verdict[-1] = VERDICT[Reject.TRUNCATED]

    def _read_parquet(self, stream: Chunks) -> Iterator[JudgedBlock]:
        # The stream is first read to its end, for the hash and to copy it to a file if needed; then Arrow
        # reads the file from its footer.
        with as_file(stream, self.path, self._spool) as path:
            row = 1
            try:
                for columns, batch in parquet_tables.read_parquet(path):
                    judge(columns)
                    reject_too_fast(columns, self._options.places)
                    numbers = np.arange(row, row + len(batch))
                    yield JudgedBlock(columns, _rejected(stream.name, columns, numbers, _row_texts(batch)))
                    row += len(batch)
            except tables.MissingColumns as error:
                self.trouble.add(f"{stream.name}: {error}")
            except UnicodeDecodeError:
                self.trouble.add(f"{stream.name}: a column has a name that is not UTF-8; not read")
            except (pa.ArrowException, OSError) as error:
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
                self.trouble.add(
                    f"{stream.name}: damaged Parquet after row {row - 1:,}, in {stream.offset:,} bytes "
                    f"({why}); the rows before are kept"
                )


@contextmanager
def as_file(stream: Chunks, path: str, spool: Path | None = None) -> Iterator[Path]:
    """A file with the bytes of a stream: the input itself, or a copy of the unpacked content."""
    with tempfile.TemporaryDirectory(dir=spool) as folder:
        if stream.is_file and utf8_name(path) == path:  # Arrow opens only names in UTF-8
            for _ in stream:
                pass
            yield literal(Path(path))
            return
        copied = Path(folder) / "table.parquet"
        with copied.open("wb") as copy:
            for chunk in stream:
                copy.write(chunk)
        yield copied


def stretches_of(path: str, options: IngestOptions) -> list[Stretch]:
    """The stretches of a file that can be read in parallel; none if it has to be read whole."""
    try:
        stretches, head = cut(Path(path), LOOK_AHEAD)
    except OSError:
        return []
    special = head.startswith((PARQUET_MAGIC, b"\xef\xbb\xbf"))
    if special or (options.src is not None and tool_text.is_tool_text(head)):
        return []
    form = tables.csv_format(head.partition(b"\n")[0])
    if form is not None:
        return [] if tables.missing_columns(form.places) else stretches
    return stretches if one_record_a_line(head) else []


def first_value(head: bytes) -> bytes:
    """The first value of a JSON text."""
    starts, ends, _ = scan.split_text(head)
    return head[starts[0] : ends[0]] if len(starts) else b""


def _row_texts(batch: pa.RecordBatch) -> Callable[[int], bytes]:
    return lambda index: parquet_tables.row_text(batch, index)


def _rejected(
    name: str, columns: ParsedRecords, numbers: np.ndarray, raw_text: Callable[[int], bytes]
) -> list[RejectedRecord]:
    rejected = []
    for index in np.flatnonzero(is_reject(columns.verdict)).tolist():
        raw = raw_text(index)
        reason = REASONS[columns.verdict[index] - 1]
        rejected.append(RejectedRecord(name, int(numbers[index]), reason, raw[:RAW_BYTES], len(raw)))
    return rejected


def odd_lines(verdict: np.ndarray) -> list[int]:
    """Lines that are not one object: they may hold several objects, or an array of them."""
    odd = (verdict == VERDICT[Reject.UNPARSABLE]) | (verdict == VERDICT[Reject.NOT_AN_OBJECT])
    return np.flatnonzero(odd).tolist()


def one_record_a_line(head: bytes) -> bool:
    """Whether each line is one record: JSON lines, or not JSON.

    False for arrays, several values on one line, and values that span several lines.
    """
    head = head.lstrip()
    if head.startswith(b"["):
        return False
    first, newline, rest = head.partition(b"\n")
    if not head.startswith(b"{"):
        return True
    starts, ends, _ = scan.split_text(head)
    if ends[0] > len(first) and _is_json(head[starts[0] : ends[0]]):
        return False
    if len(starts) > 1 and starts[1] < len(first) and head[starts[1]] == head[0]:
        return False
    if scan.is_open(first):
        # A truncated record is followed by another one; a value that spans several lines is not.
        return bool(newline) and rest.lstrip().startswith(b"{")
    return True


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True
