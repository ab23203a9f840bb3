"""The parts of a stack: weights, calibration, what is kept, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from short_training import short_training

from ping_llm.answer import network, own_past, stacking, state
from ping_llm.answer import weights as weights_of
from ping_llm.answer.answering import SimpleModel
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import FLOOR_MS, GRID, _blurred_plainly, blurred, capped, shifts
from ping_llm.answer.methods.boosted import Trees
from ping_llm.answer.methods.registry import BASELINES, kept_classes, make
from ping_llm.answer.questions import AMOUNTS, CELLS, NAMES, UNSEEN_NETWORK, Evidence, evidence
from ping_llm.answer.stack import Stack, recalibrated
from ping_llm.answer.stacking import point_methods
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Filter, Ids, hashed, pairs_of
from ping_llm.measurements.parquet import read_measurements
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import SplitOptions, split
from ping_llm.splits.novelty import Novelty
from ping_llm.splits.questions import questions_of

OPTIONS = SplitOptions(0.8, 0.15, 0.2, 0.2, 2)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Columns:
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=6000, probes=40, targets=12, days=6, seed=3))
    return read_measurements(folder)


@pytest.fixture(scope="module")
def stack(data) -> Stack:
    """A stack of simple methods, which needs no network."""
    from ping_llm.fit.held_out import held_out

    train, tests = held_out(data, OPTIONS, 60)
    names = tuple(name for name in BASELINES if name not in ("boosted", "dmfsgd", "embeddings"))
    return stacking.fit_stack(None, train, tests, data, names, {"note": "test"})


# --- numbers of addresses, and sets in a few bits


@given(arrays(np.uint8, st.tuples(st.integers(0, 40), st.just(5)), elements=st.integers(0, 2)))
def test_numbers_agree_with_a_dictionary(rows):
    ids = Ids(rows)
    texts = [row.tobytes() for row in rows]
    assert len(ids) == len(set(texts))
    assert len({(text, number) for text, number in zip(texts, ids.of_rows, strict=True)}) == len(set(texts))
    np.testing.assert_array_equal(ids.find(rows), ids.of_rows)
    assert not ids.has(np.full((3, 5), 9, np.uint8)).any()


def test_a_filter_never_denies_a_member_and_rarely_claims_a_stranger():
    random = np.random.default_rng(0)
    members = random.integers(0, 256, (20_000, 16), np.uint8)
    strangers = random.integers(0, 256, (200_000, 16), np.uint8)
    small = Filter(members)
    assert small.has(members).all()
    assert not small.has(strangers).any()  # 32 bits per member: one in five million
    assert small.words.nbytes == 4 * len(members)
    tight = Filter(members)
    tight.words, tight.probes = np.zeros(20_000 * 8 // 64, np.uint64), 6
    word, bit = tight._places(hashed(members))
    np.bitwise_or.at(tight.words, word.ravel(), bit.ravel())
    assert tight.has(members).all()
    claimed = tight.has(strangers).mean()
    assert 0.8 * tight.false_positive_rate < claimed < 1.2 * tight.false_positive_rate
    assert not Filter(members[:0]).has(members).any()


# --- what may be looked back on


def test_without_a_time_everything_may_be_looked_at():
    addresses = np.zeros((4, 16), np.uint8)
    columns = Columns(np.array([5, 3, 3, 9]), addresses, addresses, np.array([1.0, 2.0, 3.0, -1.0]))
    history = History(columns)
    queries = columns.queries()
    assert history.of_source(queries).count.tolist() == [2, 0, 0, 3]
    assert history.replies_of_pair(queries.without_time()).count.tolist() == [3] * 4
    assert queries.without_time().time.tolist() == [NO_TIME] * 4
    contexts = History.of_contexts([columns.take(slice(0, 1)), Columns.empty(), columns.take(slice(2, 4))])
    asked = replace(queries.take(slice(0, 3)), owner=np.array([2, 1, 0]), time=np.array([10, 10, 10]))
    assert contexts.of_source(asked).count.tolist() == [2, 0, 1]
    assert contexts.results_of_pair(asked).count.tolist() == [2, 0, 1]
    assert contexts.replies_of_pair(asked.take(np.array([0, 2]))).count.tolist() == [1, 1]


def test_many_years_and_many_sources_do_not_overflow():
    """Group and time are one key: 2^62 of them would be too many."""
    count = 3000
    addresses = np.zeros((count, 16), np.uint8)
    addresses.view(np.int64)[:, 0] = np.arange(count)
    columns = Columns(np.arange(count) * 10**15, addresses, addresses, np.ones(count))
    queries = replace(columns.queries(), time=columns.time + 1)
    assert History(columns).of_source(queries).count.tolist() == [1] * count


# --- curves


def _random_distributions(random, rows):
    values = np.sort(random.gamma(2, 30, (rows, 20)), axis=1)
    levels = np.sort(random.random((rows, 20)), axis=1)
    levels[:, 0], levels[:, -1] = 0, 1
    return RttDistributions(values, levels, random.random(rows) * 0.2)


def test_one_distribution_and_many_agree():
    random = np.random.default_rng(1)
    many = _random_distributions(random, 30)
    levels, rtt = random.random(7), random.gamma(2, 30, 30)
    quantiles, on = many.quantile(levels), many.on(GRID)
    for index in range(30):
        one = many[index]
        np.testing.assert_array_equal(one.quantile(levels), quantiles[index])
        np.testing.assert_allclose(one.cdf(GRID), on[index], atol=1e-12)
        assert one.bits(rtt[index]) == pytest.approx(many.bits(rtt)[index], rel=1e-9)
        assert one.typical(0.3) == many.typical(0.3)[index]
        assert one.failure == many.failure[index]


def test_a_blur_agrees_with_the_plain_mean_over_shifts():
    random = np.random.default_rng(2)
    levels = _random_distributions(random, 4).on(GRID)
    spread = np.array([0.0, 0.05, 0.3, 0.75])
    found = blurred(levels, spread)
    np.testing.assert_allclose(_blurred_plainly(GRID, levels, spread, shifts()), found, atol=1e-9)
    np.testing.assert_array_equal(found[0], levels[0])
    for row in range(1, 4):
        moved = (GRID[:, None] + FLOOR_MS) * np.exp(-spread[row] * shifts()) - FLOOR_MS
        plain = np.interp(moved.ravel(), GRID, levels[row], left=0.0).reshape(moved.shape).mean(axis=1)
        np.testing.assert_allclose(found[row], plain, atol=1e-9)
    capped_levels = capped(levels, 100.0)
    assert (capped_levels[:, GRID > 101] == 1).all()


@given(st.floats(-0.6, 0.6), st.floats(0.6, 1.8))
def test_a_recalibration_is_monotone_and_keeps_the_ends(shift, scale):
    levels = np.linspace(0, 1, 101)
    out = recalibrated(levels, shift, scale)
    assert (np.diff(out) >= 0).all()
    assert out[0] == 0
    assert out[-1] == 1
    np.testing.assert_allclose(recalibrated(levels, 0.0, 1.0), levels, atol=1e-9)


# --- weights


def test_weights_go_to_what_was_right_and_few_ends_are_not_believed():
    random = np.random.default_rng(3)
    good, bad = random.uniform(0.2, 0.6, 4000), random.uniform(0.0, 0.02, 4000)
    probability = np.stack([bad, good, bad], axis=1)
    products = np.tile(np.diag([90.0, 1.0, 90.0]), (4000, 1, 1))
    equal = np.full(3, 1 / 3)
    many = weights_of.best_weights(probability, products, np.arange(4000), equal, 3.0)
    assert many[1] > 0.85
    few = weights_of.best_weights(probability, products, np.arange(4000) % 2, equal, 3.0)
    assert 0.4 < few[1] < many[1]  # 4,000 questions about two ends
    none = weights_of.best_weights(probability[:0], products[:0], np.zeros(0), equal, 3.0)
    np.testing.assert_array_equal(none, equal)
    np.testing.assert_allclose([many.sum(), few.sum()], 1.0)


def test_the_crps_of_a_mixture_is_the_quadratic_form_of_the_products():
    random = np.random.default_rng(4)
    parts = [_random_distributions(random, 20) for _ in range(3)]
    rtt = random.gamma(2, 30, 20)
    curves = np.stack([part.on(GRID[:: weights_of.COARSE]) for part in parts], axis=1)
    products = weights_of.products_of(curves, rtt)
    weights = np.array([0.5, 0.3, 0.2])
    mixture = sum(w * part.on(GRID) for w, part in zip(weights, parts, strict=True))
    exact = RttDistributions(np.broadcast_to(GRID, mixture.shape), mixture, np.zeros(20)).crps(rtt)
    found = np.einsum("i,nij,j->n", weights, products, weights)
    np.testing.assert_allclose(found, exact, rtol=0.05, atol=0.3)
    assert found.mean() == pytest.approx(exact.mean(), rel=0.02)


def test_a_pair_with_a_past_is_answered_from_it_whether_trained_on_or_not(data):
    """The answer must not contradict the pair's own history because the pair was held out of a training."""
    splits = split(data, OPTIONS)
    asked = splits.test("pairs").take(slice(-30, None))
    everything = History(data)
    trained = Novelty.of(splits.train)
    assert not trained.pairs.has(pairs_of(asked.src, asked.dst)).any()
    known = everything.replies_of_pair(asked.queries()).count > 3
    assert known.sum() > 5
    for name in ("pair last", "pair recent"):
        method = make(name).fit(splits.train)
        assert (method.newness(asked.queries(), everything)[known] == Novelty.KNOWN_PAIR).all()
        seen, blind = (
            method.predict(asked.queries(), history).bits(asked.rtt)[known].mean()
            for history in (everything, History(splits.visible))
        )
        assert seen < blind - 0.5


