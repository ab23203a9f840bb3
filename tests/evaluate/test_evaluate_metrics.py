"""Metrics against plain definitions and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as sk

from ping_llm.answer.distribution import WORST_BITS, RttDistributions, mixed
from ping_llm.evaluate import metrics


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_auc_and_brier_agree_with_scikit_learn(data):
    n = data.draw(st.integers(2, 60))
    score = data.draw(arrays(np.float64, n, elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])))
    happened = data.draw(arrays(np.bool_, n))
    assert metrics.brier(score, happened) == pytest.approx(sk.brier_score_loss(happened, score))
    if happened.all() or not happened.any():
        assert np.isnan(metrics.auc(score, happened))
    else:
        assert metrics.auc(score, happened) == pytest.approx(sk.roc_auc_score(happened, score))


def test_errors_by_hand():
    predicted, actual = np.array([10.0, 20.0, 30.0]), np.array([11.0, 16.0, 30.0])
    assert metrics.absolute_error(predicted, actual).tolist() == [1.0, 4.0, 0.0]
    assert metrics.mean_squared_error(predicted, actual) == pytest.approx(17 / 3)
    np.testing.assert_allclose(metrics.relative_error(predicted, actual), [1 / 11, 4 / 16, 0])
    assert metrics.coverage(predicted - 1, predicted + 1, actual) == pytest.approx(2 / 3)


def test_calibration_error_is_zero_for_a_uniform_transform_and_large_for_a_point():
    uniform = (np.arange(10_000) + 0.5) / 10_000
    assert metrics.expected_calibration_error(uniform) < 1e-3
    assert metrics.expected_calibration_error(np.full(100, 0.5)) > 0.2
    np.testing.assert_allclose(metrics.pit_histogram(uniform), 0.05)


def test_failure_calibration_error_sees_a_doubled_rate():
    happened = np.arange(1000) % 10 == 0
    assert metrics.failure_calibration_error(np.full(1000, 0.1), happened) == pytest.approx(0.0, abs=1e-9)
    assert metrics.failure_calibration_error(np.full(1000, 0.2), happened) == pytest.approx(0.1)


def test_bits_of_bins_add_up_to_one():
    marginal = np.array([0.5, 0.25, 0.25])
    rtt = np.array([0.0, 0.999, 1.0, 2.5, 3.0, -1.0])
    levels = np.concatenate([[0.0], np.cumsum(marginal)])
    one = RttDistributions(np.arange(4.0)[None], levels, np.full(len(rtt), 0.5), np.zeros(len(rtt), np.int64))
    np.testing.assert_allclose(one.bits(rtt), [2, 2, 3, 3, WORST_BITS, 1])


def _random_knots(rng: np.random.Generator, rows: int, knots: int) -> RttDistributions:
    values = np.sort(rng.gamma(2, 20, (rows, knots)), axis=1)
    levels = np.sort(rng.random((rows, knots)), axis=1)
    levels[:, 0], levels[:, -1] = 0, 1
    return RttDistributions(values, levels, rng.random(rows) * 0.3)


def test_knots_are_a_distribution():
    rng = np.random.default_rng(1)
    knots = _random_knots(rng, 40, 9)
    levels = np.linspace(0.01, 0.99, 33)
    quantiles = knots.quantile(levels)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    for column, level in enumerate(levels):
        np.testing.assert_allclose(knots.cdf(quantiles[:, column]), level, atol=1e-6)
    # All bins and failure together are certain.
    total = knots.failure.copy()
    for k in range(int(knots.values.max()) + 2):
        total += 2.0 ** -knots.bits(np.full(40, float(k)))
    np.testing.assert_allclose(total, 1.0, atol=1e-9)


def test_crps_of_knots_equals_pinball_over_many_levels_and_the_distance_of_a_point():
    rng = np.random.default_rng(2)
    knots = _random_knots(rng, 30, 7)
    actual = rng.gamma(2, 20, 30)
    levels = (np.arange(20_000) + 0.5) / 20_000
    expected = metrics.crps_from_quantiles(knots.quantile(levels), levels, actual)
    np.testing.assert_allclose(knots.crps(actual), expected, rtol=1e-3)
    point = RttDistributions(np.array([[10.0, 10.0]]), np.array([0.0, 1.0]), np.zeros(1))
    assert point.crps(np.array([13.5]))[0] == pytest.approx(3.5, abs=1e-5)


def test_a_repeated_value_stays_in_its_own_bin():
    point = RttDistributions(np.full((1, 50), 5.0), np.linspace(0, 1, 50), np.zeros(1))
    assert point.bits(np.array([5.7]))[0] == pytest.approx(0.0, abs=1e-9)
    assert point.bits(np.array([4.7]))[0] == WORST_BITS


def test_a_mixture_is_the_weighted_sum():
    rng = np.random.default_rng(3)
    knots, other = _random_knots(rng, 25, 6), _random_knots(rng, 1, 11)
    weight = rng.random(25)
    both = mixed(knots.values, knots.levels, other, weight, knots.failure)
    for _ in range(20):
        at = rng.gamma(2, 20, 25)
        row = np.zeros(25, np.int64)
        background = RttDistributions(other.values, other.levels, np.zeros(25), row).cdf(at)
        np.testing.assert_allclose(
            both.cdf(at), (1 - weight) * knots.cdf(at) + weight * background, atol=1e-6
        )


def test_choices_are_counted_by_hand():
    source = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    destination = np.array([0, 1, 1, 2, 3, 4, 0, 1])  # destination 1 counts once; the fifth one is dropped
    true = np.array([10.0, 20.0, 5.0, 30.0, 40.0, 1.0, 7.0, 3.0])
    expected = np.array([11.0, 12.0, 1.0, 50.0, 41.0, 0.0, 1.0, 2.0])
    found = metrics.choice(expected, true, source, destination, size=2)
    # (0, 1): 0 is chosen and right. (2, 3): 3 is chosen, 10 ms too many. Source 1: 0 is chosen, 4 too many.
    assert found == {"sets": 3, "right": pytest.approx(1 / 3), "regret_ms": pytest.approx(14 / 3)}
    assert metrics.choice(expected, true, source, destination, size=10) is None
