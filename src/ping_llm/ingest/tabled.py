"""Conversion of all kinds of inputs to tables of measurements, for commands that read Parquet."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ping_llm.errors import PingError, UsageError
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import IngestReport, ingest
from ping_llm.measurements.parquet import open_input
from ping_llm.paths import printable


@contextmanager
def as_tables(
    inputs: Sequence[str], out: Path, options: IngestOptions = IngestOptions()
) -> Iterator[list[str]]:
    """The inputs themselves if they are Parquet files of measurements, else a table ingested from them.

    The table is in a folder beside `out`, `.OUT.measurements`, which is removed at the end. The same inputs
    give the same bytes, so that an interrupted command can continue. If the process is killed, the folder
    remains, and the next run continues its ingest.

    Raises:
      UsageError: an input does not exist.
      PingError: an input is damaged, or the inputs hold no measurement.
    """
    if are_tables(inputs):
        yield list(inputs)
        return
    folder = out.absolute().with_name(f".{out.absolute().name}.measurements")
    if any(parent.is_file() for parent in folder.parents):
        raise UsageError(f"{out} is not a folder, or lies below a file; name another folder")
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        report = ingest_usable(inputs, folder, options)
        if report.troubles:
            raise PingError(f"{report.troubles[0]}; `ping-llm ingest` reads what is whole of it")
        if left := _left_out(report):
            print(f"note: {printable(left)}", file=sys.stderr)
        yield [str(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # a folder that is not empty stays: the command has written output
            for parent in made:
                parent.rmdir()


def are_tables(inputs: Sequence[str]) -> bool:
    """Whether all inputs are Parquet files with the columns of a measurement."""
    try:
        open_input(inputs)
    except PingError:
        return False
    return True


def ingest_usable(inputs: Sequence[str], out: Path, options: IngestOptions) -> IngestReport:
    """Ingest the inputs, with an error if there is no measurement.

    Raises:
      PingError: the inputs hold no measurement.
    """
    report = ingest(list(inputs), out, options)
    total = report.total
    if not total.measurements:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in total.rejects.most_common(3))
        raise PingError(
            f"no measurement was found in {', '.join(map(str, inputs))}"
            + (f" (rejected: {reasons})" if reasons else "")
            + "; `ping-llm ingest` lists what was rejected"
            + ("; for traceroutes, give --traceroutes hops" if total.not_pings else "")
        )
    return report


def _left_out(report: IngestReport) -> str:
    total = report.total
    reasons = [f"{count:,} {reason}" for reason, count in total.rejects.most_common(3)]
    reasons += [f"{total.not_pings:,} not pings"] if total.not_pings else []
    if not reasons:
        return ""
    return (
        f"{total.rejected + total.not_pings:,} of {total.results:,} results are not measurements "
        f"({', '.join(reasons)}) and were left out; `ping-llm ingest` lists them"
    )