def test_a_stack_is_at_least_as_good_as_its_parts(stack, data):
    """On questions that decided it; other tests ask about questions that did not."""
    from ping_llm.fit.held_out import held_out

    train, tests = held_out(data, OPTIONS, 60)
    methods = {name: make(name).fit(train) for name in stack.components}
    asked = replace(stack, methods=methods, trained=Novelty.of(train))
    for test in tests:
        mixture = asked.answer(None, test.queries(), test.context).distributions.bits(test.asked.rtt).mean()
        best = min(
            method.predict(test.queries(), test.context).bits(test.asked.rtt).mean()
            for method in asked.methods.values()
        )
        assert mixture < 1.01 * best, test.name


def held(kinds: np.ndarray, good: np.ndarray, ends: np.ndarray, components: int) -> weights_of.Held:
    """Questions in whose bin the component `good` puts half of its probability, the others 2 %."""
    count = len(kinds)
    below = np.zeros((count, components, 3))
    below[:, :, 1] = 0.02
    below[np.arange(count), good, 1] = 0.5
    products = np.tile(np.eye(components) * 9.0, (count, 1, 1))
    products[np.arange(count), good, good] = 1.0
    none, yes = np.zeros(count, np.int64), np.ones(count, bool)
    known = Evidence(none, none, yes, yes, yes, yes, yes, kinds)
    failure = np.zeros((count, components))
    return weights_of.Held(np.full(count, 0.5), known, ends, failure, below, products, None)


