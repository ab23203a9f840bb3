"""Input tables of a query: contexts, pairs, measurements to score."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ping_llm.answer.conditions import COLUMNS, LARGEST, WHOLE, allowed
from ping_llm.answer.context import Question
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements import addresses
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import END_TIME_US, MAX_RTT_MS, is_rtt
from ping_llm.rows.manifest import MANIFEST_FILE

#: Returns the location of a row of a table, for messages.
Place = Callable[[int], str]


class Given:
    """Measurements of files that `ingest` reads, or of probe rows, in parts: (table, location of a row)."""

    def __init__(self, path: Path, needs: Sequence[str], src: str | None = None):
        self._path, self._needs, self._src = path, needs, src

    def __iter__(self) -> Iterator[tuple[pa.Table | pa.RecordBatch, Place]]:
        if (self._path / MANIFEST_FILE).exists():
            from ping_llm.answer.past import Data

            data = Data(self._path, also=tuple(LARGEST))
            yield data.columns().to_arrow(), _place(str(self._path))
            return
        from ping_llm.ingest.given import GivenFiles

        files = GivenFiles(self._path, self._needs, self._src)
        for rows in files:
            if rows.table.num_rows:
                yield rows.table, rows.place
        if files.note:
            print(f"note: {files.note}", file=sys.stderr)
        if not files.rows:
            raise PingError(files.empty)


def read_columns(
    path: Path,
    *,
    needs: tuple[str, ...] = ("src_addr", "dst_addr", "rtt"),
    limit: int | None = None,
    src: str | None = None,
    optional: Collection[str] = (),
) -> Columns:
    """Read the measurements of a file or folder, in its order.

    Args:
      limit: largest number of measurements; the first ones are read.
      optional: names of the optional columns to read, where the table has them.
      src: the address where ping, fping or mtr was run, for the output of one of them.
    """
    from ping_llm.ingest.tables import match_columns

    parts: list[Columns] = []
    left = limit
    for table, place in Given(path, needs, src):
        if left is not None:
            table = table.slice(0, left)
            left -= table.num_rows
        try:
            parts.append(to_columns(table, place, needs=needs, optional=optional))
        except PingError as error:
            if {"event_time", "rtt"} <= match_columns(table.schema.names).keys():  # what ingest needs
                raise PingError(
                    f"{error}; `ping-llm ingest {path} --out FOLDER` keeps the other rows"
                ) from error
            raise
        if left == 0:
            break
    return Columns.concatenate(parts)


def to_columns(
    table: pa.Table | pa.RecordBatch,
    origin: Place | str,
    *,
    needs: tuple[str, ...],
    optional: Collection[str] = (),
) -> Columns:
    """Check a table and convert it to columns. An unknown time becomes -1, an unknown rtt NaN.

    Args:
      needs: names of the required columns; others may be missing or null.
      optional: names of the optional columns to read, where the table has them.
    """
    given = _by_our_names(table, origin, needs)
    place = _place(origin)
    count = table.num_rows

    def packed(name: str) -> np.ndarray:
        if name not in given:
            return np.zeros((count, 16), np.uint8)
        values, valid = addresses.pack(given[name].cast(pa.string()))
        if not valid.all():
            row = int(np.flatnonzero(~valid)[0])
            raise PingError(f"{place(row)}: {name} {given[name][row]} is not an IP address")
        return values

    src, dst = packed("src_addr"), packed("dst_addr")
    mixed = (
        addresses.is_ipv4(src) != addresses.is_ipv4(dst)
        if {"src_addr", "dst_addr"} <= set(given)
        else src[:, 0] < 0
    )
    if mixed.any():
        row = int(np.flatnonzero(mixed)[0])
        raise PingError(
            f"{place(row)}: {given['src_addr'][row]} and {given['dst_addr'][row]} "
            "are not of the same IP version"
        )
    time, rtt = _times(given, place, count), _rtts(given, place, count, "rtt" in needs)
    numbers = _numbers(given, place, [name for name in optional if name != "probe_id"])
    return Columns(time, src, dst, rtt, probe_id=_probe_ids(given), **numbers)


def _place(origin: Place | str) -> Place:
    return (lambda row: f"{origin}, row {row}") if isinstance(origin, str) else origin


def _by_our_names(
    table: pa.Table | pa.RecordBatch, origin: Place | str, needs: Sequence[str]
) -> dict[str, pa.Array]:
    """Known columns of a table by their names here, found under any name that `ingest` accepts."""
    from ping_llm.ingest.tables import match_columns

    names = table.schema.names
    found = {name: table[place] for name, place in match_columns(names).items()}
    for name in needs:
        if name not in found:
            where = origin if isinstance(origin, str) else origin(0)
            raise PingError(f"{where} has no column {name}: it has {', '.join(names) or 'none'}")
    return {
        name: column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for name, column in found.items()
    }


def _times(given: dict[str, pa.Array], place: Place, count: int) -> np.ndarray:
    """Times in µs, from timestamps, ISO texts or numbers of seconds; -1: unknown."""
    from ping_llm.ingest import arrays, parquet_tables
    from ping_llm.measurements.rules import BAD, GIVEN, MISSING

    if "event_time" not in given:
        return np.full(count, -1, np.int64)
    time, state = arrays.times(given["event_time"])
    bad = (state == BAD) | ((state == GIVEN) & ((time < 0) | (time >= END_TIME_US)))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        value = str(parquet_tables.plain_value(given["event_time"][row]))
        raise PingError(f"{place(row)}: event_time {value} is not a time within 1970 to 2100")
    return np.where(state == MISSING, -1, time)


def _rtts(given: dict[str, pa.Array], place: Place, count: int, needed: bool) -> np.ndarray:
    """RTTs in ms; NaN: unknown."""
    from ping_llm.ingest import arrays
    from ping_llm.measurements.rules import BAD, MISSING

    if "rtt" not in given:
        return np.full(count, np.nan)
    rtt, state = arrays.floats(given["rtt"])
    known = (state != MISSING) & ~np.isnan(rtt)
    bad = (state == BAD) | (known & ~is_rtt(rtt)) | (needed & ~known)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        value = given["rtt"][row]
        raise PingError(f"{place(row)}: rtt {value} must be -1 (no reply) or ms, {MAX_RTT_MS:,.0f} at most")
    return rtt


def _probe_ids(given: dict[str, pa.Array]) -> np.ndarray | None:
    """Probe numbers, for names such as probe:1234; an invalid number becomes UNKNOWN."""
    from ping_llm.ingest import arrays
    from ping_llm.measurements.rules import UNKNOWN

    if "probe_id" not in given:
        return None
    number, bad = arrays.integers(given["probe_id"])
    return np.where(bad | (number < 0), UNKNOWN, number)


def _numbers(given: dict[str, pa.Array], place: Place, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """The requested columns that the table has; -1: unknown."""
    from ping_llm.ingest import arrays

    out = {}
    for column, largest in LARGEST.items():
        if column not in given or column not in wanted:
            continue
        read = arrays.integers if column in WHOLE else arrays.optional_floats
        values, bad = read(given[column])
        # A table may have larger probe ids than tokens can hold: those are not stated.
        values = np.where((values > largest) & (column == "probe_id"), -1, values)
        bad = bad | ~((values == -1) | ((values >= 0) & (values <= largest)))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise PingError(f"{place(row)}: {column} {given[column][row]} must be {allowed(column)}")
        out[column] = values
    return out


def read_questions(path: Path, optional: Collection[str] = ()) -> tuple[list[Question], np.ndarray | None]:
    """Read questions, and the observed RTTs if there are any, from a file.

    Its columns are src_addr, dst_addr (addresses or prefixes) and, if known, event_time, rtt, conditions.

    Args:
      optional: conditions that the model was trained on. A note names the others that the table has.
    """
    questions: list[Question] = []
    observed: list[np.ndarray] = []
    unused: list[str] = []
    for table, place in Given(path, ("src_addr", "dst_addr")):
        asked, rtt = questions_of(table, place, optional)
        unused = unused or [name for name in conditions_in(table) if name not in optional]
        questions += asked
        observed.append(np.full(len(asked), np.nan) if rtt is None else rtt)
    if unused:
        print(f"note: {path}: {', '.join(unused)} not used: the model was not trained on it", file=sys.stderr)
    every = np.concatenate(observed)
    return questions, None if np.isnan(every).all() else every


def conditions_in(table: pa.Table | pa.RecordBatch) -> list[str]:
    """Names of the conditions that a table of questions states.

    Packet errors are left out: they are part of a result, not of a question.
    """
    from ping_llm.ingest.tables import match_columns

    places = match_columns(table.schema.names)
    found = {
        name: places[column] for name, column in COLUMNS.items() if column in places and name != "errors"
    }
    return [name for name, place in found.items() if table[place].null_count < table.num_rows]


def questions_of(
    content: pa.Table | pa.RecordBatch, origin: Place | str, optional: Collection[str] = ()
) -> tuple[list[Question], np.ndarray | None]:
    """Make questions from a table in memory, as `read_questions` does from a file."""
    given, place = _by_our_names(content, origin, ("src_addr", "dst_addr")), _place(origin)
    times = _times(given, place, content.num_rows)
    wanted = [name for name in conditions_in(content) if name in optional]
    numbers = _numbers(given, place, [COLUMNS[name] for name in wanted])
    stated = {name: numbers[COLUMNS[name]] for name in wanted}
    questions = []
    for row, (src, dst, time) in enumerate(
        zip(given["src_addr"].to_pylist(), given["dst_addr"].to_pylist(), times.tolist(), strict=True)
    ):
        known = {name: column[row].item() for name, column in stated.items() if column[row] >= 0}
        try:
            question = Question.of(str(src), str(dst), conditions=known)
            questions.append(replace(question, time=None if time == -1 else time))
        except UsageError as error:
            raise PingError(f"{place(row)}: {error}") from None
    return questions, _rtts(given, place, content.num_rows, False) if "rtt" in given else None
