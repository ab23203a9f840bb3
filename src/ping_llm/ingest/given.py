"""Reading of the files given with a question: all formats that `ingest` reads, also with missing columns.

Queried pairs have no RTT, a context may have no times, and an address may be a prefix, so rows are passed on
unchanged, with our column names. Only RIPE Atlas results are judged: those that are not measurements are left
out and counted.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ping_llm.errors import PingError
from ping_llm.ingest import atlas, parquet_tables, records, tables, tool_text
from ping_llm.ingest.columns import NOT_PING
from ping_llm.ingest.containers import NOT_READ, contents
from ping_llm.ingest.options import STDIN, IngestOptions, find_files
from ping_llm.ingest.reader import (
    LOOK_AHEAD,
    PARQUET_MAGIC,
    as_file,
    first_value,
    odd_lines,
    one_record_a_line,
)
from ping_llm.ingest.records import Chunks, RawFile, Trouble
from ping_llm.measurements import addresses
from ping_llm.measurements.rules import ACCEPTED, UNKNOWN, judge
from ping_llm.paths import printable, utf8_name


@dataclass(frozen=True)
class GivenRows:
    """Some rows of a file.

    Attributes:
      table: The existing columns, with our names.
      name: Name of the file, or of the member of an archive.
      numbers: int64 [n], line number of each row, from 1, or the row in a Parquet file.
    """

    table: pa.RecordBatch
    name: str
    numbers: np.ndarray
    unit: str = "line"

    def place(self, row: int) -> str:
        return f"{self.name}, {self.unit} {self.numbers[row]:,}"


class GivenFiles:
    """The rows of a file, of the files of a folder, or of standard input.

    Iterate over it once. Afterwards `left_out` is the number of results that are not measurements.

    Raises:
      UsageError: there is no such file.
      PingError: a file is damaged, or lacks a needed column.
    """

    def __init__(self, place: str | Path, needs: Sequence[str], src: str | None = None):
        """Set the place, the needed columns, and `src`: the source of ping, fping or mtr output."""
        self._place, self._needs, self._src = str(place), tuple(needs), src
        self.rows = self.left_out = 0
        self._not_pings = 0
        self._why_empty = (
            f"the first line of a CSV table names its columns, such as {','.join(self._needs)}; of ping, "
            "fping and mtr, English output is read"
        )

    def __iter__(self) -> Iterator[GivenRows]:
        for path in find_files([self._place]):
            trouble = Trouble(utf8_name(path))
            with sys.stdin.buffer if path == STDIN else Path(path).open("rb") as file:
                for stream in contents(
                    Chunks(iter(RawFile(file)), utf8_name(path), trouble, is_file=path != STDIN)
                ):
                    for rows in self._read(stream, path):
                        self.rows += rows.table.num_rows
                        yield rows
            _refuse_damaged(trouble)

    @property
    def note(self) -> str | None:
        """A sentence about the results that were left out, or None."""
        if not self.left_out or not self.rows:
            return None
        return (
            f"{self.left_out:,} of {self.left_out + self.rows:,} results in {printable(self._place)} are no "
            "measurements of a ping and were left out; `ping-llm ingest` counts them by reason"
        )

    @property
    def empty(self) -> str:
        """A sentence about files that have no rows, with the likely reason."""
        why = self._why_empty
        if self._not_pings and self._not_pings == self.left_out:
            why = (
                f"none of the {self.left_out:,} results is a ping; if they are traceroutes, `ping-llm ingest "
                "FILE --traceroutes last --out FOLDER` makes measurements of them"
            )
        return f"{printable(self._place)} has no measurements; {why}"

    def _read(self, stream: Chunks, path: str) -> Iterator[GivenRows]:
        head = stream.peek(LOOK_AHEAD)
        if head.startswith(PARQUET_MAGIC):
            yield from self._read_parquet(stream, path)
            return
        if head.startswith(b"\xef\xbb\xbf"):
            stream.read(3)
            head = head[3:]
        if tool_text.is_tool_text(head):
            yield self._read_tool_text(stream, path)
            return
        first_line = head.partition(b"\n")[0]
        form = tables.csv_format(first_line)
        by_line = one_record_a_line(head)
        blocks = records.lines(stream) if form or by_line else records.values(stream)
        if form is not None:
            self._check(form.places, stream.name, first_line.decode("utf-8", "replace").split(form.delimiter))
            for block in blocks:
                block = block.without_first() if len(block) and block.numbers[0] == 1 else block
                yield self._rows(block, *tables.csv_arrays(block.texts, form), stream)
            return
        keys = tables.json_keys(first_value(head))
        if keys is not None:
            self._check(keys, stream.name, list(keys.values()))
            for block in blocks:
                yield self._rows(block, *tables.json_arrays(block.texts, keys), stream)
            return
        self._why_empty = _reason(head, self._needs) or self._why_empty
        for block in blocks:
            if by_line and (odd := odd_lines(atlas.read_block(block, _OPTIONS).columns.verdict)):
                block = block.with_lines_split(odd) or block
            yield self._results(block, stream)

    def _read_tool_text(self, stream: Chunks, path: str) -> GivenRows:
        if self._src is None:
            raise PingError(
                f"{stream.name}: this looks like the output of ping, fping or mtr, which does not say where "
                "it was run: `ping-llm ingest FILE --src ADDRESS --out FOLDER` makes measurements of it"
            )
        output = tool_text.read_output(stream, path, self._src)
        if output.trouble:
            raise PingError(output.trouble)
        self.left_out += len(output.strange)
        return GivenRows(_batch(output.columns), stream.name, np.array(output.lines, np.int64))

    def _read_parquet(self, stream: Chunks, path: str) -> Iterator[GivenRows]:
        with as_file(stream, path) as file:
            row = 1
            try:
                for columns, part in parquet_tables.parquet_arrays(file, self._needs):
                    numbers = np.arange(row, row + len(part))
                    yield GivenRows(_batch(columns), stream.name, numbers, "row")
                    row += len(part)
            except tables.MissingColumns as error:
                raise PingError(f"{stream.name}: {error}") from None
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise PingError(f"{stream.name} is not a table: {str(error).splitlines()[0]}") from None

    def _check(self, found: dict[str, Any], name: str, names: list[str]) -> None:
        if absent := tables.missing_columns(found, self._needs):
            raise PingError(f"{printable(name)}: {tables.absent_sentence(absent, names)}")

    def _rows(
        self, block: records.Block, columns: dict[str, pa.Array], unparsable: np.ndarray, stream: Chunks
    ) -> GivenRows:
        if unparsable.any() or block.oversize:
            _refuse_damaged(stream.trouble)
            number = block.numbers[unparsable.argmax()] if unparsable.any() else block.oversize[0].number
            raise PingError(
                f"{printable(stream.name)}, line {number:,} cannot be read as a row of the table; "
                "`ping-llm ingest` leaves such rows out and counts them"
            )
        return GivenRows(_batch(columns), stream.name, block.numbers)

    def _results(self, block: records.Block, stream: Chunks) -> GivenRows:
        """The rows of a block of RIPE Atlas results that are measurements of pings."""
        columns = atlas.read_block(block, _OPTIONS).columns
        judge(columns)
        accepted = np.flatnonzero(columns.verdict == ACCEPTED)
        probe_id = columns.probe_id[accepted]
        self.left_out += len(columns) - len(accepted) + len(block.oversize)
        self._not_pings += int((columns.verdict == NOT_PING).sum())
        return GivenRows(
            _batch(
                {
                    "event_time": pa.array(columns.time_us[accepted], pa.timestamp("us", tz="UTC")),
                    "src_addr": addresses.unpack(columns.src[accepted]),
                    "dst_addr": addresses.unpack(columns.dst[accepted]),
                    "rtt": pa.array(columns.rtt[accepted]),
                    "probe_id": pa.array(probe_id, mask=probe_id == UNKNOWN),
                }
            ),
            stream.name,
            block.numbers[accepted],
        )


_OPTIONS = IngestOptions()


def _reason(head: bytes, needs: Sequence[str]) -> str | None:
    """Why a file that is neither a table nor the output of a tool has no rows, if its start tells."""
    if b"\0" in head:
        return "it is binary data, not a text of measurements"
    first_line = head.partition(b"\n")[0].decode("utf-8", "replace").strip()
    names = first_line.split(max(",\t;|", key=first_line.count))
    if first_line.startswith(("{", "[")) or len(names) < 2:
        return None
    return tables.absent_sentence(tables.missing_columns(tables.match_columns(names), needs), names)


def _refuse_damaged(trouble: Trouble) -> None:
    if trouble.sentences:
        sentence = printable(trouble.sentences[0])
        if NOT_READ in sentence:
            raise PingError(f"{sentence}; measurements are text or Parquet (docs/ingest.md has the formats)")
        raise PingError(f"{sentence}; `ping-llm ingest` reads what is whole of it")


def _batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