def test_kinds_without_questions_borrow_from_their_neighbours():
    kinds = np.repeat([Novelty.NEW_SOURCE, Novelty.NEW_DESTINATION], 500)
    good = np.repeat([0, 1], 500)
    _, weights = weights_of.fit_weights(held(kinds, good, np.arange(1000), 2), ("prefixes", "vivaldi"))
    np.testing.assert_allclose(
        weights[UNSEEN_NETWORK * AMOUNTS], weights[Novelty.NEW_SOURCE * AMOUNTS + 1], atol=0.02
    )
    assert weights[UNSEEN_NETWORK * AMOUNTS, 0] > 0.8
    assert weights[Novelty.NEW_DESTINATION * AMOUNTS, 1] > 0.8


def test_a_known_pair_is_answered_from_its_past_where_none_was_held_out():
    names = ("vivaldi", "pair last", "pair recent")
    kinds = np.full(300, Novelty.NEW_PAIR)
    _, weights = weights_of.fit_weights(held(kinds, np.zeros(300, int), np.arange(300), 3), names)
    first = Novelty.KNOWN_PAIR * AMOUNTS
    assert weights[first, 0] > 0.8  # nothing to look back on
    assert (weights[first + 1 : first + AMOUNTS, 1:].sum(axis=1) > 0.5).all()


