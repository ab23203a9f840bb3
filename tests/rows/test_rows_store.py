"""Reading rows back: order, threads, errors."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rows_data import write_measurements

from ping_llm.errors import PingError
from ping_llm.rows import codec, keys
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of several shards."""
    place = tmp_path_factory.mktemp("store")
    write_measurements(place / "in.parquet", 5000, sources=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "SMALL_PART_MEASUREMENTS", 1000)
        build([place / "in.parquet"], place / "rows")
    return place / "rows"


def test_any_order_and_repeats(folder):
    store = RowStore(folder)
    assert len(store.manifest["shards"]) == 5
    wanted = np.random.default_rng(0).integers(0, len(store), 300)
    block = store.read(wanted)
    assert (np.diff(block.offsets) == store.counts[wanted]).all()
    assert (block.src == store.index.src[wanted]).all()
    one_by_one = [store.read([row]) for row in wanted]
    assert b"".join(one.rtt.tobytes() for one in one_by_one) == block.rtt.tobytes()
    assert (block.time[block.offsets[:-1]] == store.index.first_time[wanted]).all()
    assert (block.time[block.offsets[1:] - 1] == store.index.last_time[wanted]).all()


def test_threads_read_the_same(folder):
    store = RowStore(folder)
    plans = [np.random.default_rng(seed).integers(0, len(store), 64) for seed in range(40)]
    alone = [RowStore(folder).read(plan) for plan in plans]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(store.read, plans))
    assert all(one.equals(other) for one, other in zip(alone, together, strict=True))


def test_pickles_as_its_path(folder):
    store = pickle.loads(pickle.dumps(RowStore(folder)))
    assert store.read([3]).equals(RowStore(folder).read([3]))


def test_rows_that_are_not_there(folder):
    store = RowStore(folder)
    for row in (-1, len(store)):
        with pytest.raises(IndexError, match=f"row {row} of"):
            store.read([0, row])
    assert len(store.read([])) == 0


def test_a_malformed_row_is_named(folder, monkeypatch):
    store = RowStore(folder)
    records = store.read_records(range(4))
    records[2] = records[2][:-8]
    monkeypatch.setattr(store, "read_records", lambda indices: records)
    with pytest.raises(PingError, match=r"row 12 in .*rows-00000-of-00005.arrayrecord is malformed"):
        store.read([10, 11, 12, 13])


def test_records_are_what_arrow_reads(folder):
    store = RowStore(folder)
    block = store.read([7])
    row = codec.to_arrow(store.read_records([7])[0]).to_pylist()[0]
    assert row["src"] == bytes(block.src[0])
    assert [one["rtt"] for one in row["measurements"]] == block.rtt.tolist()


def test_unfinished_and_foreign_folders_are_refused(folder, tmp_path):
    with pytest.raises(PingError, match="does not exist"):
        RowStore(tmp_path / "none")
    with pytest.raises(PingError, match="not a finished folder"):
        RowStore(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(PingError, match="does not describe probe rows"):
        RowStore(tmp_path)
