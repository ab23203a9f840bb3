"""Reading rows back: order, threads, errors."""

import dataclasses
import gc
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from rows_data import measurements, write_measurements

from ping_llm.errors import PingError
from ping_llm.rows import codec, plan
from ping_llm.rows import store as store_module
from ping_llm.rows.build import build
from ping_llm.rows.manifest import write_index
from ping_llm.rows.store import RowStore


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of several shards."""
    place = tmp_path_factory.mktemp("store")
    write_measurements(place / "in.parquet", 5000, sources=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SMALL_PART_MEASUREMENTS", 1000)
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


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_are_closed_with_the_store(folder):
    before = open_files()
    store = RowStore(folder)
    store.read(np.arange(len(store)))
    assert open_files() >= before + 5
    del store
    assert open_files() == before


def test_a_store_that_cannot_be_made_has_nothing_to_close(folder):
    """Whatever is raised while it goes is a warning, and so an error here."""
    with pytest.raises(ValueError, match="negative"):
        store_module.ShardPositions([folder / "absent"], [0], [-64], np.zeros(0, np.int32))
    gc.collect()


def test_more_shards_than_may_stay_open(folder, monkeypatch):
    """A call needs all five shards and two may stay open; threads read while others close."""
    monkeypatch.setattr(store_module, "_MAX_OPEN", 2)
    store, free = RowStore(folder), RowStore(folder)
    plans = [np.random.default_rng(seed).permutation(len(store))[:50] for seed in range(40)]
    before = open_files()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(store.read, plans))
    assert open_files() <= before + 2
    assert all(one.equals(free.read(plan)) for one, plan in zip(together, plans, strict=True))
    del store
    assert open_files() <= before + 5  # those of `free`


def test_pickles_as_its_path(folder):
    store = pickle.loads(pickle.dumps(RowStore(folder)))
    assert store.read([3]).equals(RowStore(folder).read([3]))


def test_rows_that_are_not_there(folder):
    store = RowStore(folder)
    for row in (-1, len(store)):
        with pytest.raises(IndexError, match=f"row {row} of"):
            store.read([0, row])
    assert len(store.read([])) == 0


def test_the_library_reads_the_same_records(folder):
    """ArrayRecord's own reader is the oracle."""
    store = RowStore(folder)
    records = []
    for shard in store.manifest["shards"]:
        reader = ArrayRecordReader(str(folder / shard["file"]))
        records += reader.read(range(shard["rows"]))
    wanted = np.random.default_rng(1).integers(0, len(store), 400)
    assert store.read(wanted).equals(codec.decode([records[row] for row in wanted]))
    assert store.read_records(wanted) == [records[row] for row in wanted]


@pytest.fixture
def damaged(folder, tmp_path):
    """A copy whose shards a test may spoil: `damaged(change)` edits the bytes of the first one."""
    copy = tmp_path / "rows"
    shutil.copytree(folder, copy)

    def damage(change):
        shard = copy / RowStore(copy).manifest["shards"][0]["file"]
        shard.write_bytes(change(bytearray(shard.read_bytes()), RowStore(copy)))
        return RowStore(copy)

    return damage


NAMED = r"row 12 in .*rows-00000-of-00005.arrayrecord is malformed: "


def test_a_flipped_bit_is_named(damaged):
    def flip(data, store):
        data[data.index(store.read_records([12])[0][600:700]) + 50] ^= 4
        return data

    store = damaged(flip)
    with pytest.raises(PingError, match=NAMED + "its checksum differs"):
        store.read([10, 11, 12, 13])
    assert len(store.read([10, 11, 13])) == 3


def test_a_truncated_shard_is_named(damaged, tmp_path):
    def cut(data, store):
        return data[: data.index(store.read_records([12])[0][600:700])]

    with pytest.raises(PingError, match=r"00000-of-00005.arrayrecord has [\d,]+ bytes, the manifest says"):
        damaged(cut)
    store = RowStore(tmp_path / "rows", check=False)
    with pytest.raises(PingError, match=NAMED + "the file ends before it"):
        store.read([10, 11, 12, 13])
    assert len(store.read([10, 11])) == 2