def test_further_splits_outvote_a_few_misleading_ends():
    names = ("prefixes", "vivaldi")
    kinds = np.full(60, Novelty.NEW_SOURCE)
    misled = held(kinds, np.zeros(60, int), np.arange(60) % 3, 2)
    more = held(np.full(1200, Novelty.NEW_SOURCE), np.ones(1200, int), np.arange(1200) % 60, 2)
    _, alone = weights_of.fit_weights(misled, names)
    _, together = weights_of.fit_weights(misled, names, more)
    cell = Novelty.NEW_SOURCE * AMOUNTS
    assert alone[cell, 0] > 0.6
    assert together[cell, 1] > 0.8


def test_further_splits_do_not_decide_on_the_network():
    """They have no answers of it: its weight follows the questions that it was asked."""
    kinds = np.full(200, Novelty.NEW_SOURCE)
    for best in (0, 1):
        own = held(kinds, np.full(200, best), np.arange(200) % 40, 3)
        grid = np.zeros((200, len(GRID)))
        own = replace(own, curves=network.Curves(grid, np.zeros(200), np.zeros(200, np.int64)))
        more = held(kinds, np.ones(200, int), np.arange(200) % 40, 2)
        _, weights = weights_of.fit_weights(own, ("network", "prefixes", "vivaldi"), more)
        cell = Novelty.NEW_SOURCE * AMOUNTS
        assert (weights[cell, 0] > 0.5) == (best == 0)
        assert weights[cell, 2] > weights[cell, 1] or best == 1


def test_products_are_the_crps_of_a_mixture_and_zero_without_a_reply():
    random = np.random.default_rng(8)
    first, second = _random_distributions(random, 40), _random_distributions(random, 40)
    rtt = random.gamma(2, 30, 40)
    rtt[:10] = NO_REPLY
    on_grid = np.stack([each.on(GRID[:: weights_of.COARSE]) for each in (first, second)], axis=1)
    products = weights_of.products_of(on_grid, rtt)
    assert (products[:10] == 0).all()
    shares = np.array([0.3, 0.7])
    levels = 0.3 * first.on(GRID) + 0.7 * second.on(GRID)
    mixture = RttDistributions(np.broadcast_to(GRID, levels.shape), levels, np.zeros(40))
    found = np.einsum("i,nij,j->n", shares, products, shares)
    np.testing.assert_allclose(found[10:].mean(), mixture.crps(rtt)[10:].mean(), rtol=0.03)


def test_a_network_that_knows_nothing_gets_next_to_nothing():
    names = ("network", *(f"method {number}" for number in range(14)))
    kinds = np.full(500, Novelty.KNOWN_PAIR)
    own = held(kinds, np.full(500, 3), np.arange(500) % 3, 15)  # three ends: the start counts
    grid = np.zeros((500, len(GRID)))
    own = replace(own, curves=network.Curves(grid, np.zeros(500), np.zeros(500, np.int64)))
    more = held(kinds, np.full(500, 2), np.arange(500) % 25, 14)
    _, weights = weights_of.fit_weights(own, names, more)
    assert weights[Novelty.KNOWN_PAIR * AMOUNTS + 1, 0] < 0.06  # 0.075 if it started with a half


def test_kinds_follow_what_is_known(data):
    splits = split(data, OPTIONS)
    trained, history = Novelty.of(splits.train, Filter), History(splits.visible)
    for test, allowed in {
        "later": {"known pair"},
        "pairs": {"new pair"},
        "sources": {"new source", "unseen network"},
        "destinations": {"new destination"},
    }.items():
        known = evidence(splits.test(test).queries(), history, trained)
        assert {NAMES[kind] for kind in known.kind} <= allowed
    # A pair that was never trained on, but has a past to look at, is known.
    sources = splits.test("sources")
    seen = evidence(sources.queries().without_time(), History(sources), trained)
    assert {NAMES[kind] for kind in seen.kind} == {"known pair"}


# --- a pair's own results


def _one_past(rtts) -> tuple[Columns, History]:
    """A question about one pair, and its results before it."""
    count = len(rtts)
    ends = np.full((count + 1, 16), 7, np.uint8)
    columns = Columns(np.arange(count + 1) * 1000, ends, ends, np.array([*rtts, 50.0], float))
    return columns.take(slice(count, None)), History(columns)


