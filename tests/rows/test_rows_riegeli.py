"""The kernels of the container against ArrayRecord's own library: the same bytes written and read."""

import os
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ping_llm.rows import riegeli
from ping_llm.rows.shard import WRITER_OPTIONS


def written_by_library(path: Path, records: list[bytes]) -> bytes:
    writer = ArrayRecordWriter(str(path), WRITER_OPTIONS)
    for record in records:
        writer.write(record)
    writer.close()
    return path.read_bytes()


def written_by_kernels(records: list[bytes]) -> bytes:
    joined = np.frombuffer(b"".join(records), np.uint8)
    ends = np.cumsum([0, *map(len, records)]).astype(np.int64)
    begins = np.empty(len(records), np.int64)
    end = riegeli.framed_end(ends, riegeli.SIGNATURE_END)
    out = np.zeros(end - riegeli.SIGNATURE_END, np.uint8)
    chunk = np.empty(64 + max(map(len, records), default=0), np.uint8)
    found = riegeli.frame(joined, ends, riegeli.SIGNATURE_END, riegeli.SIGNATURE_END, out, chunk, begins)
    assert found == end
    return riegeli.signature() + out.tobytes() + riegeli.ending(end, begins, np.diff(ends))


def some_records(sizes: list[int]) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.bytes(size) for size in sizes]


sizes = st.lists(
    st.one_of(
        st.integers(1, 300), st.integers(1, 70_000), st.sampled_from([127, 128, 16_383, 16_384, 65_512])
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(sizes)
@example([])
@example([3_000_000, 1, 2_097_151, 2_097_152])
def test_the_same_bytes_as_the_library(tmp_path_factory, sizes):
    records = some_records(sizes)
    path = tmp_path_factory.mktemp("container") / "shard"
    assert written_by_kernels(records) == written_by_library(path, records)


def test_every_place_of_a_chunk_in_a_block(tmp_path):
    """A chunk may begin and end at any byte around the edge of a block: in, before and after its header."""
    for first in range(65_300, 65_560):
        records = some_records([first - 300, 200, 40, 1])
        assert written_by_kernels(records) == written_by_library(tmp_path / "shard", records), first


def test_footers_that_end_around_the_edge_of_a_block(tmp_path):
    """The footer's padding needs another block when a header does not fit."""
    for first in range(64_900, 65_560):
        records = some_records([first])
        assert written_by_kernels(records) == written_by_library(tmp_path / "shard", records), first


def read_by_kernels(path: Path, lengths: list[int]) -> list[tuple[int, bytes]]:
    raw, chunk = np.empty(max(lengths) * 2 + 200, np.uint8), np.empty(max(lengths) + 200, np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    found, begin = [], riegeli.SIGNATURE_END
    for length in lengths:
        fault = riegeli.read_chunk(descriptor, begin, length, raw, chunk)
        found.append((fault, chunk[riegeli.RECORD_AT : riegeli.RECORD_AT + length].tobytes()))
        begin = riegeli.chunk_end(begin, riegeli.data_size(length))
    os.close(descriptor)
    return found


@settings(max_examples=60, deadline=None)
@given(sizes.filter(bool))
def test_what_the_library_writes_is_read(tmp_path_factory, sizes):
    records = some_records(sizes)
    path = tmp_path_factory.mktemp("container") / "shard"
    written_by_library(path, records)
    assert read_by_kernels(path, sizes) == [(riegeli.OK, record) for record in records]


def test_what_the_kernels_write_is_read_by_the_library(tmp_path):
    records = some_records([10, 70_000, 1, 3000] * 20)
    (tmp_path / "shard").write_bytes(written_by_kernels(records))
    reader = ArrayRecordReader(str(tmp_path / "shard"))
    assert reader.read(range(len(records))) == records


@pytest.mark.parametrize("length", [1, 31, 500, 70_000])
def test_a_flipped_bit_anywhere_in_a_chunk_is_found(tmp_path, length):
    """Except in the headers of blocks, which hold nothing that is read."""
    path = tmp_path / "shard"
    whole = written_by_library(path, some_records([length, 20]))
    end = riegeli.chunk_end(riegeli.SIGNATURE_END, riegeli.data_size(length))
    rng = np.random.default_rng(1)
    for place in {
        *range(riegeli.SIGNATURE_END + 8, min(end, 200)),
        *rng.integers(riegeli.SIGNATURE_END + 8, end, 200),
    }:
        if place % riegeli.BLOCK < riegeli.BLOCK_HEADER:
            continue
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        assert read_by_kernels(path, [length])[0][0] != riegeli.OK, place
    path.write_bytes(whole[: end - 1])
    assert read_by_kernels(path, [length])[0][0] == riegeli.TOO_SHORT
