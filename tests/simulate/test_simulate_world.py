"""The world's shape: sizes, mixtures, prefixes, bytes."""

import ipaddress
import json
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from ping_llm.errors import PingError, UsageError
from ping_llm.measurements import addresses, schema
from ping_llm.simulate import World, WorldOptions, simulate
from ping_llm.simulate.topology import allocate

DUMP = WorldOptions(measurements=200_000, seed=5)
DENSE = WorldOptions(measurements=60_000, probes=60, targets=20, days=14, seed=3)


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "dump"
    return folder, simulate(folder, DUMP)


def read(folder: Path):
    paths = sorted(str(path) for path in folder.rglob("*.parquet"))
    return ds.dataset(paths, format="parquet").to_table()


def test_table_obeys_the_schema(dump):
    folder, _ = dump
    first = sorted(folder.rglob("*.parquet"))[0]
    assert pq.read_schema(first).equals(schema.MEASUREMENTS, check_metadata=True)
    table = read(folder)
    assert len(table) == DUMP.measurements
    time = table["event_time"].to_numpy()
    assert (np.diff(time.astype(np.int64)) >= 0).all()
    rtt = table["rtt"].to_numpy()
    assert ((rtt == schema.NO_REPLY) | ((rtt > 0) & (rtt <= schema.MAX_RTT_MS))).all()
    np.testing.assert_array_equal(rtt[rtt > 0], np.rint(rtt[rtt > 0] * 1000) / 1000)
    errors = table["packet_error_count"].to_numpy()
    assert ((errors == 3) == (rtt < 0)).all()
    assert all(table[name].null_count == 0 for name in table.column_names)


def test_each_day_has_its_own_file(dump):
    folder, world = dump
    for path in folder.rglob("*.parquet"):
        day = path.parent.name.removeprefix("date=")
        assert set(
            np.unique(pq.read_table(path)["event_time"].to_numpy().astype("datetime64[D]").astype(str))
        ) == {day}
    assert len(list(folder.rglob("*.parquet"))) == world.options.days


def test_default_mixtures_are_those_of_the_typical_dump(dump):
    table = read(dump[0])
    rtt = table["rtt"].to_numpy()
    assert (rtt < 0).mean() == pytest.approx(0.035, abs=0.002)
    assert (table["ip_version"].to_numpy() == 6).mean() == pytest.approx(0.42, abs=0.002)
    per_source = np.unique(table["probe_id"].to_numpy(), return_counts=True)[1]
    assert per_source.mean() == pytest.approx(28, rel=0.01)
    assert per_source.max() > 20 * per_source.mean()
    assert np.median(per_source) < 0.7 * per_source.mean()
    p50, p90, p99 = np.quantile(rtt[rtt >= 0], [0.5, 0.9, 0.99])
    assert 40 < p50 < 70
    assert 190 < p90 < 290
    assert 300 < p99 < 450


def test_all_days_are_alike(dump):
    days = dump[1].per_hour.reshape(-1, 24).sum(axis=1)
    assert days.max() < 1.15 * days.min()


def test_pairs_repeat_after_minutes_to_hours():
    world = World.build(DUMP)
    slots = np.diff(world.schedule.first_slot)
    rounds = world.schedule.measurements / slots
    assert np.average(rounds, weights=world.schedule.measurements) > 5
    assert world.schedule.interval.min() >= 240
    assert world.schedule.interval.max() <= 6 * 3600
    for probe in range(200):
        targets = world.schedule.target[
            world.schedule.first_slot[probe] : world.schedule.first_slot[probe + 1]
        ]
        assert len(np.unique(targets)) == len(targets)


def test_addresses_are_public_distinct_and_of_one_version(dump):
    folder, world = dump
    for packed in (world.sources, world.destinations):
        assert len(np.unique(packed, axis=0)) == len(packed)
        for text in addresses.unpack(packed[::7]).to_pylist():
            address = ipaddress.ip_address(text)
            assert address.is_global
            assert not address.is_multicast
    table = read(folder)
    for name in ("src_addr", "dst_addr"):
        is_ipv6 = np.array([":" in text for text in table[name].to_pylist()])
        np.testing.assert_array_equal(is_ipv6, table["ip_version"].to_numpy() == 6)


def test_neighbouring_prefixes_are_related():
    """The RTT to a target varies less inside an AS than overall, and less inside a site than in its AS."""
    world = World.build(WorldOptions(measurements=100_000, seed=1))
    source = addresses.unpack(world.sources)
    for target in range(0, world.targets, 40):
        destination = addresses.unpack(world.destinations[2 * target : 2 * target + 1])[0]
        median = world.truth(
            source,
            [str(destination)] * world.probes,
            np.full(world.probes, world.options.start_second * 10**6),
        ).quantile(0.5)
        by_site = _spread_within(median, world.hosts.site[: world.probes])
        by_as = _spread_within(median, world.hosts.as_index[: world.probes])
        assert by_as < 0.3 * median.var()
        assert by_site < 0.8 * by_as


def _spread_within(values: np.ndarray, groups: np.ndarray) -> float:
    sizes = np.bincount(groups)
    means = np.bincount(groups, values) / np.maximum(sizes, 1)
    return float(((values - means[groups]) ** 2).mean())


