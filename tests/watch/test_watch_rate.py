"""The stated rate of false alarms holds, on simulated worlds and on real series shuffled in time."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch_streams import MINUTE, START, fed

from ping_llm.answer.model import Model
from ping_llm.ingest import read_measurements
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.world import World
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.sequential import EDGES, Calibration, Reference, loss_bet, tail_bet
from ping_llm.watch.watcher import Watcher


def test_bets_are_fair():
    """The expectation of e is at most 1 while the distribution is right: what the rate rests on."""
    tails = (np.arange(200_000) + 0.5) / 200_000
    assert 0.6 < np.mean([np.exp(tail_bet(tail)) for tail in tails[::10]]) <= 1.0
    for failure in (0.0, 0.01, 0.05, 0.5, 0.95):
        mean = failure * np.exp(loss_bet(True, failure)) + (1 - failure) * np.exp(loss_bet(False, failure))
        assert mean <= 1 + 1e-12
    assert loss_bet(True, 0.02) > 3
    assert 3 < tail_bet(0.0001) == tail_bet(0.001) <= np.log(34)


@given(st.integers(0, 1000), st.integers(8, 32))
def test_a_reference_is_not_surprised_by_more_of_the_same(seed, count):
    """Whatever the pair's own offset and spread under its answer, small tails are as rare as they say."""
    random = np.random.default_rng(seed)
    middle, spread = random.uniform(-1, 1), random.uniform(0.3, 1.5)
    below = []
    for _ in range(300):
        known = middle + spread * random.standard_normal(count)
        tails = Reference.of(known, 0, 0.01).tails(float(middle + spread * random.standard_normal()))
        below.append(min(tails))
    assert np.mean(np.array(below) < 0.01) <= 0.02 + 4 * np.sqrt(0.02 / 300)


def test_outliers_count_by_how_often_the_pair_has_them():
    """The bet is fair at the rate that is granted, and a pair with two levels is not surprised by either."""
    for rate in (0.05, 0.2):
        tails = np.where(np.arange(20_000) < rate * 20_000, 0.0, (np.arange(20_000) + 0.5) / 20_000)
        bets = [np.exp(tail_bet(float(tail), tail == 0.0, rate)) for tail in tails]
        assert np.mean(bets) <= 1.0
    steady = Reference.of(np.linspace(-1, 1, 32), 0, 0.01)
    levels = Reference.of(np.r_[np.linspace(-0.1, 0.1, 24), np.full(8, 6.0)], 0, 0.01)
    assert steady.high < 0.1 < 0.3 < levels.high
    assert steady.standard(9.0) > 6
    assert tail_bet(0.001, True, steady.high) > 2
    assert tail_bet(0.001, True, levels.high) < 0.6


def test_calibration_raises_what_is_too_small_and_lowers_nothing():
    made, random = Calibration(), np.random.default_rng(0)
    for _ in range(20_000):
        made.learn(1, (float(random.random() ** 2), float(random.random() ** 0.5)), 0.02)
    made.settle()
    below, above = made.tails(1, (0.01, 0.01))
    assert below == pytest.approx(0.1, rel=0.2)  # P(U² < 0.01)
    assert above == pytest.approx(0.01)  # √U is rarely small
    assert made.failure(0.02) == pytest.approx(0.02)
    assert made.tails(0, (0.02, 0.5)) == (pytest.approx(0.02), pytest.approx(0.5))
    assert EDGES[0] == 0


def rate_of(model, stream, stated):
    """Alarms, and how many there may be at the stated rate: four standard deviations above it."""
    _, events = fed(Watcher(model, WatchOptions(false_alarms_per_day=stated)), stream)
    days = (int(stream.time[-1]) - int(stream.time[0])) / (24 * 60 * MINUTE)
    expected = stated * days
    return sum(event["event"] == "alarm" for event in events), expected + 4 * np.sqrt(expected)


@pytest.mark.slow
def test_false_alarms_on_a_world_without_changes(run):
    """Results drawn from the true distributions of a simulated world at a moment that does not pass."""
    world = World.build(WorldOptions(measurements=6000, probes=40, targets=12, days=6, seed=3))
    random = np.random.default_rng(1)
    probes = np.flatnonzero(~world.source_is_ipv6)[:10]
    pairs = [(probe, target) for probe in probes for target in range(10)]
    rounds = 150
    src = np.tile(world.sources[[pair[0] for pair in pairs]], (rounds, 1))
    dst = np.tile(world.destinations[[2 * pair[1] for pair in pairs]], (rounds, 1))
    truth = world.truth(src, dst, np.full(len(src), world.options.start_second * 1_000_000))
    rtt = truth.quantile(random.random(len(src)))
    rtt = np.where(random.random(len(src)) < truth.failure_probability, -1.0, rtt)
    time = START + np.arange(len(src)) * (10 * MINUTE // len(pairs))
    found, most = rate_of(Model.load(run, data=False), Columns(time, src, dst, rtt), 3.0)
    assert found <= most


@pytest.mark.slow
def test_false_alarms_on_real_series_shuffled_in_time(run, shared_data):
    """Real results in their order, but for the RTTs of each pair, which are dealt out at random."""
    path = shared_data / "atlas" / "dense-series-2023.jsonl.gz"
    real = Columns.from_table(pa.Table.from_batches(list(read_measurements([str(path)]))))
    real = real.sorted_by_time().take(slice(0, 12_000))
    ids, random = Ids(pairs_of(real.src, real.dst)).of_rows, np.random.default_rng(2)
    rtt = real.rtt.copy()
    rtt[np.argsort(ids, kind="stable")] = real.rtt[np.lexsort((random.random(len(real)), ids))]
    model = Model.load(run, data=False)
    found, most = rate_of(model, replace(real, rtt=rtt), 3.0)
    assert found <= most
