"""A plan agrees with trying every measurement."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.model import Model
from ping_llm.answer.plan import uncertainty
from ping_llm.cli import app, decide
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import unpack_one


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_uncertainty_is_the_expected_score(seed):
    """CRPS and bits of samples have the uncertainty as their mean."""
    random = np.random.default_rng(seed)
    edges = np.concatenate([[0.0], np.cumsum(random.gamma(1, 8, 30))])
    made = RttDistribution.of_mass(edges, random.dirichlet(np.full(30, 0.4)), random.uniform(0, 0.3))
    draws = made.quantile((np.arange(20_000) + 0.5) / 20_000)
    # E|X - X'| / 2, of sorted draws.
    weights = 2 * np.arange(len(draws)) - len(draws) + 1
    assert uncertainty(made, "crps", 2000.0) == pytest.approx(weights @ draws / len(draws) ** 2, rel=0.01)
    bits = np.array([made.bits(float(rtt)) for rtt in draws[::20]])
    expected = (1 - made.failure) * bits.mean() + made.failure * made.bits(-1.0)
    assert uncertainty(made, "bits", 2000.0) == pytest.approx(expected, rel=0.05, abs=0.02)


@pytest.fixture(scope="module")
def pairs(world, run):
    """(model without data, questions of two sources to five destinations each)."""
    train = world.train
    ipv4 = (train.src[:, :10] == 0).all(axis=1) & (train.dst[:, :10] == 0).all(axis=1)
    sources = np.unique(train.src[ipv4], axis=0)[:2]
    destinations = np.unique(train.dst[ipv4], axis=0)[:5]
    asked = [
        Question.of(unpack_one(src.tobytes()), unpack_one(dst.tobytes()), "2024-01-20T00:00:00Z")
        for src in sources
        for dst in destinations
    ]
    return Model.load(run, data=False), asked


@pytest.mark.parametrize("by", ["crps", "bits"])
def test_the_first_measurement_is_the_best_of_all(pairs, by):
    model, asked = pairs
    drops = {}
    for candidate in asked:
        now = [replace(question, context=Context.empty()) for question in asked]
        answer = model.rtt_many([replace(candidate, context=Context.empty())])[0]
        total = []
        for rtt in answer.distribution.quantile([1 / 6, 1 / 2, 5 / 6]).tolist():
            known = Context.of(
                candidate.src.packed, np.frombuffer(candidate.dst.packed, np.uint8)[None],
                np.array([candidate.time - 1_000_000]), np.array([min(rtt, 1000.0)]),
            )  # fmt: skip
            after = [replace(q, context=known if q.src == candidate.src else Context.empty()) for q in asked]
            total.append(sum(uncertainty(a.distribution, by) for a in model.rtt_many(after)))
        before = sum(uncertainty(a.distribution, by) for a in model.rtt_many(now))
        drops[str(candidate.src), str(candidate.dst)] = (1 - answer.failure) * (before - np.mean(total))
    made = model.plan(asked, 3, by=by)
    first = made.measurements[0]
    assert first.drop == pytest.approx(max(drops.values()))
    assert drops[first.src, first.dst] == pytest.approx(first.drop)
    assert made.before == pytest.approx(before / len(asked))
    assert len({(each.src, each.dst) for each in made.measurements}) == len(made.measurements) <= 3
    assert made.before - made.after == pytest.approx(
        sum(each.drop for each in made.measurements) / len(asked)
    )


def test_a_plan_is_bounded_by_its_candidates(pairs):
    model, asked = pairs
    helpful = {(each.src, each.dst) for each in model.plan(asked, 2).measurements}
    candidates = [question for question in asked if (str(question.src), str(question.dst)) in helpful]
    made = model.plan(asked, 50, candidates)
    assert {(each.src, each.dst) for each in made.measurements} == helpful
    assert made.candidates == len(helpful) == 2
    assert not made.is_exhausted
    only = model.plan(asked[:1], 1, asked[5:6])  # a source without questions cannot help
    assert only.measurements == ()
    assert only.before == only.after


def test_a_plan_ends_where_nothing_more_would_help(pairs, run, tmp_path):
    """Each pair once: with a budget for all of them, measurements that would only confuse are not listed."""
    model, asked = pairs
    made = model.plan(asked, 10)
    assert all(each.drop > 0 for each in made.measurements)
    assert made.is_exhausted == (len(made.measurements) < 10)
    assert made.after < made.before
    text = decide._plan_text(replace(made, measurements=made.measurements[:1], is_exhausted=True))
    assert "no other possible measurement is expected to lower it: the budget of 10 is not used up" in text
    assert "lower it" not in decide._plan_text(replace(made, is_exhausted=False))


def test_what_a_plan_refuses(pairs):
    model, asked = pairs
    with pytest.raises(UsageError, match="at least 1 measurement"):
        model.plan(asked, 0)
    with pytest.raises(UsageError, match="one question and one candidate"):
        model.plan([], 1)
    with pytest.raises(UsageError, match="whole addresses"):
        model.plan([Question.of("192.0.2.0/24", "198.51.100.7")], 1)


def test_the_command_prints_the_same_plan(pairs, run, tmp_path):
    model, asked = pairs
    decide.register(app)
    table = tmp_path / "pairs.csv"
    lines = [f"{each.src},{each.dst},2024-01-20T00:00:00Z" for each in asked]
    table.write_text("\n".join(["src_addr,dst_addr,event_time", *lines, ""]))
    picture = tmp_path / "plan.png"

    def invoke(*arguments):
        return CliRunner().invoke(app, ["plan", str(run), "--no-data", *map(str, arguments)])

    printed = invoke("--candidates", table, "--budget", 3, "--json", "--png", picture)
    assert json.loads(printed.stdout) == json.loads(json.dumps(model.plan(asked, 3).as_dict()))
    assert picture.read_bytes()[:4] == b"\x89PNG"
    sources, destinations = sorted({str(q.src) for q in asked}), sorted({str(q.dst) for q in asked})
    text = invoke("--src", ",".join(sources), "--dst", ",".join(destinations), "--budget", 1).stdout
    assert "after 1 of 10 possible measurements" in text
    refused = invoke("--src", sources[0], "--dst", "2001:db8::1", "--budget", 1)
    assert isinstance(refused.exception, UsageError)
    assert isinstance(invoke("--budget", 1).exception, UsageError)
