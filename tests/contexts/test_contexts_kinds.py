"""`network_kinds`: contexts of some kinds are those of rows that never had the others."""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_rows import random_rows

from ping_llm.contexts import kinds as module
from ping_llm.contexts.batches import Batches
from ping_llm.contexts.kinds import RowsOfKinds, of_kinds
from ping_llm.contexts.memory_rows import MemoryRows
from ping_llm.contexts.options import ContextOptions
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.schema import HOP, LAST, PING
from ping_llm.rows.block import RowBlock
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore

SHAPE = {"batch_size": 4, "length": 256, "epochs": 1}


def mixed(seed: int = 1, rows: int = 40) -> MemoryRows:
    """Rows of pings alone, of hops alone, and of all kinds."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(1, 80, rows)
    block = random_rows(seed, counts).block
    kind = chance.integers(0, 3, block.measurements).astype(np.uint8)
    of_row = np.repeat(np.arange(rows), counts)
    kind[of_row % 4 == 0] = PING
    kind[of_row % 4 == 1] = HOP
    return MemoryRows(replace(block, kind=kind))


def without(rows: MemoryRows, codes: tuple[int, ...]) -> MemoryRows:
    """The same, one measurement after another."""
    block, kept = rows.block, []
    for row in range(len(block)):
        places = range(block.offsets[row], block.offsets[row + 1])
        chosen = [place for place in places if block.kind[place] in codes]
        if chosen:
            kept.append((row, chosen))
    places = [place for _, chosen in kept for place in chosen]
    names = ("msm_id", "probe_id", "size", "packet_error_count", "kind", "throughput")
    return MemoryRows(
        RowBlock.from_columns(
            block.src[[row for row, _ in kept]], [len(chosen) for _, chosen in kept], block.time[places],
            block.dst[places], block.rtt[places], **{name: getattr(block, name)[places] for name in names},
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "codes"), [("ping", (PING,)), ("hop", (HOP,)), ("last, ping", (PING, LAST)), ("", (0, 1, 2))]
)
def test_the_batches_of_rows_that_never_had_others(names, codes, monkeypatch):
    monkeypatch.setattr(module, "_READ", 300)  # several reads
    rows = mixed()
    found = list(Batches(rows, ContextOptions(kinds=names, crossed_probability=0.3), **SHAPE))
    expected = list(Batches(without(rows, codes), ContextOptions(crossed_probability=0.3), **SHAPE))
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in other)


def test_the_index_is_that_of_what_is_left(monkeypatch):
    monkeypatch.setattr(module, "_READ", 300)
    rows = mixed(2)
    found, expected = RowsOfKinds(rows, ["last"]), without(rows, (LAST,))
    for name in ("first_time", "last_time", "src", "counts"):
        assert np.array_equal(getattr(found.index, name), getattr(expected.index, name)), name
    chosen = [3, 0, 3]
    assert found.read(chosen).equals(expected.read(chosen))
    again = pickle.loads(pickle.dumps(found))
    assert again.read(chosen).equals(found.read(chosen))
    assert found.fingerprint == again.fingerprint != rows.fingerprint


def test_rows_of_pings_are_left_alone_and_kinds_that_nobody_has_are_refused():
    pings = random_rows(3, np.array([5, 40]))
    assert of_kinds(pings, ["ping"]) is pings
    assert of_kinds(mixed(), []).fingerprint == mixed().fingerprint
    with pytest.raises(PingError, match="the rows hold no measurement of kind hop or last"):
        of_kinds(pings, ["hop", "last"])
    with pytest.raises(UsageError, match="kinds is 'pong': it may name ping, hop, last"):
        ContextOptions(kinds="pong")
    assert ContextOptions().digest() != ContextOptions(kinds="ping").digest()


def test_built_rows_too(tmp_path):
    count = 300
    given = pa.table(
        {
            "event_time": pa.array(1_700_000_000_000_000 + np.arange(count), pa.timestamp("us", tz="UTC")),
            "src_addr": [f"192.0.2.{n % 7}" for n in range(count)],
            "dst_addr": ["198.51.100.7"] * count,
            "rtt": np.arange(count, dtype=float),
            "kind": [("ping", "hop", None)[n % 3] for n in range(count)],
        }
    )
    pq.write_table(given, tmp_path / "in.parquet")
    build([tmp_path / "in.parquet"], tmp_path / "rows")
    hops = RowsOfKinds(RowStore(tmp_path / "rows"), ["hop"])
    block = hops.read(np.arange(len(hops.index)))
    assert sorted(block.rtt.tolist()) == [float(n) for n in range(count) if n % 3 == 1]
    parquet = Batches(
        tmp_path / "in.parquet", ContextOptions(kinds="hop"), data_format="network_parquet", **SHAPE
    )
    assert parquet.stream.rows.index.counts.sum() == count // 3
