"""A small network, trained here on a simulated world whose RTTs depend on the size, knows that they do."""

from itertools import islice

import jax
import numpy as np
import optax
import pytest

from ping_llm.answer.model import Model
from ping_llm.contexts.batches import Batches
from ping_llm.contexts.memory_rows import rows_of_columns
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.units import Rows
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model import transformer
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, keep_compiled
from ping_llm.model.random import random_tensors
from ping_llm.simulate import World, WorldOptions, simulate
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import whole

FIELDS = "src,dst,rtt,size,errors,msm_id,probe_id"
CONFIG = ModelConfig(layers=2, width=64, heads=2, kv_heads=1, head_dim=32, mlp_width=128, max_length=256)
STEPS, BATCH, LENGTH = 400, 16, 128
OPTIONS = WorldOptions(
    measurements=6000, probes=4, targets=3, days=2, ases=4, seed=2, ipv6_share=0.0, failed_share=0.01,
    changed_share=0.0, jitter=0.1, congestion=0.01, size_delay=20.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sized")
    simulate(folder, OPTIONS)
    return World.load(folder), read_measurements(folder, every_column=True)


@pytest.fixture(scope="module")
def trained(world) -> Model:
    return taught(rows_of_columns(world[1]), FIELDS)


def taught(rows: Rows, fields: str, steps: int = STEPS) -> Model:
    """A small model, trained on rows."""
    keep_compiled()
    options = ContextOptions(fields=fields, prefix_probability=0.0, ordered_fields=0.5)
    engine = Engine(CONFIG, random_tensors(CONFIG, seed=1, scale=0.3))
    optimizer = optax.adam(optax.cosine_decay_schedule(4e-3, steps))

    def loss(params, data):
        return -transformer.target_log_probabilities(CONFIG, params, *data).sum() / (BATCH * LENGTH)

    @jax.jit
    def step(params, state, data):
        updates, state = optimizer.update(jax.grad(loss)(params, data), state)
        return optax.apply_updates(params, updates), state

    params = engine._params
    state = optimizer.init(params)
    with Batches(rows, options, batch_size=BATCH, length=LENGTH, seed=1, threads=0) as batches:
        for batch in islice(batches, steps):
            data = (batch["inputs"], batch["targets"], batch["inputs_position"], batch["inputs_segmentation"])
            params, state = step(params, state, data)
    engine._params = params
    return Model(engine, rtt_encoding("compact"), {"context": options.as_dict()})


@pytest.mark.slow
def test_the_rtt_given_the_size_differs_as_the_world_says(world, trained):
    """Each source has an access link of its own; a byte costs 12 times as much on one as on another."""
    simulated, measured = world
    pairs, count = np.unique(np.concatenate([measured.src, measured.dst], axis=1), axis=0, return_counts=True)
    # One packet in ten is large: of a pair with 140 measurements, too few to learn from in so few steps.
    pairs = pairs[count > 200]
    src, dst = pairs[:, :16], pairs[:, 16:]
    at = np.full(len(pairs), measured.time.max())
    true = {size: simulated.truth(src, dst, at, size).quantile(0.5) for size in (48, 1000)}
    asked = [(str(whole(a.tobytes())), str(whole(b.tobytes()))) for a, b in zip(src, dst, strict=True)]
    known = {
        size: np.array([trained.rtt(a, b, conditions={"size": size}).distribution.median for a, b in asked])
        for size in (48, 1000)
    }
    expected, found = true[1000] - true[48], known[1000] - known[48]
    assert len(pairs) == 9
    assert expected.max() > 5 * expected.min() > 0
    assert (found > 0).all()
    np.testing.assert_allclose(found, expected, rtol=0.2, atol=1.0)
    np.testing.assert_allclose(known[48], true[48], rtol=0.1)
