"""A small model, trained here on a world of four destinations whose truth is known, gives the true
answers.
"""

import jax
import numpy as np
import optax
import pytest

from ping_llm.answer.complete import prefix_consistency
from ping_llm.answer.context import Question
from ping_llm.answer.files import Columns
from ping_llm.answer.model import Model
from ping_llm.measurements.addresses import parse_prefix
from ping_llm.model import transformer
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, keep_compiled
from ping_llm.model.random import random_tensors
from ping_llm.tokens.reference import encode
from ping_llm.tokens.rtt import RttEncoding, rtt_encoding
from ping_llm.tokens.statement import Statement, cut
from ping_llm.tokens.vocab import Field

SRC = parse_prefix("192.0.2.1")
#: Destination, how often it is asked, its possible results (each as probable).
WORLD = (
    ("198.51.100.10", 0.5, (20.0, 21.0)),
    ("198.51.100.20", 0.25, (40.0,)),
    ("203.0.113.30", 0.15, (100.0, 120.0)),
    ("203.0.113.40", 0.1, (200.0, -1.0)),
)
#: Of one measurement in bits: which destination, which result.
ENTROPY = -sum(share * np.log2(share / len(results)) for _, share, results in WORLD)
PREFIXES = 0.3
CONFIG = ModelConfig(layers=2, width=48, heads=2, kv_heads=1, head_dim=24, mlp_width=96, max_length=64)
LENGTH, BATCH, STEPS = 16, 64, 260
ENCODING = rtt_encoding("compact")
#: The others are trained for less long: that their answers agree with themselves does not need more.
BRIEFLY = 60


def draw(generator: np.random.Generator) -> tuple[str, float]:
    place = generator.choice(len(WORLD), p=[share for _, share, _ in WORLD])
    return WORLD[place][0], float(generator.choice(WORLD[place][2]))


def batch(generator: np.random.Generator, encoding: RttEncoding = ENCODING) -> tuple[np.ndarray, ...]:
    """One measurement a row: the source, the destination or its /24, the result; in two orders."""
    length = LENGTH + encoding.bytes - 2
    inputs, targets = np.zeros((2, BATCH, length), np.int32)
    segmentation = np.zeros((BATCH, length), np.int32)
    for row in range(BATCH):
        dst, rtt = draw(generator)
        address = parse_prefix(dst)
        order = (Field.SRC, Field.DST, Field.RESULT)
        if generator.random() < PREFIXES:
            address = cut(address, 3)
        elif generator.random() < 0.5:
            order = (Field.SRC, Field.RESULT, Field.DST)
        ids = encode([Statement(order, SRC, address, None, rtt)], encoding)
        targets[row, : len(ids)] = ids
        inputs[row, 1 : len(ids)] = ids[:-1]
        segmentation[row, : len(ids)] = 1
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)
    return inputs, targets, positions, segmentation


@pytest.fixture(scope="module")
def trained() -> Model:
    return train(ENCODING, STEPS)


def train(encoding: RttEncoding, steps: int) -> Model:
    keep_compiled()  # encodings of as many bytes share what is compiled
    engine = Engine(CONFIG, random_tensors(CONFIG, seed=1, scale=0.3))
    optimizer = optax.adam(optax.cosine_decay_schedule(4e-3, steps))

    def loss(params, data):
        return -transformer.target_log_probabilities(CONFIG, params, *data).sum() / BATCH

    @jax.jit
    def step(params, state, data):
        gradient = jax.grad(loss)(params, data)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    params, generator = engine._params, np.random.default_rng(0)
    state = optimizer.init(params)
    for _ in range(steps):
        params, state = step(params, state, batch(generator, encoding))
    engine._params = params
    return Model(engine, encoding, {})


