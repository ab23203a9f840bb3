"""Completions and inverse search against brute force over a small space, and sampling against exact
probabilities.
"""

from itertools import product

import numpy as np
import pytest
from answer_oracle import log_probabilities

from ping_llm.answer import complete
from ping_llm.answer.address_tree import AddressTree
from ping_llm.answer.context import Question
from ping_llm.answer.show import completions_text
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import parse_prefix
from ping_llm.tokens.vocab import BYTE0, RTT, Field

SRC = "192.0.2.1"


def brute_force(
    engine, beginning: np.ndarray, depth: int, allowed=lambda path: np.arange(256)
) -> dict[bytes, float]:
    """Every path of `depth` bytes with its probability; each depth by forwards of whole sequences."""
    paths = {b"": 0.0}
    for _ in range(depth):
        longer = {}
        for path, log_probability in paths.items():
            ids = np.concatenate([beginning, [BYTE0 + byte for byte in path]]).astype(np.int32)
            after = log_probabilities(engine, ids)[-1, BYTE0:]
            possible = allowed(path)
            total = np.logaddexp.reduce(after[possible])
            for byte in possible.tolist():
                longer[path + bytes([byte])] = log_probability + after[byte] - total
        paths = longer
    return {path: float(np.exp(value)) for path, value in paths.items()}


def test_top_k_equals_brute_force(model):
    # The last byte, and before it a byte of which the prefix leaves four values: 4 x 256 addresses.
    within = parse_prefix("198.51.100.0/22")
    answer = model.complete(SRC, within, count=25)
    bare = Question.of(SRC)
    tail = complete.role_tokens(within, Field.DST)
    beginning = model.prompts([bare], order=(Field.SRC,), tail=tail)[0].ids
    expected = brute_force(
        model.engine, beginning, 2, lambda path: np.arange(256) if path else np.arange(100, 104)
    )
    best = sorted(expected.items(), key=lambda item: -item[1])[:25]
    assert answer.exact
    assert [one.address.packed[14:] for one in answer.best] == [path for path, _ in best]
    np.testing.assert_allclose([one.probability for one in answer.best], [p for _, p in best], rtol=1e-3)
    assert answer.bound == pytest.approx(sorted(expected.values())[-26], rel=0.02)


def test_top_k_is_exact_where_not_everything_is_expanded(model):
    """65,536 addresses of a /16, of which the search expands a few dozen prefixes."""
    answer = model.complete(SRC, "198.51.?", count=40)
    tail = complete.role_tokens(parse_prefix("198.51.0.0/16"), Field.DST)
    beginning = model.prompts([Question.of(SRC)], order=(Field.SRC,), tail=tail)[0].ids
    prefix = model.engine.prefill([beginning])
    third = prefix.tail[0, -1, BYTE0:].astype(np.float64)
    fourth = model.engine.branch(prefix, (BYTE0 + np.arange(256, dtype=np.int32))[None, :, None])[
        0, :, 0, BYTE0:
    ]
    joint = np.exp(third - np.logaddexp.reduce(third))[:, None] * np.exp(
        fourth - np.logaddexp.reduce(fourth.astype(np.float64), axis=1, keepdims=True)
    )
    best = np.argsort(-joint.ravel(), kind="stable")[:40]
    assert [int.from_bytes(one.address.packed[14:]) for one in answer.best] == best.tolist()
    np.testing.assert_allclose([one.probability for one in answer.best], joint.ravel()[best], rtol=1e-4)


def test_a_search_that_is_cut_short_says_so(model, monkeypatch):
    """It takes as many passes as are allowed, and what it has found are the most probable ones."""
    asked = []
    after = AddressTree._after
    monkeypatch.setattr(AddressTree, "_after", lambda tree, paths: asked.append(1) or after(tree, paths))
    whole = model.complete("192.0.2.1", "198.51.0.0/16", count=40, passes=1000)
    needed = len(asked)
    assert whole.exact
    assert needed > 3
    asked.clear()
    cut = model.complete("192.0.2.1", "198.51.0.0/16", count=40, passes=needed - 1)
    assert len(asked) == needed - 1
    assert not cut.exact
    assert len(cut.best) < 40
    assert cut.best == whole.best[: len(cut.best)]
    assert cut.bound >= whole.best[len(cut.best)].probability
    assert "cut short" in completions_text(cut)
    with pytest.raises(UsageError, match="passes must be at least 1"):
        model.complete("192.0.2.1", "198.51.0.0/16", passes=0)
    # An inverse search that found nothing yet is an empty list, not an error.
    assert model.inverse("192.0.2.1", 0, 1000, passes=1).completions.best == ()


def test_all_completions_sum_to_one(model):
    answer = model.complete(SRC, "198.51.100.?", count=300)
    assert len(answer.best) == 256
    assert answer.covered == pytest.approx(1, abs=1e-5)
    assert all(parse_prefix("198.51.100.0/24").covers(one.address.packed) for one in answer.best)


