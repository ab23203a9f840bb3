"""MaxText's own model and loss on our batches: nothing leaks into a prediction."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import SMALL

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.options import ContextOptions
from ping_llm.tokens import vocab
from ping_llm.train import settings
from ping_llm.train.run import quiet

with quiet():
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.trainers.pre_train import train
    from maxtext.utils import maxtext_utils, model_creation_utils

    from ping_llm.train import maxtext_seam as seam

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    run = tmp_path_factory.mktemp("model") / "run"
    return seam.read_config(settings.find("tiny"), [*SMALL, "network_train_files=unused"], run)


@pytest.fixture(scope="module")
def batch(rows):
    options = dataclasses.replace(ContextOptions(), max_context_tokens=64)
    return next(Batches(rows, options, batch_size=4, length=128))


def _loss(model, config, batch):
    with jax.set_mesh(model.mesh), logical_axis_rules(config.logical_axis_rules):
        loss, _ = train.loss_fn(model, config, dict(batch), None, None, is_train=False)
    return float(loss)


class _Copies(nnx.Module):
    """Predicts each target to be the input at its place."""

    def __init__(self, mesh):
        self.mesh = mesh

    def __call__(self, decoder_input_tokens, **_):
        return 20.0 * jax.nn.one_hot(decoder_input_tokens, vocab.VOCABULARY_SIZE)


def test_a_model_that_copies_its_input_gains_nothing(config, batch):
    mesh = maxtext_utils.get_mesh_from_config(config)
    uniform = np.log(vocab.VOCABULARY_SIZE)
    assert _loss(_Copies(mesh), config, batch) > uniform
    # The test would see it: were the inputs the targets, copying would be all there is to learn.
    assert _loss(_Copies(mesh), config, batch | {"inputs": batch["targets"]}) < 0.1


def test_packed_segments_predict_as_if_alone(config, batch):
    mesh = maxtext_utils.get_mesh_from_config(config)
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        model = model_creation_utils.create_model(config, mesh, rngs=nnx.Rngs(params=0, dropout=1))

        @nnx.jit
        def logits(model, tokens, positions, segments):
            return model(
                decoder_input_tokens=tokens,
                decoder_positions=positions,
                decoder_segment_ids=segments,
                enable_dropout=False,
            )

        packed = logits(model, *(jnp.asarray(batch[key]) for key in _INPUTS))
        compared = 0
        for sequence in range(4):
            segments = batch["inputs_segmentation"][sequence]
            for segment in range(1, segments.max() + 1):
                inside = segments == segment
                alone = {key: np.zeros((4, 128), np.int32) for key in _INPUTS}
                length = int(inside.sum())
                for key in _INPUTS:
                    alone[key][0, :length] = batch[key][sequence][inside]
                unpacked = logits(model, *(jnp.asarray(alone[key]) for key in _INPUTS))
                np.testing.assert_allclose(packed[sequence][inside], unpacked[0, :length], atol=2e-5)
                compared += 1
    assert compared > 4


_INPUTS = ("inputs", "inputs_position", "inputs_segmentation")