def test_the_newest_replies_of_a_pair_come_first():
    asked, history = _one_past([1.0, 2.0, NO_REPLY, *range(3, 12)])
    found = own_past.newest(asked.queries(), history)
    np.testing.assert_array_equal(found, [[11, 10, 9, 8, 7, 6, 5, 4]])
    asked, history = _one_past([5.0, NO_REPLY])
    np.testing.assert_array_equal(own_past.newest(asked.queries(), history), [[5.0] + 7 * [np.nan]])
    assert np.isnan(own_past.newest(asked.queries(), History(asked))).all()


@given(arrays(np.float64, (6, own_past.NEWEST), elements=st.one_of(st.floats(0, 3000), st.just(np.nan))))
def test_the_likelihood_of_results_agrees_with_the_plain_one(results):
    many = _random_distributions(np.random.default_rng(9), 6)
    found = own_past.log_likelihood(many, results)
    for row in range(6):
        plain = 0.0
        for rtt in results[row][~np.isnan(results[row])]:
            half = max(own_past.WIDTH * rtt, 0.5)
            below, above = np.interp([rtt - half, rtt + half], many.values[row], many.levels[row], 0.0, 1.0)
            plain += np.log(max(above - below, 1e-4))
        assert found[row] == pytest.approx(plain, abs=1e-6)


def test_a_mixture_with_moved_weights_agrees_with_the_plain_one(stack, data):
    """The plain way: every component's curve, `tempered` weights, and the sum."""
    assert stack.past_power > 0
    asked, history = data.take(slice(-60, None)).queries(), History(data)
    known = evidence(asked, history, stack.trained)
    parts = [stack.methods[name].predict(asked, history) for name in stack.components]
    curves = np.stack([part.on(GRID) for part in parts], axis=1)
    lost = np.stack([part.failure for part in parts], axis=1)
    results = own_past.newest(asked, history)
    past = np.stack([own_past.log_likelihood(part, results) for part in parts], axis=1)
    assert (past < 0).any()
    weights = own_past.tempered(stack.weights[known.cell], past, stack.components, stack.past_power)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    replies = weights * (1 - lost)
    levels = np.einsum("nc,ncg->ng", replies, curves) / replies.sum(axis=1, keepdims=True)
    levels = recalibrated(levels, stack.shift[known.kind][:, None], stack.scale[known.kind][:, None])
    found = stack.answer(None, asked, history).distributions
    np.testing.assert_allclose(found.levels[:, 1:-1], levels[:, 1:-1], atol=1e-9)
    np.testing.assert_allclose(found.failure, (weights * lost).sum(axis=1), atol=1e-9)


