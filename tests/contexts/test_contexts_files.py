"""From files: bad rows, measurement Parquet, contexts written out, and the commands."""

import json
import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_rows import random_rows

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.memory_rows import rows_of_parquet
from ping_llm.contexts.pretokenized import PretokenizedBatches, pretokenize
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.addresses import unpack
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore
from ping_llm.tokens import reference

SHAPE = {"batch_size": 16, "length": 256, "seed": 3}


@pytest.fixture(scope="module")
def memory():
    return random_rows(21, np.random.default_rng(2).integers(1, 90, 150))


@pytest.fixture(scope="module")
def table(memory, tmp_path_factory):
    """The rows' measurements as Parquet, shuffled."""
    block = memory.block
    src = np.repeat(block.src, np.diff(block.offsets), axis=0)
    measurements = pa.table(
        {
            "event_time": pa.array(block.time, pa.timestamp("us", tz="UTC")),
            "src_addr": unpack(src),
            "dst_addr": unpack(block.dst),
            "rtt": block.rtt,
            "msm_id": pa.array(block.msm_id, mask=block.msm_id < 0),
        }
    )
    path = tmp_path_factory.mktemp("measurements") / "measurements.parquet"
    pq.write_table(measurements.take(np.random.default_rng(0).permutation(len(measurements))), path)
    return path


@pytest.fixture
def store(table, tmp_path):
    build([table], tmp_path / "rows")
    return tmp_path / "rows"


def test_measurements_read_directly_give_the_rows_that_a_build_gives(table, store):
    direct, built = rows_of_parquet(table), RowStore(store)
    block = built.read(np.arange(len(built)))
    assert len(direct) == len(built)
    by_source = {direct.block.src[row].tobytes(): row for row in range(len(direct))}
    for row in range(len(built)):
        mine, other = direct.read([by_source[block.src[row].tobytes()]]), block.rows(row, row + 1)
        assert mine.equals(other)
    with Batches(table, data_format="network_parquet", threads=0, **SHAPE) as batches:
        assert next(batches)["targets"].any()
    with pytest.raises(UsageError, match="choose probe_chunks"):
        Batches(table, data_format="json", **SHAPE)
    other = table.with_name("other.parquet")
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(PingError, match="no column"):
        rows_of_parquet(other)


def test_what_lies_beside_the_measurements_is_not_read(table, tmp_path):
    """As `simulate` and `ingest` leave it: Hive partitions, a world, rejects."""
    day = tmp_path / "date=2024-01-01"
    day.mkdir()
    (day / "part.parquet").write_bytes(table.read_bytes())
    (tmp_path / "world.json").write_text("{}")
    (tmp_path / "rejects").mkdir()
    pq.write_table(pa.table({"reason": ["bad_time"]}), tmp_path / "rejects" / "part.parquet")
    assert rows_of_parquet(tmp_path).block.equals(rows_of_parquet(table).block)


@pytest.mark.parametrize("name", ["first", "third"])
def test_columns_that_only_some_files_have_are_read(table, tmp_path, name):
    """The first file must not decide for all: hops of the second were taken for pings."""
    measurements = pq.read_table(table)
    for file in ("first", "second", "third"):
        shown = measurements.slice(0, 10)
        if file == name:
            shown = shown.append_column("kind", pa.array(["hop"] * 10))
        pq.write_table(shown, tmp_path / f"{file}.parquet")
    assert np.bincount(rows_of_parquet(tmp_path).block.kind).tolist() == [20, 10]


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("src_addr", "192.0.2.300", "src_addr"),
        ("dst_addr", "not one", "dst_addr"),
        ("rtt", float("nan"), "rtt"),
        ("rtt", -2.0, "rtt"),
        ("rtt", None, "rtt"),
        ("event_time", 2**62, "event_time"),
        ("event_time", None, "event_time"),
    ],
)
def test_a_bad_measurement_is_named(table, tmp_path, column, value, what):
    measurements = pq.read_table(table)
    kind = measurements.schema.field(column).type
    values = measurements[column].cast(pa.int64() if column == "event_time" else kind).to_pylist()
    values[7] = value
    changed = pa.array(values, pa.int64()).cast(kind) if column == "event_time" else pa.array(values, kind)
    place = measurements.column_names.index(column)
    pq.write_table(measurements.set_column(place, column, changed), tmp_path / "bad.parquet")
    with pytest.raises(PingError, match=f"bad.parquet, row 8: {what}"):
        rows_of_parquet(tmp_path / "bad.parquet")


