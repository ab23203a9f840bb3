"""The truth is the distribution that the samples came from."""

import math

import numpy as np
import pyarrow.dataset as ds
import pytest

from ping_llm.errors import PingError
from ping_llm.simulate import Truth, World, WorldOptions, simulate

OPTIONS = WorldOptions(measurements=200_000, probes=300, targets=60, days=14, seed=11)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """(world, table, truth, rtt): the truth of each stored measurement, by its addresses and time."""
    folder = tmp_path_factory.mktemp("truth")
    simulate(folder, OPTIONS)
    world = World.load(folder)
    paths = sorted(str(path) for path in folder.rglob("*.parquet"))
    table = ds.dataset(paths, format="parquet").to_table()
    truth = world.truth(table["src_addr"], table["dst_addr"], table["event_time"])
    return world, table, truth, table["rtt"].to_numpy()


def kolmogorov(uniforms: np.ndarray) -> float:
    """√n times the distance to uniform: above 1.95 once in a thousand, above 2.4 once in 50,000."""
    ordered = np.sort(uniforms)
    n = len(ordered)
    above = (np.arange(1, n + 1) / n - ordered).max()
    below = (ordered - np.arange(n) / n).max()
    return max(above, below) * math.sqrt(n)


def strata(world, table) -> dict[str, np.ndarray]:
    probe = table["probe_id"].to_numpy() - 1
    second = table["event_time"].to_numpy().astype("datetime64[s]").astype(np.int64)
    longitude = world.sites.longitude[world.hosts.site[probe]]
    return {
        "all": np.zeros(len(table), int),
        "access": world.access[probe].astype(int),
        "local hour": ((second / 3600 + longitude / 15) % 24).astype(int) // 3,
        "source AS": world.hosts.as_index[probe].astype(int),
        "day": (second // 86_400).astype(int),
        "version": table["ip_version"].to_numpy().astype(int),
    }


def test_stored_rtts_are_uniform_under_the_true_cdf_in_every_stratum(sampled):
    world, table, truth, rtt = sampled
    replied = rtt >= 0
    # Half a µs: the middle of what was rounded down.
    uniforms = truth.cdf(rtt + 0.0005)
    for name, groups in strata(world, table).items():
        for group in np.unique(groups):
            chosen = uniforms[replied & (groups == group)]
            assert kolmogorov(chosen) < 2.4, (name, group, len(chosen))


def test_failures_happen_with_their_true_probability(sampled):
    world, table, truth, rtt = sampled
    failed = (rtt < 0).astype(float)
    p = truth.failure_probability
    groups = strata(world, table)
    groups["predicted"] = np.digitize(p, np.quantile(p, np.linspace(0, 1, 11)[1:-1]))
    for name, group_of in groups.items():
        for group in np.unique(group_of):
            chosen = group_of == group
            expected, deviation = p[chosen].sum(), math.sqrt((p[chosen] * (1 - p[chosen])).sum())
            assert abs(failed[chosen].sum() - expected) < 4.5 * deviation, (name, group)


def test_mean_bits_are_the_entropy(sampled):
    _, _, truth, rtt = sampled
    bits = truth.bits(rtt)
    chosen = np.random.default_rng(0).choice(len(rtt), 4_000, replace=False)
    difference = bits[chosen] - Truth(truth.parameters[chosen]).entropy()
    assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(difference))
    assert np.isfinite(bits).all()


@pytest.mark.parametrize(("column", "factor"), [(0, 2.0), (2, 1.5), (4, 3.0)])
def test_bits_of_a_wrong_truth_are_more(sampled, column, factor):
    _, _, truth, rtt = sampled
    wrong = truth.parameters.copy()
    wrong[:, column] *= factor
    assert Truth(wrong).bits(rtt).mean() > truth.bits(rtt).mean() + 0.001


def test_bins_add_up_to_one(sampled):
    for row in sampled[2].parameters[:3]:
        for bin_ms in (1.0, 7.0):
            edges = np.arange(0, 301_000, bin_ms)
            each = Truth(np.tile(row, (len(edges), 1)))
            total = row[0] + np.exp2(-each.bits(edges, bin_ms)).sum()
            assert total == pytest.approx(1, abs=1e-9)


def test_bits_agree_with_the_cdf(sampled):
    _, _, truth, rtt = sampled
    replied = rtt >= 0
    low = np.floor(rtt)
    between = (1 - truth.failure_probability) * (truth.cdf(low + 1) - truth.cdf(low))
    usual = replied & (between > 1e-6)
    np.testing.assert_allclose(np.exp2(-truth.bits(rtt))[usual], between[usual], rtol=1e-6)
    np.testing.assert_allclose(np.exp2(-truth.bits(rtt))[~replied], truth.failure_probability[~replied])


def test_quantile_inverts_the_cdf_and_density_is_its_slope(sampled):
    truth = Truth(sampled[2].parameters[:2_000])
    p = np.array([[0.0, 1e-6, 0.01, 0.5, 0.9, 0.999, 1 - 1e-9, 1.0]])
    quantiles = truth.quantile(p)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    np.testing.assert_allclose(truth.cdf(quantiles), np.broadcast_to(p, quantiles.shape), atol=1e-9)
    middle = truth.quantile(0.3)
    step = 1e-5
    slope = (truth.cdf(middle + step) - truth.cdf(middle - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(truth.log_density(middle)), slope, rtol=1e-4)
    assert (truth.log_density(truth.quantile(0.0)) == -np.inf).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        truth.quantile(1.5)


def test_routes_change_now_and_then_and_stay_in_between():
    world = World.build(OPTIONS)
    hours = world.options.start_second + 3600 * np.arange(24 * 60)
    changed = 0
    for probe in range(0, 300, 10):
        truth = Truth.of(world.latency, np.full(len(hours), probe), np.zeros(len(hours), int), hours)
        # The same hour of consecutive days: only the route can differ.
        shift = truth.parameters[:, 1].reshape(60, 24)
        steps = np.abs(np.diff(shift, axis=0)) > 1
        assert steps.mean() < 0.25
        changed += steps.any()
    assert changed > 5


def test_truth_takes_texts_bytes_and_every_kind_of_time(sampled):
    world, table, truth, _ = sampled
    few = table.slice(0, 20)
    expected = truth.parameters[:20]
    time = few["event_time"].to_numpy()
    probe = few["probe_id"].to_numpy() - 1
    for src in (few["src_addr"], few["src_addr"].to_pylist(), world.sources[probe]):
        for when in (time, time.astype(np.int64), few["event_time"].to_pylist(), few["event_time"]):
            np.testing.assert_array_equal(world.truth(src, few["dst_addr"], when).parameters, expected)
    with pytest.raises(PingError, match=r"8\.8\.8\.8 is not a probe"):
        world.truth(["8.8.8.8"], few["dst_addr"].slice(0, 1), time[:1])
