"""Ranking by integration agrees with brute force."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.grid import GRID
from ping_llm.answer.rank import fastest_of, rank
from ping_llm.errors import UsageError


def answer(distribution: RttDistribution) -> SimpleNamespace:
    return SimpleNamespace(distribution=distribution, knows_source=True, knows_destination=True)


def gamma(random, failure=None, edges=None) -> RttDistribution:
    edges = np.concatenate([[0.0], np.cumsum(random.gamma(1, 8, 40))]) if edges is None else edges
    mass = random.dirichlet(np.full(len(edges) - 1, 0.3))
    return RttDistribution.of_mass(edges, mass, random.uniform(0, 0.3) if failure is None else failure)


def ranked(distributions, **options):
    names = [str(number) for number in range(len(distributions[0]))]
    made = rank([[answer(d) for d in several] for several in distributions], names, **options)
    return sorted(made.candidates, key=lambda candidate: int(candidate.dst)), made


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_a_ranking_agrees_with_samples(seed, count):
    random = np.random.default_rng(seed)
    each = [gamma(random) for _ in range(count)]
    found, made = ranked([each], objective_ms=60.0, timeout_ms=200.0)
    draws = 40_000
    samples = np.stack([d.sample(draws, random) for d in each])
    lost = samples < 0
    late = np.where(lost, np.inf, samples)
    cost = np.minimum(late, 200.0)
    first = np.where(lost.all(axis=0), -1, late.argmin(axis=0))
    four_sigma = 4 * 0.5 / np.sqrt(draws)
    for number, candidate in enumerate(found):
        assert candidate.fastest == pytest.approx((first == number).mean(), abs=four_sigma)
        assert candidate.below == pytest.approx((late[number] < 60).mean(), abs=four_sigma)
        assert candidate.expected_ms == pytest.approx(cost[number].mean(), abs=200 * four_sigma)
        regret = (cost[number] - cost.min(axis=0)).mean()
        assert candidate.regret_ms == pytest.approx(regret, abs=200 * four_sigma)
    assert made.nobody == pytest.approx(lost.all(axis=0).mean(), abs=four_sigma)
    assert sum(candidate.fastest for candidate in found) + made.nobody == pytest.approx(1.0, abs=1e-9)


def test_a_hundred_candidates_add_up():
    """More than the points of integration are exact for: the shares must still add up to one."""
    random = np.random.default_rng(5)
    each = [gamma(random, 0.01, GRID) for _ in range(100)]
    found, made = ranked([each])
    assert sum(candidate.fastest for candidate in found) + made.nobody == pytest.approx(1.0, abs=1e-9)
    expected = [candidate.expected_ms for candidate in made.candidates]
    assert expected == sorted(expected)


@pytest.mark.parametrize("group", ["mean", "worst"])
def test_a_group_of_sources_agrees_with_samples(group):
    random = np.random.default_rng(6)
    fine = np.linspace(0, 300, 1500)
    each = [[gamma(random, None, fine) for _ in range(3)] for _ in range(4)]
    found, _ = ranked(each, timeout_ms=250.0, group=group)
    draws = 100_000
    samples = np.stack([[d.sample(draws, random) for d in several] for several in each])
    cost = np.where(samples < 0, 250.0, np.minimum(samples, 250.0))
    of_candidate = cost.mean(axis=0) if group == "mean" else cost.max(axis=0)
    for number, candidate in enumerate(found):
        assert candidate.expected_ms == pytest.approx(of_candidate[number].mean(), abs=1.5)


def test_certain_candidates():
    """One that always replies after 10 ms beats one after 20 ms; what never replies costs the timeout."""

    def after(ms, failure=0.0):
        return RttDistribution(np.array([0.0, ms, ms + 1e-6, 500.0]), np.array([0.0, 0.0, 1.0, 1.0]), failure)

    found, made = ranked([[after(20.0), after(10.0), after(5.0, failure=1.0)]], timeout_ms=400.0)
    assert [candidate.dst for candidate in made.candidates] == ["1", "0", "2"]
    assert [candidate.fastest for candidate in found] == pytest.approx([0, 1, 0], abs=1e-9)
    assert [candidate.expected_ms for candidate in found] == pytest.approx([20, 10, 400], abs=1e-4)
    assert [candidate.regret_ms for candidate in found] == pytest.approx([10, 0, 390], abs=1e-4)
    assert fastest_of(np.array([[1.0, 0.0]])) == pytest.approx([1.0])


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(UsageError, match="at least one candidate"):
        rank([[]], [])
    with pytest.raises(UsageError, match="a number of ms above 0"):
        rank([[answer(gamma(np.random.default_rng(0)))]], ["a"], timeout_ms=0)
