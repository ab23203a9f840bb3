"""Unmodified MaxText, for comparison: its training loop, its forward pass and its decode engine.

The engine is made for JetStream, a server. Without JetStream, MaxText uses stubs, which are sufficient for
prefill, insert and generate; only the class of its tokens must be registered with JAX.
"""

import contextlib
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from maxtext.common import metric_logger
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train
from maxtext.utils import model_creation_utils

from ping_llm.train.maxtext_seam.loop import jax_as_maxtext_sets_it, quiet

Decoder = Callable[[np.ndarray, np.ndarray], np.ndarray]


_MODEL = {
    "run_name": "bare",
    "decoder_block": "llama2",
    "dtype": "float32",
    "attention": "dot_product",
    "enable_checkpointing": False,
    "dataset_type": "synthetic",
    "skip_jax_distributed_system": True,
    "log_config": False,
}


def _config(keys: dict[str, Any]) -> Any:
    base = str(Path(pyconfig.__file__).with_name("base.yml"))
    return pyconfig.initialize(["", base, *(f"{key}={value}" for key, value in (_MODEL | keys).items())])


def run_untouched(config: Any, on_step: Callable[[], None]) -> None:
    """Run MaxText's own training, with only a callback per step added, for timing."""
    original = metric_logger.MetricLogger

    class Watched(original):  # type: ignore[misc,valid-type]
        def write_metrics(self, metrics: Any, step: int, metric_type: str = "train") -> None:
            super().write_metrics(metrics, step, metric_type)
            on_step()

    quiet()
    metric_logger.MetricLogger = Watched
    try:
        with jax_as_maxtext_sets_it(config):
            train.train_loop(config, None)
    finally:
        metric_logger.MetricLogger = original


def bare_forward(**keys: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return MaxText's llama2 forward pass, (inputs, positions) → logits, with random weights, to compare."""
    config = _config(keys)
    graph, state = nnx.split(model_creation_utils.get_nnx_create_model_fn(config)())

    @jax.jit
    def forward(state: Any, inputs: Any, positions: Any) -> Any:
        return nnx.merge(graph, state)(
            decoder_input_tokens=inputs,
            decoder_positions=positions,
            decoder_segment_ids=jnp.ones_like(inputs),
            enable_dropout=False,
        )

    return functools.partial(forward, state)


def bare_decoder(prompt_length: int, slots: int, **keys: Any) -> Decoder:
    """Return a function (prompt, next token of each slot) → logits [slots, vocabulary] after that token.

    The prompt is read once (prefill), its cache is copied to every slot (insert), and all slots take one step
    (generate). This is the engine's shortest way from a context to many continuations of it.

    Args:
      prompt_length: length of the longest prompt, in tokens; shorter ones are padded to it.
      slots: number of continuations.
      **keys: sizes by MaxText's keys.
    """
    lengths = {
        "max_prefill_predict_length": prompt_length,
        "max_target_length": prompt_length + 1,
        "per_device_batch_size": slots,
    }
    with contextlib.redirect_stdout(io.StringIO()):  # it prints which of Google's services are missing
        from maxtext.inference.maxengine import maxengine

        _known_to_jax(maxengine.engine_api.ResultTokens)
        engine = maxengine.MaxEngine(_config(lengths | keys))
        params = engine.load_params(rng=jax.random.PRNGKey(0))
        state = engine.init_decode_state()

    def decode(prompt: np.ndarray, following: np.ndarray) -> np.ndarray:
        nonlocal state
        padded = jnp.asarray(np.pad(prompt, (0, prompt_length - len(prompt))), jnp.int32)
        prefix, _ = engine.prefill(params=params, padded_tokens=padded, true_length=len(prompt))
        for slot in range(slots):
            state = engine.insert(prefix, state, slot=slot)
        state = dict(state) | {"tokens": jnp.asarray(following, jnp.int32)[:, None]}
        state, _ = engine.generate(params, state)
        return np.asarray(state["logits"])[:, 0]

    return decode


def _known_to_jax(tokens: Any) -> None:
    """Register the class of tokens as a pytree, which compiled functions must return; the stub is none."""
    with contextlib.suppress(ValueError):  # it is JetStream's class, or is already registered
        jax.tree_util.register_pytree_node(
            tokens, lambda made: ((made.data,), None), lambda _, data: tokens(data=data[0])
        )
