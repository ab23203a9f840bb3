"""Splits share nothing that they must not, and history never shows the future."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as given_data
from hypothesis import settings
from hypothesis import strategies as st

from ping_llm.errors import PingError
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.splits.check import check_held_out
from ping_llm.splits.holdout import KINDS, SplitOptions, given, inner_split, split
from ping_llm.splits.novelty import Novelty


def _address(number: np.ndarray, network: int) -> np.ndarray:
    packed = np.zeros((len(number), 16), np.uint8)
    packed[:, 10:12] = 255
    packed[:, 12], packed[:, 13] = network, 7
    packed[:, 14], packed[:, 15] = number // 256, number % 256
    return packed


def make_columns(count: int, sources: int, destinations: int, seed: int = 0) -> Columns:
    """Random measurements between so many ends, a second to a minute apart; a tenth failed."""
    random = np.random.default_rng(seed)
    src, dst = random.integers(0, sources, count), random.integers(0, destinations, count)
    near = np.abs(src[:, None] % 7 - dst[:, None] % 5)[:, 0] * 20.0 + 5
    rtt = near * random.lognormal(0, 0.05, count)
    rtt[random.random(count) < 0.1] = -1
    time = np.cumsum(random.integers(1, 60, count)) * 1_000_000
    return Columns(time, _address(src, 20), _address(dst, 30), rtt)


@pytest.mark.parametrize("seed", range(5))
def test_every_test_is_what_it_says(seed):
    splits = split(make_columns(4000, 40, 30, seed), SplitOptions(seed=seed))
    proof = check_held_out(splits)
    for name in ("later", "pairs"):
        assert proof["tests"][name]["measurements"] > 0
    train = {(s.tobytes(), d.tobytes()) for s, d in zip(splits.train.src, splits.train.dst, strict=True)}
    sources, destinations = {s for s, _ in train}, {d for _, d in train}
    # Of each test: is the pair, the source, the destination in the training data?
    known_of = {"later": (1, 1, 1), "pairs": (0, 1, 1), "sources": (0, 0, 1), "destinations": (0, 1, 0)}
    for name, known in known_of.items():
        test = splits.test(name)
        assert (test.time > splits.train.time.max()).all()
        for s, d in zip(test.src, test.dst, strict=True):
            seen = ((s.tobytes(), d.tobytes()) in train, s.tobytes() in sources, d.tobytes() in destinations)
            assert seen == tuple(map(bool, known))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_leak_is_found(kind):
    splits = split(make_columns(6000, 40, 30), SplitOptions(sources=0.2, destinations=0.2))
    leaked = np.flatnonzero(splits.kind == KINDS.index(kind))[0]
    visible = splits.is_visible.copy()
    visible[leaked] = True
    with pytest.raises(PingError, match=f"{kind}.*leaks.*visible"):
        check_held_out(replace(splits, is_visible=visible))
    train = splits.is_train.copy()
    train[leaked] = True
    with pytest.raises(PingError, match="leaks"):
        check_held_out(replace(splits, is_train=train))


def test_what_is_held_out_does_not_depend_on_order_or_size():
    data = make_columns(3000, 40, 30)
    whole, half = split(data), split(data.take(np.arange(0, 3000, 2)[::-1]))
    held = {row.tobytes() for row in whole.test("sources").src}
    assert held
    assert held.isdisjoint({row.tobytes() for row in half.train.src})


def test_a_given_split_is_sorted_into_kinds():
    data = make_columns(3000, 40, 30)
    own = split(data)
    test = np.flatnonzero(own.kind >= 0)
    theirs = given(own.train, data.take(test))
    assert theirs.timed
    for kind in ("later", "pairs", "destinations"):
        assert len(theirs.test(kind)) >= len(own.test(kind))
    assert len(theirs.test("sources")) <= (own.kind == KINDS.index("sources")).sum()


def test_the_inner_split_never_touches_what_it_learns_from():
    train = split(make_columns(4000, 40, 30)).train
    learn_on, asked, context = inner_split(train)
    novelty = Novelty.of(learn_on).classes(asked.src, asked.dst)
    assert set(novelty) >= {Novelty.KNOWN_PAIR, Novelty.NEW_PAIR}
    assert learn_on.time.max() < asked.time.min()
    assert len(context.limit) == len(asked)


@settings(max_examples=40, deadline=None)
@given_data(st.integers(1, 120), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_history_against_a_plain_search(count, sources, destinations, seed):
    data = make_columns(count, sources, destinations, seed)
    random = np.random.default_rng(seed)
    data = data.take(random.permutation(count))
    asked = make_columns(20, sources + 1, destinations + 1, seed + 1).queries()
    limit = random.integers(0, 9, 20)
    history = History(data)
    views = {
        "of_source": (history.of_source(asked), None, False),
        "replies_of_pair": (history.replies_of_pair(asked), None, True),
        "limited pair": (history.limited(limit).replies_of_pair(asked), limit, True),
        "limited source": (history.limited(limit).of_source(asked), limit, False),
    }
    for name, (ranges, bound, pair) in views.items():
        for i in range(20):
            same = (data.src == asked.src[i]).all(axis=1) & (data.time < asked.time[i])
            rows = np.flatnonzero(same)
            rows = rows[np.argsort(data.time[rows], kind="stable")]
            if bound is not None:
                rows = rows[max(len(rows) - bound[i], 0) :]
            if pair:
                rows = [r for r in rows if (data.dst[r] == asked.dst[i]).all() and data.rtt[r] >= 0]
            found = ranges.columns.take(slice(ranges.low[i], ranges.high[i]))
            np.testing.assert_array_equal(found.time, data.time[rows], err_msg=name)
            np.testing.assert_array_equal(found.rtt, data.rtt[rows], err_msg=name)
