"""Kinds in rows: version 2 where a measurement is not a ping, version 1 and its bytes where all are."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_data import edge_table, folder_bytes, measurements
from test_rows_golden import GOLDEN, table

from ping_llm.answer.past import Data
from ping_llm.errors import PingError
from ping_llm.rows.build import RowOptions, RunOptions, build
from ping_llm.rows.codec import to_arrow
from ping_llm.rows.inspect import row_table
from ping_llm.rows.store import RowStore
from ping_llm.rows.verify import verify

REFERENCE = RunOptions(engine="reference")


def with_kinds(given: pa.Table, names, seed: int = 0) -> pa.Table:
    chosen = np.random.default_rng(seed).integers(0, len(names), len(given))
    return given.append_column("kind", pa.array([names[one] for one in chosen], pa.string()))


def written(place: Path, given: pa.Table) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(given, place / "in.parquet")
    return place / "in.parquet"


@pytest.mark.parametrize("seed", range(4))
def test_edge_cases_as_the_reference_has_them(tmp_path, seed):
    path = written(
        tmp_path, with_kinds(edge_table(seed, 60), ("ping", "hop", "last", None, "", "echo"), seed)
    )
    options = RowOptions(group_by="probe_id" if seed % 2 else "src_addr")
    expected = build([path], tmp_path / "reference", options, REFERENCE)
    assert build([path], tmp_path / "compiled", options) == expected
    assert folder_bytes(tmp_path / "compiled") == folder_bytes(tmp_path / "reference")
    counts = expected["counts"]
    assert counts["in"] == 60 == counts["measurements"] + sum(counts["rejected"].values())
    assert verify(tmp_path / "compiled").problems == []


def test_every_measurement_keeps_its_kind(tmp_path):
    given = with_kinds(measurements(3000, sources=40), ("ping", "hop", "last", None))
    path = written(tmp_path, given)
    manifest = build([path], tmp_path / "rows")
    assert manifest["version"] == 2
    assert verify(tmp_path / "rows").problems == []
    store = RowStore(tmp_path / "rows")
    block = store.read(range(len(store)))
    assert set(block.size.tolist()) == {64}
    names = [name or "ping" for name in given["kind"].to_pylist()]
    rtts = given["rtt"].to_pylist()
    wanted = sorted((("ping", "hop", "last").index(name), rtt) for name, rtt in zip(names, rtts, strict=True))
    assert sorted(zip(block.kind.tolist(), block.rtt.tolist(), strict=True)) == wanted
    assert store.index.other_kinds.tolist() == block.has_other_kinds().tolist()
    assert sorted(Data(tmp_path / "rows").columns().kind.tolist()) == [kind for kind, _ in wanted]
    facts, _ = row_table(store, 0, 1)
    assert sum(facts["kinds"].values()) == facts["measurements"]


def test_pings_only_have_the_bytes_that_they_had(tmp_path):
    given = measurements(500)
    build([written(tmp_path / "a", given)], tmp_path / "plain")
    manifest = build([written(tmp_path / "b", with_kinds(given, ("ping", None)))], tmp_path / "pings")
    assert manifest["version"] == 1
    plain, pings = folder_bytes(tmp_path / "plain"), folder_bytes(tmp_path / "pings")
    assert {**plain, "manifest.json": ""} == {**pings, "manifest.json": ""}
    assert not Data(tmp_path / "pings").store.read([0]).kind.any()


def test_golden_bytes_with_kinds(tmp_path):
    given = table().append_column("kind", pa.array(["hop", "last", None, "ping"]))
    manifest = build([written(tmp_path, given)], tmp_path / "rows")
    store = RowStore(tmp_path / "rows")
    golden = json.loads(GOLDEN.read_text())["with_kinds"]
    assert manifest["version"] == 2
    assert [record.hex() for record in store.read_records(range(3))] == golden["records"]
    assert (tmp_path / "rows" / "index.bin").read_bytes().hex() == golden["index"]
    assert manifest["schema"] == golden["schema"]
    assert manifest["shards"][0]["content"] == golden["content"]


def test_kinds_of_another_type_are_refused(tmp_path):
    given = measurements(10).append_column("kind", pa.array([1] * 10))
    with pytest.raises(PingError, match="column kind has type int64, it must be text"):
        build([written(tmp_path, given)], tmp_path / "rows")


def test_verify_compares_kinds_with_the_index(tmp_path):
    build([written(tmp_path, with_kinds(measurements(200, sources=4), ("hop",)))], tmp_path / "rows")
    store = RowStore(tmp_path / "rows", check=False)
    first = to_arrow(store.read_records([0])[0])["measurements"][0].as_py()[0]
    assert first["size"] == 64 + (1 << 17)
    index = (tmp_path / "rows" / "index.bin").read_bytes()
    (tmp_path / "rows" / "index.bin").write_bytes(index[:-1] + bytes([index[-1] & 1]))
    from ping_llm.rows import verify as module

    found = list(module._problems_of_rows(RowStore(tmp_path / "rows", check=False)))
    assert any("its kinds differ from the index" in problem for problem in found)