def test_rtts_and_failures_are_the_true_ones(trained):
    near, plain, far, lossy = (trained.rtt("192.0.2.1", dst).distribution for dst, _, _ in WORLD)
    assert max(near.failure, plain.failure, far.failure) < 0.05
    assert float(near.between(19.9, 21.1)) > 0.9
    assert float(near.cdf(20.5)) == pytest.approx(0.5, abs=0.15)
    assert plain.median == pytest.approx(40.0, abs=0.1)
    assert float(far.cdf(110.0)) == pytest.approx(0.5, abs=0.2)
    assert lossy.failure == pytest.approx(0.5, abs=0.2)
    assert lossy.median == pytest.approx(200.0, abs=0.5)


@pytest.mark.parametrize("name", ["compact", "float64", "micros", "log", "clipped"])
def test_density_distribution_and_quantiles_agree_whatever_the_encoding(trained, name):
    """And whatever the encoding, who is near is learned to be nearer."""
    model = trained if name == "compact" else train(rtt_encoding(name), BRIEFLY)
    answers = {dst: model.rtt("192.0.2.1", dst).distribution for dst, _, _ in WORLD}
    for distribution in answers.values():
        assert distribution.mass.sum() == pytest.approx(1, abs=1e-5)
        assert 0 <= distribution.unresolved < 0.2  # after so few steps it is spread over many trees
        levels = np.linspace(0.001, 0.999, 97)
        quantiles = distribution.quantile(levels)
        assert (np.diff(quantiles) >= 0).all()
        np.testing.assert_allclose(distribution.cdf(quantiles), levels, atol=1e-9)
        middle = (distribution.edges[:-1] + distribution.edges[1:]) / 2
        widths = np.diff(distribution.edges)
        below = np.concatenate([[0.0], np.cumsum(distribution.density(middle) * widths)])
        np.testing.assert_allclose(below, distribution.cdf(distribution.edges), atol=1e-6)
        bins = np.arange(10_000.0)
        between = distribution.between(bins, bins + 1).sum()
        assert between == pytest.approx(float(distribution.cdf(10_000.0)), abs=1e-9)
    assert float(answers["198.51.100.20"].cdf(60)) > float(answers["203.0.113.30"].cdf(60)) + 0.02


def test_completions_have_the_true_frequencies(trained):
    answer = trained.complete("192.0.2.1", count=4)
    assert answer.exact
    shares = {str(one.address): one.probability for one in answer.best}
    assert shares.keys() == {dst for dst, _, _ in WORLD}
    for dst, share, _ in WORLD:
        assert shares[dst] == pytest.approx(share, abs=0.1)


def test_inverse_finds_who_is_that_far(trained):
    answer = trained.inverse("192.0.2.1", 35, 45, count=2)
    assert str(answer.completions.best[0].address) == "198.51.100.20"
    assert answer.completions.best[0].probability > 0.9
    assert answer.probability == pytest.approx(0.25, abs=0.1)


def test_a_prefix_means_the_mixture_of_its_addresses(trained):
    gap = prefix_consistency(trained, Question.of("192.0.2.1", "198.51.100.?"), most=8)
    assert gap.covered > 0.9
    assert gap.distance < 0.2
    assert float(gap.direct.cdf(30.0)) == pytest.approx(2 / 3, abs=0.15)


def test_bits_come_near_the_entropy_of_the_world(trained):
    generator = np.random.default_rng(9)
    drawn = [draw(generator) for _ in range(160)]
    dst = np.array([list(parse_prefix(text).packed) for text, _ in drawn], np.uint8)
    src = np.tile(np.frombuffer(SRC.packed, np.uint8), (160, 1))
    columns = Columns(np.full(160, -1), src, dst, np.array([rtt for _, rtt in drawn]))
    bits = []
    for row in range(160):  # one by one: the model was trained on single measurements
        bits += [part.total[0] for part in trained.scorer().add(columns.take(np.array([row])))]
    # Also paid for: 0.7 state a whole address, and half of those the destination before the result.
    choices = 1.0 - np.log2(1 - PREFIXES)
    assert ENTROPY - 0.3 < np.mean(bits) < ENTROPY + choices + 0.6