@given(
    arrays(np.float64, (5, 4), elements=st.floats(-20, 0)),
    arrays(np.float64, (5, 4), elements=st.sampled_from([0.0, 0.1, 0.5])),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_weights_move_only_to_what_looks_at_the_past(past, weights, power):
    names = ("vivaldi", "pair last", "network", "pair recent")
    weights[:, 0] += 0.01
    found = own_past.tempered(weights, past, names, power)
    for row in range(5):
        looking = [i for i in (1, 3) if weights[row, i] > 0] or [i for i in range(4) if weights[row, i] > 0]
        best = max(past[row, i] for i in looking)
        plain = weights[row].copy()
        for i in range(4):
            if i in (0, 2) and weights[row, i] > 0:
                plain[i] *= min(1.0, np.exp(past[row, i] - best)) ** power
        np.testing.assert_allclose(found[row], plain / plain.sum(), rtol=1e-9)


@pytest.mark.parametrize("better", [0, 1])
def test_the_power_follows_the_held_out_questions(better):
    """The results of the pair speak for the first component; the answers, for one or the other."""
    count, names = 400, ("pair last", "vivaldi")
    known = held(np.full(count, Novelty.KNOWN_PAIR), np.full(count, better), np.arange(count), 2)
    past = np.tile([-0.5, -3.0], (count, 1))
    weights = np.full((CELLS, 2), 0.5)
    power = weights_of.fit_past_power(replace(known, past=past), weights, names)
    assert power == (own_past.POWERS[-1] if better == 0 else own_past.POWERS[0])
    new = held(np.full(count, Novelty.NEW_PAIR), np.full(count, better), np.arange(count), 2)
    assert weights_of.fit_past_power(replace(new, past=past), weights, names) == own_past.DEFAULT
    assert weights_of.fit_past_power(replace(known, past=0 * past), weights, names) == own_past.DEFAULT


@pytest.mark.parametrize("count", [3, 8, 30])
def test_no_component_outvotes_the_results_of_an_unusual_pair(data, count):
    """Where no known pair was held out, half of the weight does not see them: the 5 % quantile was 15 ms."""
    from ping_llm.fit.held_out import held_out

    train, tests = held_out(data, OPTIONS, 60)
    names = ("by destination", "vivaldi", "neighbours", "pair weighted", "pair recent", "pair last")
    others = [test for test in tests if test.kind != "later"]
    made = stacking.fit_stack(None, train, others, data, names)
    assert made.past_power == own_past.DEFAULT
    one = data.take(np.zeros(count + 1, int))
    rtt = np.random.default_rng(count).uniform(455, 465, count + 1)
    past = Columns(data.time.max() + 240_000_000 * np.arange(1, count + 2), one.src, one.dst, rtt)
    asked = past.take(slice(count, None)).queries()
    history = History(past)
    low, middle, high = made.answer(None, asked, history).distributions.quantile([0.05, 0.5, 0.95])[0]
    before = replace(made, past_power=0.0).answer(None, asked, history).distributions.quantile([0.05])[0, 0]
    assert before < 300 < low < 460
    assert 450 < middle < 470
    assert high < 700


# --- what is kept


def test_every_method_answers_the_same_after_it_was_kept(data):
    splits = split(data, OPTIONS)
    asked, history = splits.test("later").take(slice(0, 30)).queries(), History(splits.visible)
    new = splits.test("sources").take(slice(0, 30)).queries()
    for name in BASELINES:
        with short_training():
            method = make(name).fit(splits.train)
        tree, kept = state.pack(method)
        back = state.unpack(json.loads(json.dumps(tree)), kept, kept_classes())
        for queries in (asked, new):
            one, other = (m.predict(queries, history) for m in (method, back))
            np.testing.assert_array_equal(one.quantile([0.1, 0.5, 0.9]), other.quantile([0.1, 0.5, 0.9]))
            np.testing.assert_array_equal(one.failure, other.failure)
            np.testing.assert_array_equal(one.point, other.point)


def test_a_stack_comes_back_as_it_was(stack, data, tmp_path):
    stack.save(tmp_path)
    back = Stack.load(tmp_path)
    queries, history = data.take(slice(-40, None)).queries(), History(data)
    one, other = stack.answer(None, queries, history), back.answer(None, queries, history)
    np.testing.assert_array_equal(one.distributions.levels, other.distributions.levels)
    np.testing.assert_array_equal(one.distributions.point, other.distributions.point)
    assert back.about == json.loads(json.dumps(stack.about))
    assert Stack.load(tmp_path / "nowhere") is None
    assert oct((tmp_path / "stack.safetensors").stat().st_mode)[-3:] == "644"


@pytest.mark.parametrize(
    "damage",
    [
        lambda tree: tree["stack"]["fields"].update(weights={"array": "0" * 16}),
        lambda tree: tree["stack"].update(object="Popen"),
        lambda tree: tree.update(format=99),
        lambda tree: tree["stack"]["fields"].pop("scale"),
        lambda tree: tree["stack"]["fields"].update(past_power=float("nan")),
        lambda tree: tree["stack"]["fields"]["components"]["list"].append("nobody"),
    ],
)
def test_a_damaged_stack_is_refused_with_a_sentence(stack, tmp_path, damage):
    stack.save(tmp_path)
    tree = json.loads((tmp_path / "stack.json").read_text())
    damage(tree)
    (tmp_path / "stack.json").write_text(json.dumps(tree))
    with pytest.raises(PingError, match=r"stack\.json"):
        Stack.load(tmp_path)


def test_arrays_that_would_lead_out_of_memory_are_refused(stack, data):
    neighbours = make("neighbours").fit(data)
    start, other, log = neighbours._by_source
    neighbours._by_source = (start, other + 1000, log)
    with pytest.raises(ValueError, match="profiles"):
        neighbours.check()
    circle = Trees(
        np.zeros(1), np.zeros((1, 1), np.int64), np.array([0, -1], np.int32), np.array([0, 0], np.int32),
        np.array([1, 0], np.int32), np.zeros(2), np.zeros(2), np.zeros(2, bool),
    )  # fmt: skip
    with pytest.raises(ValueError, match="nodes"):
        circle.check()


def test_trees_answer_as_scikit_learn_does():
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    features = random.normal(size=(800, 5))
    features[random.random(features.shape) < 0.1] = np.nan
    target = np.nan_to_num(features[:, 0]) * 3 + np.nan_to_num(features[:, 1]) ** 2 + random.normal(size=800)
    models = [
        ensemble.HistGradientBoostingRegressor(
            loss="quantile", quantile=level, max_iter=20, early_stopping=False, random_state=0
        ).fit(features, target)
        for level in (0.1, 0.9)
    ]
    found = Trees.of(models).staged(features, [5, 20])
    for column, model in enumerate(models):
        stages = list(model.staged_predict(features))
        np.testing.assert_array_equal(found[0, :, column], stages[4])
        np.testing.assert_array_equal(found[1, :, column], stages[19])


# --- simple methods as answers


def test_a_simple_method_is_asked_like_a_run(data, tmp_path):
    import pyarrow.parquet as pq

    from ping_llm.answer.context import Question
    from ping_llm.rows.build import build
    from ping_llm.tokens.statement import whole

    pq.write_table(data.to_arrow(), tmp_path / "m.parquet")
    build([tmp_path / "m.parquet"], tmp_path / "rows")
    model = SimpleModel("recent", tmp_path / "rows")
    asked = data.take(slice(-20, None))
    questions = [
        Question(whole(asked.src[i].tobytes()), whole(asked.dst[i].tobytes()), int(asked.time[i]))
        for i in range(20)
    ]
    found = dict(model.rtt_stream(questions))
    plain = make("pair recent").fit(data).predict(asked.queries(), History(data))
    for index, answer in found.items():
        assert answer.method == "pair recent"
        assert answer.distribution.point == plain.point[index]
        np.testing.assert_allclose(answer.distribution.median, plain.median[index], rtol=1e-12)
    with pytest.raises(UsageError, match="there is no method 'oracle'"):
        SimpleModel("oracle", tmp_path / "rows")


def _points_of(ends: int, theirs: float, other_half: float | None = None) -> tuple[str, ...]:
    """The choice where our numbers are off by 10 ms and those of the second component by so much."""
    count = 40 * ends
    own = held(np.full(count, Novelty.NEW_SOURCE), np.zeros(count, int), np.arange(count) % ends, 2)
    off = np.full(count, theirs)
    off[own.ends % 2 == 1] = theirs if other_half is None else other_half
    own = replace(own, points=np.stack([own.rtt + 30.0, own.rtt - off], axis=1))
    weights = np.full((CELLS, 2), 0.5)
    return point_methods(own, np.full(count, 10.0), ("prefixes", "vivaldi"), weights)


def test_a_component_gives_the_single_number_where_it_is_clearly_nearer():
    cells = slice(Novelty.NEW_SOURCE * AMOUNTS, (Novelty.NEW_SOURCE + 1) * AMOUNTS)
    assert _points_of(20, 6.0)[cells] == ("vivaldi",) * AMOUNTS
    assert set(_points_of(20, 6.0)[: Novelty.NEW_SOURCE * AMOUNTS]) == {""}
    for ends, theirs, other_half in ((20, 9.8, None), (20, 12.0, None), (20, 2.0, 11.0), (5, 6.0, None)):
        assert set(_points_of(ends, theirs, other_half)) == {""}, (ends, theirs, other_half)


def test_the_single_number_of_a_component_stays_inside_the_interval(stack, data):
    test = questions_of(split(data, OPTIONS), 60, 1)[0]
    queries = test.queries()
    plain = stack.answer(None, queries, test.context)
    for name in stack.components:
        chosen = replace(stack, point_methods=(name,) * CELLS).answer(None, queries, test.context)
        low, high = chosen.distributions.quantile([0.05, 0.95]).T
        own = stack.methods[name].predict(queries, test.context).point
        expected = np.clip(own, low, high)
        weighted = stack.weights[chosen.evidence.cell, stack.components.index(name)] > 0
        point = np.where(weighted, expected, plain.distributions.point)
        np.testing.assert_array_equal(chosen.distributions.point, point)
        np.testing.assert_array_equal(chosen.distributions.levels, plain.distributions.levels)
    with pytest.raises(ValueError, match="component that does not exist"):
        replace(stack, point_methods=("nothing",) * CELLS).check()
