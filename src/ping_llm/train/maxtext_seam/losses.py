"""The loss and the training and evaluation steps, which also return the loss summed by field."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from maxtext.trainers.pre_train import train
from maxtext.utils import max_utils

from ping_llm.train import token_loss
from ping_llm.train.maxtext_seam.config import DATASET_TYPE

# The sums per field are passed through MaxText's steps in place of z_loss, the only entry that reaches the
# metrics of both steps unchanged, also with gradient accumulation.
FIELDS = "fields"
_original_loss_fn = train.loss_fn
_original_train_step = train.train_step
_original_eval_step = train.eval_step


def loss_with_fields(model: Any, config: Any, data: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    seen = []
    original = max_utils.cross_entropy_with_logits

    def cross_entropy(logits: Any, targets: Any, z_loss: float = 0.0) -> tuple[Any, Any]:
        losses = original(logits, targets, z_loss=z_loss)
        seen.append((logits, losses))
        if config.dataset_type != DATASET_TYPE:
            return losses
        return token_loss.of_config(config, logits, losses[0], data), losses[1]

    max_utils.cross_entropy_with_logits = cross_entropy
    try:
        loss, aux = _original_loss_fn(model, config, data, *args, **kwargs)
    finally:
        max_utils.cross_entropy_with_logits = original
    if config.dataset_type == DATASET_TYPE and seen:
        logits, (total, z_loss) = jax.lax.stop_gradient(seen[0])
        summed = token_loss.sums(logits, total - z_loss, data["targets"], data["targets_segmentation"] != 0)
    else:
        summed = jnp.zeros(len(token_loss.NAMES) + 1)
    aux["z_loss"] = jnp.concatenate([jnp.reshape(aux["z_loss"], (1,)), summed])
    return loss, aux


@functools.wraps(_original_train_step)
def train_step_with_fields(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    state, metrics = _original_train_step(*args, **kwargs)
    return state, _unpack(metrics, "learning/z_loss")


@functools.wraps(_original_eval_step)
def eval_step_with_fields(*args: Any, **kwargs: Any) -> Any:
    return _unpack(_original_eval_step(*args, **kwargs), "evaluation/z_loss")


def _unpack(metrics: Any, vehicle: str) -> Any:
    packed = metrics["scalar"][vehicle]
    metrics["scalar"][vehicle], metrics["scalar"][FIELDS] = packed[0], packed[1:]
    return metrics