def _flip(folder, where):
    shard = next(folder.glob("*.arrayrecord"))
    data = bytearray(shard.read_bytes())
    data[int(len(data) * where)] ^= 0xFF
    shard.write_bytes(data)
    return shard


def test_a_flipped_byte_stops_with_row_and_shard(store):
    shard = _flip(store, 0.4)
    with (
        Batches(store, threads=1, **SHAPE) as batches,
        pytest.raises(PingError, match=r"row \d+.*on_bad_row=skip") as caught,
    ):
        list(islice(batches, 40))
    assert shard.name in str(caught.value)
    with pytest.raises(PingError, match="on_bad_row=skip"):  # and not "the end" when asked again
        next(batches)


def test_bad_rows_are_skipped_alike_by_all(store):
    _flip(store, 0.3)
    runs = []
    for how in ({"threads": 0}, {"threads": 2}):
        with Batches(store, on_bad_row="skip", **how, **SHAPE) as batches:
            runs.append((list(islice(batches, 40)), batches.bad_rows))
    assert runs[0][1] == runs[1][1]
    assert 1 <= len(runs[0][1]) < 20
    for one, other in zip(runs[0][0], runs[1][0], strict=True):
        np.testing.assert_array_equal(one["targets"], other["targets"])
    # Neither planned contexts nor fillers of a bad row are in any batch, and their space is not lost.
    bad = {RowStore(store).index.src[row].tobytes() for row in runs[0][1]}
    real = 0
    for batch in runs[0][0]:
        for line in range(16):
            for segment in range(1, batch["targets_segmentation"][line].max() + 1):
                ids = batch["targets"][line][batch["targets_segmentation"][line] == segment]
                assert reference.decode(ids)[0].src.packed not in bad
                real += len(ids)
    assert real > 0.95 * 40 * 16 * 256


def test_a_shard_that_is_gone_is_never_skipped_silently(store):
    shard = next(store.glob("*.arrayrecord"))
    size = shard.stat().st_size
    shard.write_bytes(b"short")
    with pytest.raises(PingError, match="has 5 bytes, the manifest says"):
        Batches(store, on_bad_row="skip", threads=0, **SHAPE)
    shard.write_bytes(bytes(size))
    with pytest.raises(PingError, match=r"none of \d+ rows can be read"):
        next(Batches(store, on_bad_row="skip", threads=0, **SHAPE))


def test_contexts_written_out_are_those_of_the_epoch_and_come_back_through_grain(memory, tmp_path):
    with Batches(memory, epochs=1, threads=0, **SHAPE) as batches:
        description = pretokenize(batches, tmp_path)
    written = pq.read_table(tmp_path / "contexts-00000.parquet")
    assert written.schema.names == ["tokens", "length"]
    assert description["contexts"] == len(written) == np.minimum(-(-memory.index.counts // 30), 16).sum()
    assert written["length"].to_pylist() == [len(tokens) for tokens in written["tokens"].to_pylist()]

    def contexts(batches):
        found = Counter()
        for batch in batches:
            for line in range(len(batch["targets"])):
                of = batch["targets_segmentation"][line]
                for segment in range(1, of.max() + 1):
                    inside = of == segment
                    targets = batch["targets"][line][inside]
                    assert batch["inputs"][line][inside].tolist() == [0, *targets[:-1].tolist()]
                    assert batch["targets_position"][line][inside].tolist() == list(range(len(targets)))
                    found[tuple(targets.tolist())] += 1
        return found

    with Batches(memory, epochs=1, threads=0, **SHAPE) as batches:
        assert contexts(batches) == contexts(PretokenizedBatches(tmp_path, batch_size=16, length=256))


def test_commands_show_and_count(store):
    def run(*words):
        command = [sys.executable, "-c", "from ping_llm.cli import main; main()", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    stats = run("batches", "stats", str(store), "--length", "256", "--batches", "8", "--json")
    assert stats.returncode == 0, stats.stderr
    figures = json.loads(stats.stdout)
    assert figures["rows"] == 150
    assert 0 <= figures["padding_fraction"] < 0.05
    shown = run("batches", "show", str(store), "--length", "256", "--sequences", "2", "--color")
    assert shown.returncode == 0, shown.stderr
    assert "segment 1: " in shown.stdout
    assert "\x1b[34mto " in shown.stdout
    wrong = run("batches", "stats", str(store), "--set", "repeat_source=2")
    assert wrong.returncode == 2
    assert "between 0 and 1" in wrong.stderr
