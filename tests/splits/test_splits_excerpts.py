"""Small sets of measurements, each with a question."""

import numpy as np
import pytest

from ping_llm.measurements.columns import Columns
from ping_llm.splits.questions import excerpts


def _data(times, seed=0):
    random = np.random.default_rng(seed)
    count = 4000
    src, dst = (np.zeros((count, 16), np.uint8) for _ in range(2))
    src[:, 15], dst[:, 15], dst[:, 0] = random.integers(0, 12, count), random.integers(0, 9, count), 1
    return Columns(random.integers(0, times, count), src, dst, random.uniform(1, 100, count))


@pytest.mark.parametrize("times", [10_000, 1])
def test_a_question_looks_at_nothing_later_and_never_at_its_own_result(times):
    data = _data(times)
    whole = {tuple(map(bytes, row)) for row in zip(data.src, data.dst, data.rtt, strict=True)}
    made = list(excerpts(data, 200, 50))
    assert len(made) > 150
    for train, test in made:
        assert 1 <= len(train) <= 50
        assert len(test.asked) == 1
        assert test.timed == (times > 1)
        if test.timed:
            assert (train.time < test.asked.time[0]).all()
        assert test.asked.rtt[0] not in train.rtt
        assert {tuple(map(bytes, row)) for row in zip(train.src, train.dst, train.rtt, strict=True)} <= whole


def test_known_and_new_pairs_are_asked_about_and_the_same_seed_draws_the_same():
    data = _data(10_000)
    first, again = (list(excerpts(data, 100, 50, seed=3)) for _ in range(2))
    known = [
        bool(((train.src == test.asked.src).all(axis=1) & (train.dst == test.asked.dst).all(axis=1)).any())
        for train, test in first
    ]
    assert 0.2 < np.mean(known) < 0.8
    for (train, test), (train_again, test_again) in zip(first, again, strict=True):
        assert np.array_equal(train.rtt, train_again.rtt)
        assert np.array_equal(test.asked.rtt, test_again.asked.rtt)