def test_prefixes_follow_the_hierarchy():
    world = World.build(WorldOptions(measurements=50_000, seed=2))
    ipv4 = addresses.is_ipv4(world.sources)
    for version, as_bytes, site_bytes in (
        (ipv4, slice(12, 14), slice(12, 15)),
        (~ipv4, slice(0, 4), slice(0, 6)),
    ):
        for level, part in ((world.hosts.as_index, as_bytes), (world.hosts.site, site_bytes)):
            groups = level[: world.probes][version]
            prefixes = np.unique(world.sources[version][:, part], axis=0, return_inverse=True)[1].ravel()
            pairs = np.unique(np.stack([groups, prefixes]), axis=1)
            assert len(np.unique(groups)) == len(np.unique(prefixes)) == pairs.shape[1]


def test_same_seed_same_bytes_and_another_seed_another_world(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        simulate(tmp_path / name, WorldOptions(measurements=20_000, probes=50, targets=9, days=3, seed=seed))
    contents = {
        name: [
            (path.relative_to(tmp_path / name), path.read_bytes())
            for path in sorted((tmp_path / name).rglob("*.*"))
        ]
        for name in "abc"
    }
    assert contents["a"] == contents["b"]
    assert contents["a"] != contents["c"]


def test_slices_do_not_matter(tmp_path, monkeypatch):
    options = WorldOptions(measurements=5_000, probes=20, targets=5, days=2)
    simulate(tmp_path / "large", options)
    monkeypatch.setattr("ping_llm.simulate.write.SLICE", 100)
    simulate(tmp_path / "small", options)
    assert read(tmp_path / "large").equals(read(tmp_path / "small"))


def test_interrupted_run_continues_to_the_same_bytes(tmp_path):
    simulate(tmp_path / "whole", DENSE)
    simulate(tmp_path / "again", DENSE)
    lost = sorted((tmp_path / "again").rglob("*.parquet"))[5]
    kept = sorted((tmp_path / "again").rglob("*.parquet"))[6]
    stamp = kept.stat().st_mtime_ns
    lost.unlink()
    simulate(tmp_path / "again", DENSE)
    assert kept.stat().st_mtime_ns == stamp
    assert lost.read_bytes() == (tmp_path / "whole" / lost.relative_to(tmp_path / "again")).read_bytes()


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="not empty"):
        simulate(tmp_path / "letters", DENSE)
    small = WorldOptions(measurements=1_000, probes=10, targets=5, days=1)
    simulate(tmp_path / "small", small)
    with pytest.raises(UsageError, match="another world"):
        simulate(tmp_path / "small", WorldOptions(measurements=1_000, probes=10, targets=5, days=1, seed=9))


def test_world_file_of_another_version_is_refused(tmp_path):
    simulate(tmp_path, WorldOptions(measurements=100, probes=2, targets=2, days=1))
    saved = json.loads((tmp_path / "world.json").read_text())
    (tmp_path / "world.json").write_text(json.dumps({**saved, "version": 0}))
    with pytest.raises(PingError, match="version 0"):
        World.load(tmp_path)
    with pytest.raises(PingError, match="does not hold a simulated world"):
        World.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "options",
    [
        WorldOptions(measurements=1),
        WorldOptions(measurements=7, probes=7, targets=1, days=1),
        WorldOptions(measurements=100, probes=3, targets=2, days=400, ipv6_share=0.0),
        WorldOptions(measurements=500, probes=2, targets=500, days=1, ipv6_share=1.0, failed_share=0.0),
        WorldOptions(measurements=200_000, probes=1, targets=1, days=1),  # more than one a second
        WorldOptions(measurements=3_000, probes=2_000, targets=3, days=2, ases=2),
    ],
)
def test_extreme_sizes_give_exactly_what_was_asked(tmp_path, options):
    world = simulate(tmp_path / "w", options)
    table = read(tmp_path / "w")
    assert len(table) == options.measurements
    assert len(np.unique(table["probe_id"].to_numpy())) == world.options.probes
    time = (
        table["event_time"].to_numpy().astype("datetime64[s]").astype(np.int64) - world.options.start_second
    )
    assert 0 <= time.min() <= time.max() < world.options.days * 86_400
    if options.failed_share == 0:
        assert (table["rtt"].to_numpy() > 0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"measurements": 0},
        {"measurements": 10, "probes": 11},
        {"targets": 0},
        {"days": 0},
        {"ases": 1},
        {"seed": -1},
        {"ipv6_share": 1.5},
        {"failed_share": 0.9},
        {"start": "yesterday"},
        {"start": "2099-12-31", "days": 9},
    ],
)
def test_impossible_options_are_named(wrong):
    with pytest.raises(UsageError):
        WorldOptions(**wrong).resolved()


def test_allocate_adds_up():
    counts = allocate(1_000, np.array([0.1, 5.0, 0.2, 3.3]))
    assert counts.sum() == 1_000
    np.testing.assert_allclose(counts, 1_000 * np.array([0.1, 5.0, 0.2, 3.3]) / 8.6, atol=1)
