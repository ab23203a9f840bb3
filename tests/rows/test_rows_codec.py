"""The record codec against pyarrow.ipc, byte for byte, both ways."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.rows import codec
from ping_llm.rows.block import RowBlock


def by_arrow(block: RowBlock, row: int) -> bytes:
    """The oracle: the same row, written by Arrow."""
    one = block.rows(row, row + 1)
    kind = codec.ROW_SCHEMA.field("measurements").type
    columns = [
        pa.array(one.time, pa.timestamp("us", tz="UTC")),
        pa.array([bytes(address) for address in one.dst], pa.binary(16)),
        *(pa.array(column) for column in (one.rtt, one.msm_id, one.probe_id)),
        *(pa.array(column) for column in (one.size, one.packet_error_count)),
    ]
    struct = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
    offsets = pa.py_buffer(np.array([0, one.measurements], np.int32))
    rows = pa.Array.from_buffers(kind, 1, [None, offsets], children=[struct])
    source = pa.array([bytes(one.src[0])], pa.binary(16))
    return pa.RecordBatch.from_arrays([source, rows], schema=codec.ROW_SCHEMA).serialize().to_pybytes()


def random_block(seed: int, counts: list[int]) -> RowBlock:
    rng = np.random.default_rng(seed)
    total = sum(counts)
    return RowBlock.from_columns(
        rng.integers(0, 256, (len(counts), 16), np.uint8),
        counts,
        rng.integers(-(2**63), 2**63 - 1, total),
        rng.integers(0, 256, (total, 16), np.uint8),
        rng.integers(-(2**63), 2**63 - 1, total).view(np.float64),
        rng.integers(-(2**63), 2**63 - 1, total),
        rng.integers(-(2**63), 2**63 - 1, total),
        rng.integers(-(2**31), 2**31 - 1, total, np.int32),
        rng.integers(-(2**31), 2**31 - 1, total, np.int32),
    )


@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), max_size=6))
@settings(deadline=None, max_examples=80)
def test_bytes_are_arrows_and_come_back(seed, counts):
    block = random_block(seed, counts)
    records = codec.encode(block)
    assert records == [by_arrow(block, row) for row in range(len(counts))]
    assert [len(record) for record in records] == [codec.record_bytes(count) for count in counts]
    assert codec.decode(records).equals(block)


@given(st.integers(0, 2**32), st.integers(1, 20), st.data())
@settings(deadline=None, max_examples=200)
def test_a_changed_record_is_refused_or_a_changed_value(seed, count, data):
    """Whatever happens to the bytes: a clear error, or a block of the same shape; never a crash."""
    record = bytearray(codec.encode(random_block(seed, [count]))[0])
    where = data.draw(st.integers(0, len(record) - 1))
    record[where] ^= data.draw(st.integers(1, 255))
    if where < 8 * codec.HEADER_WORDS:
        with pytest.raises(codec.MalformedRowError):
            codec.decode([bytes(record)])
    elif 16 <= where - 8 * codec.HEADER_WORDS < 24:
        with pytest.raises(codec.MalformedRowError, match="offsets"):
            codec.decode([bytes(record)])
    else:
        assert codec.decode([bytes(record)]).measurements == count


@given(st.integers(1, 20), st.data())
@settings(deadline=None, max_examples=100)
def test_cut_or_lengthened_records_are_refused_by_place(count, data):
    good = codec.encode(random_block(1, [3, count]))
    cut = data.draw(st.integers(0, len(good[1]) - 1))
    for bad in (good[1][:cut], good[1] + bytes(cut + 1)):
        with pytest.raises(codec.MalformedRowError) as caught:
            codec.decode([good[0], bad])
        assert caught.value.index == 1


@given(st.lists(st.binary(max_size=1200), min_size=1, max_size=3))
@settings(deadline=None, max_examples=100)
def test_random_bytes_are_refused(records):
    with pytest.raises(codec.MalformedRowError):
        codec.decode(records)


@given(st.integers(700, 10 * 2**20))
@settings(deadline=None)
def test_the_largest_row_within_a_limit(limit):
    count = codec.max_measurements(limit)
    assert codec.record_bytes(count) <= limit < codec.record_bytes(count + 1)


def test_nothing_gives_nothing():
    assert codec.encode(RowBlock.empty(0, 0)) == []
    assert len(codec.decode([])) == 0


def test_empty_rows_are_refused():
    with pytest.raises(ValueError, match="from 1"):
        codec.encode(RowBlock.from_columns([bytes(16)], [0], [], [], []))
