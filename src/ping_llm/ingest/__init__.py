"""Raw results → one validated table of measurements, with every result accounted for."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ping_llm.ingest.options import IngestOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_measurements(
    paths: Sequence[str], options: IngestOptions = IngestOptions(), with_kind: bool = False
) -> "Iterator[pa.RecordBatch]":
    """Read the measurements of raw input, block by block: neither sorted nor rid of duplicates.

    What is rejected is left out, and what is wrong with a file only ends it; `run.ingest` tells of both.

    Args:
      paths: files, folders, patterns, or "-".
      with_kind: with the column `kind`?

    Yields:
      record batches of schema.MEASUREMENTS, or of schema.MEASUREMENTS_WITH_KIND.
    """
    import numpy as np

    from ping_llm.ingest.days import measurement_rows
    from ping_llm.ingest.options import find_files
    from ping_llm.ingest.parts import part_rows
    from ping_llm.ingest.reader import InputFile
    from ping_llm.measurements.rules import ACCEPTED

    for path in find_files(paths):
        for block in InputFile(path, options):
            accepted = np.flatnonzero(block.columns.verdict == ACCEPTED)
            if len(accepted):
                yield measurement_rows(part_rows(block, accepted, 0, 0), with_kind)


__all__ = ["IngestOptions", "read_measurements"]
