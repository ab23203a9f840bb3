"""Writes shards: rows are collected until the buffer is full, then every shard gets one row group."""

import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow.parquet as pq

from ping_llm.errors import UsageError
from ping_llm.files import whole_file
from ping_llm.schema import MEASUREMENTS
from ping_llm.shards.measurements import Columns
from ping_llm.shards.options import BUFFER_ROWS

#: Descriptors for everything else than the shards.
_OTHER_FILES = 100


class ShardWriter:
    """All shard files, open at once; they appear under their names when all are complete."""

    def __init__(self, paths: list[Path], buffer_rows: int = BUFFER_ROWS):
        self._paths = paths
        self._buffer_rows = buffer_rows
        self._shards = np.empty(buffer_rows, np.uint16)
        self._columns = Columns(
            time=np.empty(buffer_rows, np.int64),
            src=np.empty((buffer_rows, 16), np.uint8),
            dst=np.empty((buffer_rows, 16), np.uint8),
            rtt=np.empty(buffer_rows, np.float64),
            msm_id=np.empty(buffer_rows, np.int64),
            size=np.empty(buffer_rows, np.int64),
            packet_error_count=np.empty(buffer_rows, np.int64),
            probe_id=np.empty(buffer_rows, np.int64),
        )
        self._filled = 0
        self._files = ExitStack()
        self._writers: list[pq.ParquetWriter] = []

    def __enter__(self) -> Self:
        _allow_open_files(len(self._paths) + _OTHER_FILES)
        try:
            for path in self._paths:
                aside = self._files.enter_context(whole_file(path))
                writer = pq.ParquetWriter(aside, MEASUREMENTS, compression="zstd")
                self._writers.append(self._files.enter_context(writer))
        except BaseException as error:
            self._files.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self._flush()
        self._files.__exit__(kind, error, trace)

    def write(self, shards: np.ndarray, rows: Columns) -> None:
        """Append rows to their shards."""
        done = 0
        while done < len(rows):
            count = min(len(rows) - done, self._buffer_rows - self._filled)
            here, there = slice(self._filled, self._filled + count), slice(done, done + count)
            self._shards[here] = shards[there]
            for mine, given in zip(vars(self._columns).values(), vars(rows).values(), strict=True):
                mine[here] = given[there]
            self._filled += count
            done += count
            if self._filled == self._buffer_rows:
                self._flush()

    def _flush(self) -> None:
        shards = self._shards[: self._filled]
        order = np.argsort(shards, kind="stable")
        ends = np.searchsorted(shards[order], np.arange(len(self._writers)), side="right")
        begin = 0
        for writer, end in zip(self._writers, ends.tolist(), strict=True):
            if end > begin:
                table = self._columns.take(order[begin:end]).to_arrow()
                writer.write_table(table, row_group_size=len(table))
            begin = end
        self._filled = 0


def _allow_open_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"Writing the shards takes {needed:,} open files, and this account may have {hard:,}: "
            "give fewer --shards, or raise the limit (ulimit -n)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
