"""Exact RTT distributions: against the forward without a cache, and against each other."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from answer_oracle import log_probabilities

from ping_llm.answer.complete import prefix_consistency
from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.model import Model
from ping_llm.answer.rtt import grid_of
from ping_llm.errors import UsageError
from ping_llm.measurements.schema import Measurement
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.vocab import BYTE0, FAILED, RTT

SRC, DST = "192.0.2.1", "198.51.100.7"
ENCODINGS = ["compact", "float64", "micros", "log", "clipped"]


def past(count: int, src: str = SRC) -> list[Measurement]:
    start = datetime(2024, 5, 1, tzinfo=UTC)
    return [
        Measurement(start + timedelta(hours=hour), src, f"198.51.100.{hour}", 20.0 + hour)
        for hour in range(count)
    ]


@pytest.fixture(scope="module")
def answers(engine):
    """One answer of each encoding."""
    return {
        name: Model(engine, rtt_encoding(name), {}).rtt(SRC, DST, "2024-05-02T00:00:00Z", past(3))
        for name in ENCODINGS
    }


def test_every_code_has_the_probability_of_its_tokens(model):
    answer = model.rtt(SRC, DST, "2024-05-02", past(3))
    ids = model.prompts([answer.question])[0].ids
    after = log_probabilities(model.engine, ids)
    reply, failed = np.exp(after[-2, RTT]), np.exp(after[-2, FAILED])
    assert answer.failure == pytest.approx(failed / (failed + reply), rel=1e-4)

    grid = grid_of(model.encoding)
    first = np.exp(after[-1, BYTE0 : BYTE0 + grid.first_bytes])
    first /= first.sum()
    for byte in (0, 17, 90, grid.first_bytes - 1):
        second = np.exp(log_probabilities(model.engine, np.append(ids, BYTE0 + byte))[-1, BYTE0:])
        codes = np.arange(256 * byte, min(256 * byte + 256, grid.codes))
        second = second[: len(codes)] / second[: len(codes)].sum()
        np.testing.assert_allclose(answer.distribution.mass[codes], first[byte] * second, rtol=2e-4)


@pytest.mark.parametrize("name", ENCODINGS)
def test_density_distribution_and_quantiles_agree(answers, name):
    distribution = answers[name].distribution
    assert distribution.mass.sum() == pytest.approx(1, abs=1e-9)
    assert 0 < distribution.failure < 1
    assert (np.diff(distribution.edges) > 0).all()
    levels = np.linspace(0.001, 0.999, 97)
    quantiles = distribution.quantile(levels)
    np.testing.assert_allclose(distribution.cdf(quantiles), levels, atol=1e-9)
    # The density integrates to the distribution function, interval by interval.
    middle = (distribution.edges[:-1] + distribution.edges[1:]) / 2
    wide = np.diff(distribution.edges) > 1e-12
    steps = distribution.density(middle[wide]) * np.diff(distribution.edges)[wide]
    np.testing.assert_allclose(steps, np.diff(distribution.levels)[wide], atol=1e-12)
    tail = np.trapezoid(1 - distribution.levels, distribution.edges)
    assert distribution.mean == pytest.approx(distribution.edges[0] + tail, rel=1e-9)
    bins = distribution.between(np.arange(5000.0), np.arange(5000.0) + 1).sum()
    assert bins == pytest.approx(float(distribution.cdf(5000.0)), abs=1e-9)


@pytest.mark.parametrize("name", ["compact", "micros", "log", "clipped"])
def test_scores_equal_the_whole_distribution(engine, name):
    model = Model(engine, rtt_encoding(name), {})
    observed = np.array([0.2, -1.0, 1.0, 12.3, 50.5, 333.3, 800.0, 0.9996, 1500.0])
    if model.encoding.bytes > 2:  # a tree each: two are enough
        observed = observed[:2]
    questions = [Question.of(SRC, f"198.51.100.{n}", None, past(n % 4)) for n in range(len(observed))]
    levels = (0.05, 0.5, 0.95)
    scores = model.rtt_scores(questions, observed, levels)
    limit = model.encoding.clip_limit_ms
    for row, answer in enumerate(model.rtt_many(questions)):
        rtt = min(observed[row], limit) if limit and observed[row] > 0 else observed[row]
        assert scores.failure[row] == pytest.approx(answer.failure, rel=1e-5)
        assert scores.bits[row] == pytest.approx(answer.distribution.bits(rtt), abs=2e-4)
        np.testing.assert_allclose(scores.quantiles[row], answer.distribution.quantile(levels), rtol=1e-4)


def test_the_answer_does_not_depend_on_the_batch(model):
    questions = [Question.of(SRC, f"198.51.100.{n}", 1_714_600_000 + n, past(n)) for n in (0, 7, 2, 5, 0, 1)]
    together = model.rtt_many(questions)
    for question, answer in zip(questions, together, strict=True):
        alone = model.rtt_many([question])[0]
        assert answer.question is question
        np.testing.assert_allclose(answer.distribution.mass, alone.distribution.mass, rtol=1e-3, atol=1e-9)


def test_a_shared_context_is_read_once_and_nothing_else_changes(model, monkeypatch):
    known = past(13)  # no other test asks about it: the engine keeps what it has read
    questions = [Question.of(SRC, f"203.0.113.{n}", 1_714_600_000, known) for n in range(1, 20)]
    questions.append(Question.of("192.0.2.9", DST))
    read = []
    prefill = model.engine.prefill
    monkeypatch.setattr(
        model.engine, "prefill", lambda rows, **options: read.append(len(rows)) or prefill(rows, **options)
    )
    together = model.rtt_many(questions)
    scores = model.rtt_scores(questions)
    assert read == [1, 1, 1]  # the context once, the other source twice: it has none to keep
    for index in (0, 7, 18, 19):
        alone = model.rtt_many([questions[index]])[0].distribution
        np.testing.assert_allclose(together[index].distribution.mass, alone.mass, rtol=1e-3, atol=1e-9)
        assert together[index].failure == pytest.approx(alone.failure, rel=1e-4)
        assert scores.quantiles[index, 0] == pytest.approx(alone.median, rel=1e-4)


def test_all_orders_is_the_average_of_the_orders(model):
    one = model.rtt(SRC, DST, "2024-05-02")
    every = model.rtt(SRC, DST, "2024-05-02", all_orders=True)
    assert every.distribution.mass.sum() == pytest.approx(1)
    assert abs(every.failure - one.failure) > 1e-6
    # Only the destination is left to state: there is one order.
    np.testing.assert_allclose(
        model.rtt(SRC, DST, None, past(2), all_orders=True).distribution.mass,
        model.rtt(SRC, DST, None, past(2)).distribution.mass,
    )


def test_a_context_that_does_not_fit_loses_its_oldest_and_says_so(model):
    answer = model.rtt(SRC, DST, "2024-05-04", past(60))
    assert answer.context_given == 60
    assert 10 < answer.context_used < 25
    assert "left out" in answer.notes[0]
    newest = model.rtt(SRC, DST, "2024-05-04", past(60)[-answer.context_used :])
    np.testing.assert_allclose(answer.distribution.mass, newest.distribution.mass)
    assert newest.context_used == answer.context_used


def test_what_is_not_earlier_is_left_out(model):
    answer = model.rtt(SRC, DST, "2024-05-01T02:00:00Z", past(5))
    assert (answer.context_given, answer.context_used) == (5, 2)


def test_a_prefix_is_compared_with_the_mixture_over_its_addresses(model):
    question = Question.of(SRC, "198.51.100.?")
    gap = prefix_consistency(model, question, most=256)
    assert gap.covered == pytest.approx(1, abs=1e-5)
    # The mixture, by hand, at one RTT.
    parts = model.complete(SRC, "198.51.100.?", count=256).best
    answers = model.rtt_many([Question.of(SRC, part.address) for part in parts])
    replies = np.array([part.probability * (1 - a.failure) for part, a in zip(parts, answers, strict=True)])
    below = np.array([float(a.distribution.cdf(30.0)) for a in answers])
    assert float(gap.mixture.cdf(30.0)) == pytest.approx(float(replies @ below / replies.sum()), rel=1e-4)
    assert gap.mixture.failure == pytest.approx(1 - replies.sum(), rel=1e-4)
    apart = abs(float(gap.mixture.cdf(30.0)) - float(gap.direct.cdf(30.0)))
    assert apart <= gap.distance <= 1


def test_a_prefix_inside_a_byte_is_the_mixture_of_the_two_halves(model):
    whole, halves = "198.51.0.0/16", ("198.51.0.0/17", "198.51.128.0/17")
    shares = model.complete(SRC, whole, bits=24, count=256).best
    low = sum(one.probability for one in shares if one.address.packed[14] < 128)
    answers = [model.rtt(SRC, half) for half in halves]
    replies = np.array([low, 1 - low]) * [1 - answer.failure for answer in answers]
    mixed = replies @ [float(answer.distribution.cdf(30.0)) for answer in answers] / replies.sum()
    asked = [Question.of(SRC, one.address) for one in shares]
    parts = model.rtt_many(asked)
    weights = np.array([one.probability * (1 - p.failure) for one, p in zip(shares, parts, strict=True)])
    expected = weights @ [float(part.distribution.cdf(30.0)) for part in parts] / weights.sum()
    assert mixed == pytest.approx(expected, rel=1e-4)


def test_a_source_prefix_inside_a_byte_is_the_mixture_of_its_bytes(model):
    answer = model.rtt("192.0.2.0/30", DST)
    parts = model.complete("192.0.2.0/30", DST, field="src", count=4).best
    assert sum(part.probability for part in parts) == pytest.approx(1, abs=1e-5)
    answers = model.rtt_many([Question.of(part.address, DST) for part in parts])
    failure = sum(p.probability * a.failure for p, a in zip(parts, answers, strict=True))
    assert answer.failure == pytest.approx(failure, rel=1e-4)
    with pytest.raises(UsageError, match="must end at a byte"):
        model.rtt("192.0.2.0/30", DST, None, past(2))


def test_a_prefix_is_stated_as_one(model):
    ids = model.prompts([Question.of("192.0.2.0/24", "198.51.?")])[0].ids.tolist()
    assert ids == [1, 2, 16 + 192, 16 + 0, 16 + 2, 11, 4, 16 + 198, 16 + 51, 11, RTT]


def test_a_source_need_not_be_named(model):
    ids = model.prompts([Question.of("0.0.0.0/8", DST, None, past(1))])[0].ids.tolist()
    assert ids[:4] == [1, 2, 16 + 0, 11]
    assert ids[-6:] == [4, 16 + 198, 16 + 51, 16 + 100, 16 + 7, RTT]


@pytest.mark.parametrize(
    ("src", "dst", "at", "context", "sentence"),
    [
        ("2001:db8::1", DST, None, None, "must have the same IP version"),
        (SRC, DST, "1969-12-31", None, "must be within 1970"),
        (SRC, DST, "yesterday", None, "the time must be like"),
        (SRC, "0.0.0.0/0", None, None, "covers all addresses"),
        (SRC, "198.51.100.0/20", None, None, "bits set after"),
        (SRC, "not an address", None, None, "neither an address nor a prefix"),
        (SRC, "nowhere.invalid", None, None, "cannot be resolved"),
        (SRC, DST, None, past(2, src="192.0.2.9"), "must have the question's source"),
        ("0.0.0.0/8", DST, None, past(2) + past(2, "192.0.2.9"), "must have the question's source"),
    ],
)
def test_bad_questions_get_a_sentence(model, src, dst, at, context, sentence):
    with pytest.raises(UsageError, match=sentence):
        model.rtt(src, dst, at, context)


def test_the_typical_rtt_stays_in_the_likeliest_place():
    # 45 % evenly in 10 to 11 ms, 15 % in 50 to 60, 40 % in 200 to 210: the median falls in between.
    edges = np.array([0.0, 10.0, 11.0, 50.0, 60.0, 200.0, 210.0])
    distribution = RttDistribution.of_mass(edges, np.array([0.0, 0.45, 0.0, 0.15, 0.0, 0.4]), 0.1)
    assert 50 < distribution.median < 60
    assert 200 < distribution.typical(0.3) < 210  # 5 % wide, where 10 to 11 ms is 9 %
    assert distribution.typical(0.44) == pytest.approx(10.5, abs=0.05)
    even = RttDistribution.of_mass(np.array([100.0, 101.0]), np.array([1.0]), 0.0)
    assert 100 < even.typical(0.3) < 101


def test_context_columns_are_sorted_by_time():
    context = Context.of(
        bytes(16), np.zeros((3, 16), np.uint8), np.array([3, 1, 2]) * 10**6, np.array([3.0, 1.0, 2.0])
    )
    assert context.seconds.tolist() == [1, 2, 3]
    assert context.rtt.tolist() == [1.0, 2.0, 3.0]
    assert context.rank.tolist() == [2, 1, 0]