def test_samples_have_the_exact_frequencies(model):
    exact = model.complete(SRC, "198.51.100.?", count=256)
    samples = model.sample_addresses(SRC, "198.51.100.?", count=4096, seed=1)
    counts = {str(one.address): 0 for one in exact.best}
    for address in samples:
        counts[str(address)] += 1
    # Chi-square over the common addresses, the rest together: 5 standard deviations are allowed.
    common = [one for one in exact.best if one.probability * 4096 >= 10]
    expected = (
        np.array([one.probability for one in common] + [1 - sum(one.probability for one in common)]) * 4096
    )
    seen = [counts[str(one.address)] for one in common]
    seen.append(4096 - sum(seen))
    chi_square = float(((np.array(seen) - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    freedom = len(common)
    assert freedom > 3
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)
    assert samples == model.sample_addresses(SRC, "198.51.100.?", count=4096, seed=1)


def test_temperature_zero_is_the_most_probable_byte_each_time(model):
    one = model.sample_addresses(SRC, "198.51.100.?", count=2, temperature=0.0)
    best = model.complete(SRC, "198.51.100.?", count=1).best[0].address
    assert one == [best, best]


def test_a_source_is_completed_for_a_destination(model):
    answer = model.complete("198.51.0.0/16", "192.0.2.1", field="src", bits=24, count=300)
    assert len(answer.best) == 256
    assert answer.covered == pytest.approx(1, abs=1e-5)
    assert {one.address.bits for one in answer.best} == {24}


def test_inverse_is_the_mixture_over_the_range(model):
    """One code: exactly P(dst | src, that rtt). A range: the average over its parts, within the prefix."""
    within = parse_prefix("198.51.100.0/24")
    code = model.encoding.encode(20.0)
    low, high = model.encoding.edges(code)
    middle = (high - low) / 3
    answer = model.inverse(SRC, low + middle / 2, high - middle / 2, within="198.51.100.?", count=256)
    tail = [
        RTT,
        *(BYTE0 + byte for byte in model.encoding.to_bytes(code)),
        *complete.role_tokens(within, Field.DST),
    ]
    beginning = model.prompts([Question.of(SRC)], order=(Field.SRC,), tail=tail)[0].ids
    expected = brute_force(model.engine, beginning, 1)
    found = {one.address.packed[15:]: one.probability for one in answer.completions.best}
    for path, probability in expected.items():
        assert found[path] == pytest.approx(probability, rel=1e-3, abs=1e-9)

    wide = model.inverse(SRC, 1, 100, within="198.51.100.?", count=256)
    assert wide.completions.covered == pytest.approx(1, abs=1e-5)
    distribution = next(model.distributions(model.prompts([Question.of(SRC)], order=(Field.SRC,))))[1]
    reply = 1 - distribution.failure
    assert wide.probability == pytest.approx(float(distribution.between(1, 100)) * reply, rel=1e-4)


def test_within_weighs_the_parts_by_how_well_they_explain_it(model):
    """P(last byte | within) from the search in 198.51.100.0/24 equals the ratio of brute-force joint
    probabilities.
    """
    asked = Question.of(SRC)
    answer = model.inverse(SRC, 1, 100, within="198.51.100.?", count=5)
    distribution = next(model.distributions(model.prompts([asked], order=(Field.SRC,))))[1]
    levels = distribution.cdf(1) + (
        np.arange(complete.STRATA) + 0.5
    ) / complete.STRATA * distribution.between(1, 100)
    joint = np.zeros(256)
    role = complete.role_tokens(complete.nothing(4), Field.DST)
    for rtt in distribution.quantile(levels):
        stated = [RTT, *(BYTE0 + byte for byte in model.encoding.to_bytes(model.encoding.encode(float(rtt))))]
        ids = model.prompts([asked], order=(Field.SRC,), tail=[*stated, *role])[0].ids
        total = 0.0
        for byte in (198, 51, 100):
            after = log_probabilities(model.engine, ids)[-1, BYTE0:]
            total += after[byte] - np.logaddexp.reduce(after)
            ids = np.append(ids, BYTE0 + byte)
        after = log_probabilities(model.engine, ids)[-1, BYTE0:]
        joint += np.exp(total + after - np.logaddexp.reduce(after))
    joint /= joint.sum()
    for one in answer.completions.best:
        assert one.probability == pytest.approx(joint[one.address.packed[15]], rel=2e-3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: m.complete(None, "198.51.100.?"), "src must be given"),
        (lambda m: m.complete(SRC, "2001:db8::/32"), "must have the same IP version"),
        (lambda m: m.complete(SRC, "198.51.100.?", bits=20), "a multiple of 8"),
        (lambda m: m.complete(SRC, "198.51.100.?", field="rtt"), "must be src or dst"),
        (lambda m: m.inverse(SRC, 20, 10), "is empty"),
        (lambda m: m.complete(SRC, "198.51.100.?", count=0), "at least 1"),
        (lambda m: m.sample_addresses(SRC, "198.51.100.?", count=0), "at least 1"),
        (lambda m: m.sample_addresses(SRC, "198.51.100.?", temperature=-2), "at least 0"),
    ],
)
def test_bad_searches_get_a_sentence(model, call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call(model)


def test_brute_force_itself_sums_to_one(model):
    expected = brute_force(model.engine, np.array([1, 2]), 1)
    assert sum(expected.values()) == pytest.approx(1)
    assert len(list(product(expected))) == 256
