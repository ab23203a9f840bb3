"""Conversion of raw results into a validated table of measurements, with every result accounted for."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ping_llm.errors import PingError
from ping_llm.ingest.options import IngestOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_measurements(
    paths: Sequence[str],
    options: IngestOptions = IngestOptions(),
    version: int = 1,
    troubles: list[str] | None = None,
) -> "Iterator[pa.RecordBatch]":
    """Read the measurements of raw input, block by block, unsorted and with duplicates.

    Records that `run.ingest` would reject are left out.

    Args:
      paths: Files, folders, patterns, or "-".
      version: Version of the table (schema.TABLE_VERSIONS); values that it has no column for are left out.
      troubles: List that receives sentences about damaged files, of which the intact part is read.

    Yields:
      Record batches of that version's schema.

    Raises:
      PingError: a file is damaged, and `troubles` is not given.
    """
    import numpy as np

    from ping_llm.ingest.days import measurement_rows
    from ping_llm.ingest.options import find_files
    from ping_llm.ingest.parts import part_rows
    from ping_llm.ingest.reader import InputFile
    from ping_llm.measurements.rules import ACCEPTED

    for path in find_files(paths):
        file = InputFile(path, options)
        for block in file:
            accepted = np.flatnonzero(block.columns.verdict == ACCEPTED)
            if len(accepted):
                yield measurement_rows(part_rows(block, accepted, 0, 0), version)
        if troubles is not None:
            troubles += file.trouble.sentences
        elif file.trouble.sentences:
            raise PingError(f"{file.trouble.sentences[0]}; `ping-llm ingest` keeps what is whole")


__all__ = ["IngestOptions", "read_measurements"]
