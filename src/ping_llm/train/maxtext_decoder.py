"""MaxText's own decode engine on random weights, to measure against.

The engine is made for JetStream, a server. Without it MaxText puts stand-ins in its place, which are enough
for prefill, insert and generate; only its tokens must be made known to JAX.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from maxtext.configs import pyconfig

Decoder = Callable[[np.ndarray, np.ndarray], np.ndarray]


def bare_decoder(prompt_length: int, slots: int, **keys: Any) -> Decoder:
    """(prompt, the next token of each slot) → logits [slots, vocabulary] after that token.

    The prompt is read once (prefill), its cache is put into every slot (insert), and all slots take one step
    (generate): the shortest way that the engine has from a context to many continuations of it.

    Args:
      prompt_length: longest prompt; shorter ones are padded to it.
      slots: how many continuations.
      **keys: sizes, as MaxText names them.
    """
    fixed = {
        "run_name": "bare",
        "decoder_block": "llama2",
        "dtype": "float32",
        "attention": "dot_product",
        "enable_checkpointing": False,
        "dataset_type": "synthetic",
        "skip_jax_distributed_system": True,
        "log_config": False,
        "max_prefill_predict_length": prompt_length,
        "max_target_length": prompt_length + 1,
        "per_device_batch_size": slots,
    }
    with contextlib.redirect_stdout(io.StringIO()):  # it says which of Google's services are not there
        from maxtext.inference.maxengine import maxengine

        _known_to_jax(maxengine.engine_api.ResultTokens)
        base = str(Path(pyconfig.__file__).with_name("base.yml"))
        config = pyconfig.initialize(["", base, *(f"{key}={value}" for key, value in (fixed | keys).items())])
        engine = maxengine.MaxEngine(config)
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
    """What a compiled function returns must be a pytree; the stand-in for JetStream's class is none."""
    with contextlib.suppress(ValueError):  # it is the real one, or was made known before
        jax.tree_util.register_pytree_node(
            tokens, lambda made: ((made.data,), None), lambda _, data: tokens(data=data[0])
        )