def test_rows_of_another_length_are_named(damaged, folder, tmp_path):
    """The records of a shard that is whole but not this one."""

    def other(data, store):
        return (folder / store.manifest["shards"][1]["file"]).read_bytes()

    with pytest.raises(PingError, match="bytes, the manifest says"):
        damaged(other)
    with pytest.raises(PingError, match="is malformed: it is not of the length that the index says"):
        RowStore(tmp_path / "rows", check=False).read(range(20))


def test_an_index_that_promises_too_much_is_refused(damaged, tmp_path):
    """A count that nobody checked must not become gigabytes of memory."""
    store = damaged(lambda data, store: data)
    index = store.index
    counts = np.array(index.counts)
    for wrong in (2**31 - 1, 0, -5):
        counts[12] = wrong
        changed = dataclasses.replace(index, counts=counts)
        write_index(tmp_path / "rows" / "index.bin", [changed])
        with pytest.raises(PingError, match=r"index.bin is damaged \(its checksum differs"):
            RowStore(tmp_path / "rows")
        with pytest.raises(PingError, match="the index has rows beyond the end of"):
            RowStore(tmp_path / "rows", check=False).read([12])


def test_a_missing_shard_is_named(damaged, tmp_path):
    store = damaged(lambda data, store: data)
    (tmp_path / "rows" / store.manifest["shards"][0]["file"]).unlink()
    with pytest.raises(PingError, match=r"cannot read .*rows-00000-of-00005.arrayrecord: No such file"):
        RowStore(tmp_path / "rows").read([0])


def test_a_flipped_bit_of_index_or_manifest_is_refused(damaged, tmp_path):
    """Training would go on with other rows under the same fingerprint."""
    damaged(lambda data, store: data)
    rng = np.random.default_rng(0)
    for name in ("index.bin", "manifest.json"):
        path = tmp_path / "rows" / name
        whole = path.read_bytes()
        for where in rng.integers(0, len(whole), 40).tolist():
            changed = bytearray(whole)
            changed[where] ^= 1 << rng.integers(8)
            path.write_bytes(changed)
            if name == "manifest.json" and _same_json(changed, whole):
                continue
            with pytest.raises(PingError, match=name.replace(".", r"\.")):
                RowStore(tmp_path / "rows")
        path.write_bytes(whole)
    RowStore(tmp_path / "rows")


def _same_json(one, other) -> bool:
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_a_folder_without_a_manifest_checksum_is_read(damaged, tmp_path):
    """As the first builds wrote them."""
    store = damaged(lambda data, store: data)
    old = {key: value for key, value in store.manifest.items() if key != "checksum"}
    (tmp_path / "rows" / "manifest.json").write_text(json.dumps(old))
    assert RowStore(tmp_path / "rows").read([3]).equals(store.read([3]))


@pytest.mark.parametrize(
    ("column", "says"), [("src_addr", "its source differs"), ("event_time", "its first time differs")]
)
def test_a_shard_of_another_folder_is_noticed(tmp_path, column, says):
    """Of the same size and with the same counts, so that only its content tells."""
    table = measurements(300, sources=1, seed=1)
    folders = []
    for name in ("one", "other"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        build([tmp_path / f"{name}.parquet"], tmp_path / name)
        folders.append(RowStore(tmp_path / name))
        at = table.schema.get_field_index(column)
        moved = ["2001:db8::1" if ":" in text else "192.0.2.1" for text in table["src_addr"].to_pylist()]
        later = pa.array(table["event_time"].cast("int64").to_numpy() + 1_000_000).cast(table.field(0).type)
        table = table.set_column(at, column, pa.array(moved) if column == "src_addr" else later)
    one, other = (folder.path / folder.manifest["shards"][0]["file"] for folder in folders)
    assert one.stat().st_size == other.stat().st_size
    assert one.read_bytes() != other.read_bytes()
    shutil.copy(other, one)
    with pytest.raises(PingError, match=f"row 0 in .* is malformed: {says} from the index"):
        RowStore(tmp_path / "one").read([0])


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
