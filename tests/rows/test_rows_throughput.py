"""Throughputs in rows: version 3 where one is known, the bytes of before where none is."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rows_data import edge_table, folder_bytes, measurements
from test_rows_golden import GOLDEN, table
from test_rows_kinds import REFERENCE, with_kinds, written

from ping_llm.answer.past import Data
from ping_llm.contexts.memory_rows import rows_of_parquet
from ping_llm.errors import PingError
from ping_llm.measurements.schema import MAX_THROUGHPUT_MBPS
from ping_llm.measurements.throughput import mbps_of, plain_code
from ping_llm.rows.build import RowOptions, build
from ping_llm.rows.codec import to_arrow
from ping_llm.rows.inspect import row_table
from ping_llm.rows.store import RowStore
from ping_llm.rows.verify import verify

EDGES = (None, 0.0, -0.0, -1.0, 0.0005, 0.1275, 0.256, 94.3, 1000.0, MAX_THROUGHPUT_MBPS)
WRONG = (float("inf"), -2.0, -0.5, 2 * MAX_THROUGHPUT_MBPS)


def with_throughputs(given: pa.Table, values, seed: int = 0) -> pa.Table:
    chosen = np.random.default_rng(seed).integers(0, len(values), len(given))
    return given.append_column("throughput_mbps", pa.array([values[one] for one in chosen], pa.float64()))


@pytest.mark.parametrize("seed", range(4))
def test_edge_cases_as_the_reference_has_them(tmp_path, seed):
    given = with_throughputs(edge_table(seed, 60), (*EDGES, *EDGES, float("nan"), *WRONG), seed)
    if seed > 1:
        given = with_kinds(given, ("ping", "hop", "last", None, "echo"), seed)
    path = written(tmp_path, given)
    options = RowOptions(group_by="probe_id" if seed % 2 else "src_addr")
    expected = build([path], tmp_path / "reference", options, REFERENCE)
    assert expected["version"] == 3
    assert build([path], tmp_path / "compiled", options) == expected
    assert folder_bytes(tmp_path / "compiled") == folder_bytes(tmp_path / "reference")
    counts = expected["counts"]
    assert counts["in"] == 60 == counts["measurements"] + sum(counts["rejected"].values())
    assert verify(tmp_path / "compiled").problems == []


def test_every_measurement_keeps_its_throughput_and_its_kind(tmp_path):
    given = with_kinds(with_throughputs(measurements(3000, sources=40), EDGES), ("ping", "hop", "last"))
    path = written(tmp_path, given)
    assert build([path], tmp_path / "rows")["version"] == 3
    assert verify(tmp_path / "rows").problems == []
    store = RowStore(tmp_path / "rows")
    block = store.read(range(len(store)))
    assert set(block.size.tolist()) == {64}
    wanted = sorted(
        (("ping", "hop", "last").index(row["kind"]), row["rtt"], _stored(row["throughput_mbps"]))
        for row in given.to_pylist()
    )
    kept = zip(block.kind.tolist(), block.rtt.tolist(), block.throughput.tolist(), strict=True)
    assert sorted(kept) == wanted
    assert store.index.has_throughput.tolist() == block.has_throughput().tolist()
    assert store.index.other_kinds.tolist() == block.has_other_kinds().tolist()
    # What is answered from rows has the value of the code; in memory they are the same.
    known = Data(tmp_path / "rows", also=("throughput_mbps",)).columns().throughput_mbps
    values = [-1.0 if stored == 0 else mbps_of(stored - 1) for _, _, stored in wanted]
    assert sorted(known.tolist()) == sorted(values)
    memory = rows_of_parquet(path).block
    assert sorted(memory.throughput.tolist()) == sorted(block.throughput.tolist())
    facts, lines = row_table(store, 0, 3)
    assert facts["throughputs"] == int((store.read([0]).throughput > 0).sum())
    assert len(lines[0]) == 8


def _stored(mbps):
    return 0 if mbps is None or mbps == -1 else 1 + plain_code(mbps)


def test_without_a_known_throughput_the_bytes_are_those_of_before(tmp_path):
    given = measurements(500)
    build([written(tmp_path / "a", given)], tmp_path / "plain")
    unknown = with_throughputs(given, (None, -1.0, float("nan")))
    manifest = build([written(tmp_path / "b", unknown)], tmp_path / "unknown")
    assert manifest["version"] == 1
    plain, same = folder_bytes(tmp_path / "plain"), folder_bytes(tmp_path / "unknown")
    assert {**plain, "manifest.json": ""} == {**same, "manifest.json": ""}


def test_golden_bytes_with_throughputs(tmp_path):
    given = table().append_column("kind", pa.array(["hop", "last", None, "ping"]))
    given = given.append_column("throughput_mbps", pa.array([94.3, None, 0.0, MAX_THROUGHPUT_MBPS]))
    manifest = build([written(tmp_path, given)], tmp_path / "rows")
    store = RowStore(tmp_path / "rows")
    golden = json.loads(GOLDEN.read_text())["with_throughputs"]
    assert manifest["version"] == 3
    assert [record.hex() for record in store.read_records(range(3))] == golden["records"]
    assert (tmp_path / "rows" / "index.bin").read_bytes().hex() == golden["index"]
    assert manifest["schema"] == golden["schema"]
    assert manifest["shards"][0]["content"] == golden["content"]


def test_the_bits_are_where_the_format_says(tmp_path):
    one = with_throughputs(with_kinds(measurements(1), ("last",)), (94.3,))
    build([written(tmp_path, one)], tmp_path / "rows")
    record = RowStore(tmp_path / "rows").read_records([0])[0]
    value = to_arrow(record)["measurements"][0].as_py()[0]["size"]
    assert value == 64 + (2 << 17) + ((1 + plain_code(94.3)) << 19)


def test_throughputs_of_another_type_are_refused(tmp_path):
    given = measurements(10).append_column("throughput_mbps", pa.array(["fast"] * 10))
    with pytest.raises(PingError, match="throughput_mbps has type string, it must be a number of Mbit/s"):
        build([written(tmp_path, given)], tmp_path / "rows")


def test_verify_compares_throughputs_with_the_index(tmp_path):
    given = with_throughputs(measurements(200, sources=4), (8.0,))
    build([written(tmp_path, given)], tmp_path / "rows")
    index = (tmp_path / "rows" / "index.bin").read_bytes()
    (tmp_path / "rows" / "index.bin").write_bytes(index[:-1] + bytes([index[-1] & 3]))
    from ping_llm.rows import verify as module

    found = list(module._problems_of_rows(RowStore(tmp_path / "rows", check=False)))
    assert any("having a throughput differs from the index" in problem for problem in found)


def test_older_versions_do_not_read_throughputs(tmp_path):
    """The bits of a throughput in rows that say version 2 are no kind, so they break a rule."""
    given = with_throughputs(with_kinds(measurements(50), ("hop",)), (8.0,))
    build([written(tmp_path, given)], tmp_path / "rows")
    store = RowStore(tmp_path / "rows", check=False)
    store.manifest["version"] = 2
    block = store.read([0])
    assert (block.size > 65_535).all()
    assert not block.throughput.any()


def test_parquet_of_numbers_is_taken(tmp_path: Path):
    for number, kind in enumerate((pa.int32(), pa.float32(), pa.uint64(), pa.null())):
        values = [None] * 10 if kind == pa.null() else [8] * 10
        given = measurements(10).append_column("throughput_mbps", pa.array(values, kind))
        build([written(tmp_path / str(number), given)], tmp_path / str(number) / "rows")
        block = RowStore(tmp_path / str(number) / "rows").read([0])
        assert set(block.throughput.tolist()) == {0 if kind == pa.null() else 1 + plain_code(8.0)}
