"""Conversion between Orbax checkpoints of MaxText and plain arrays with Hugging Face Llama names.

MaxText keeps projections as [in, heads, head_dim], stacks scanned layers on axis 1, and folds 1/√head_dim
into the query kernel's initialisation instead of dividing the scores. Llama divides them, so the query
weights are multiplied by √head_dim here; no permutation is needed, because both rotate halves.
"""

import ast
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import PingError
from ping_llm.model.config import ModelConfig
from ping_llm.model.ledger import Ledger

Tensors = dict[str, np.ndarray]

_LAYER_KERNELS = {
    "pre_self_attention_layer_norm/scale": "input_layernorm",
    "post_self_attention_layer_norm/scale": "post_attention_layernorm",
    "self_attention/query/kernel": "self_attn.q_proj",
    "self_attention/key/kernel": "self_attn.k_proj",
    "self_attention/value/kernel": "self_attn.v_proj",
    "self_attention/out/kernel": "self_attn.o_proj",
    "mlp/wi_0/kernel": "mlp.gate_proj",
    "mlp/wi_1/kernel": "mlp.up_proj",
    "mlp/wo/kernel": "mlp.down_proj",
}

#: Keys of MaxText that change the computation, and their only supported values, MaxText's defaults.
_FIXED: dict[str, Any] = {
    "decoder_block": "llama2",
    "model_name": "default",
    "mlp_activations": ["silu", "linear"],
    "mlp_activations_limit": -1.0,
    "logits_via_embedding": False,
    "attention_type": "global",
    "attention_bias": False,
    "attention_sink": False,
    "mlp_bias": False,
    "share_kv_projections": False,
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
    "use_qk_norm": False,
    "use_post_attn_norm": False,
    "use_post_ffw_norm": False,
    "moba": False,
    "num_experts": 1,
    "mtp_num_layers": 0,
    "mhc_expansion_rate": 1,
    "engram_layers": [],
    "nope_layer_interval": -1,
    "quantization": "",
    "use_untrainable_positional_embedding": False,
    "trainable_position_size": -1,
    "rope_type": "default",
    "rope_linear_scaling_factor": 1.0,
    "rope_min_timescale": 1,
    "partial_rotary_factor": 1.0,
    "use_mrope": False,
    "param_scan_axis": 1,
}


def steps(checkpoints: Path) -> list[Path]:
    """The finished checkpoints below a folder, oldest first."""
    found = [path for path in checkpoints.glob("*") if path.name.isdigit() and (path / "items").is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def read(step: Path) -> Tensors:
    """Read the parameters (not the optimizer) of one checkpoint, by MaxText's names, which are paths.

    Orbax reads most damaged files without an error, so the checksums kept by the training are compared first.
    """
    items = step / "items" if (step / "items").is_dir() else step
    if not (items / "_METADATA").is_file():
        raise PingError(f"{step} is not a checkpoint: it has no items/_METADATA")
    _check_ledger(step.resolve())
    try:
        tree = json.loads((items / "_METADATA").read_bytes())["tree_metadata"]
        names = [ast.literal_eval(key) for key in tree]
    except (OSError, ValueError, SyntaxError, TypeError, KeyError) as error:
        raise PingError(_damaged(step, f"items/_METADATA: {error}")) from error
    names = [name for name in names if isinstance(name, tuple) and name[:2] == ("params", "params")]
    if not names:
        raise PingError(f"{step} holds no params: it is not a MaxText training checkpoint")

    # Orbax logs every array, and warns about the sharding of another topology; neither matters here.
    logging.getLogger("absl").setLevel(logging.ERROR)
    import jax
    import orbax.checkpoint as ocp

    wanted: dict[str, Any] = {}
    restore: dict[str, Any] = {}
    for name in names:
        leaf, arguments = wanted, restore
        for part in name[:-1]:
            leaf, arguments = leaf.setdefault(part, {}), arguments.setdefault(part, {})
        leaf[name[-1]] = 0
        arguments[name[-1]] = ocp.RestoreArgs(restore_type=np.ndarray)
    arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=restore, partial_restore=True)
    try:
        restored = ocp.PyTreeCheckpointer().restore(items.resolve(), args=arguments)
    except Exception as error:  # Orbax and TensorStore raise errors of many classes
        raise PingError(_damaged(step, f"Orbax: {str(error)[:200]}")) from error
    flat = jax.tree_util.tree_flatten_with_path(restored["params"]["params"])[0]
    return {"/".join(str(key.key) for key in path): np.asarray(leaf, np.float32) for path, leaf in flat}


def _check_ledger(step: Path) -> None:
    """Compare a checkpoint's files with checkpoints.json of its run, if it has an entry there."""
    if step.parent.name != "checkpoints" or not step.name.isdigit():
        return
    ledger = Ledger(step.parents[1])
    if ledger.holds(int(step.name)) and (fault := ledger.fault(int(step.name))):
        raise PingError(_damaged(step, fault))


def _damaged(step: Path, fault: str) -> str:
    others = [other.name for other in steps(step.parent) if other.name != step.name]
    way_out = f"name another one, such as {step.parent / others[-1]}" if others else "there is no other one"
    return f"the checkpoint {step} is damaged ({fault}); {way_out}"


def to_llama(params: Tensors, settings: dict[str, Any]) -> tuple[ModelConfig, Tensors]:
    """Rename and reshape MaxText's llama2 decoder block to Hugging Face Llama.

    Args:
      params: what `read` returns.
      settings: MaxText's configuration if known; it is checked, and gives what shapes do not determine.
    """
    for key, value in _FIXED.items():
        # YAML and the command line may hold a number as text.
        if key in settings and str(settings[key]) != str(value) and settings[key] != value:
            raise PingError(f"{key} is {settings[key]!r}: only {value!r} can be read")
    params = dict(params)
    layers = _unstack(params)
    try:
        tensors = {
            "model.embed_tokens.weight": params.pop("token_embedder/embedding"),
            "model.norm.weight": params.pop("decoder/decoder_norm/scale"),
            "lm_head.weight": params.pop("decoder/logits_dense/kernel").T,
        }
        width, heads, head_dim = layers[0]["self_attention/query/kernel"].shape
        kv_heads = layers[0]["self_attention/key/kernel"].shape[1]
        mlp_width = layers[0]["mlp/wi_0/kernel"].shape[1]
        for index, layer in enumerate(layers):
            for theirs, ours in _LAYER_KERNELS.items():
                tensors[f"model.layers.{index}.{ours}.weight"] = _projection(
                    theirs, layer.pop(theirs), head_dim
                )
    except (KeyError, IndexError) as missing:
        raise PingError(
            f"the checkpoint has no {missing}: "
            "only decoder_block=llama2 with logits_via_embedding=false can be read"
        ) from None
    left = sorted(params) + sorted(name for layer in layers for name in layer)
    if left:
        raise PingError(
            f"the checkpoint holds {left[0]}, which decoder_block=llama2 does not have: it cannot be read"
        )
    config = ModelConfig(
        layers=len(layers),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=mlp_width,
        vocabulary=tensors["lm_head.weight"].shape[0],
        max_length=int(settings.get("max_target_length", ModelConfig.max_length)),
        rope_theta=float(settings.get("rope_max_timescale", ModelConfig.rope_theta)),
        norm_epsilon=float(settings.get("normalization_layer_epsilon", ModelConfig.norm_epsilon)),
    )
    return config, {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _unstack(params: Tensors) -> list[Tensors]:
    """Move the layers out of `params`, whether scanned (stacked on axis 1) or with separate names."""
    layers: dict[int, Tensors] = {}
    for name in list(params):
        if name.startswith("decoder/layers/"):
            stacked = params.pop(name)
            for index in range(stacked.shape[1]):
                layers.setdefault(index, {})[name.removeprefix("decoder/layers/")] = stacked[:, index]
        elif match := re.fullmatch(r"decoder/layers_(\d+)/(.+)", name):
            layers.setdefault(int(match[1]), {})[match[2]] = params.pop(name)
    if sorted(layers) != list(range(len(layers))):
        raise PingError(f"the checkpoint holds the layers {sorted(layers)}: some are missing")
    return [layers[index] for index in range(len(layers))]


def _projection(name: str, kernel: np.ndarray, head_dim: int) -> np.ndarray:
    """Return the matrix [out, in] (or the vector of a norm)."""
    if name.endswith("scale"):
        return kernel
    if name == "self_attention/out/kernel":
        return kernel.reshape(-1, kernel.shape[-1]).T
    matrix = kernel.reshape(kernel.shape[0], -1).T
    return matrix * math.sqrt(head_dim) if "query" in name else matrix


def from_llama(tensors: Tensors, config: ModelConfig, scanned: bool) -> Tensors:
    """The inverse of `to_llama`.

    Args:
      scanned: whether the layers are stacked on axis 1, as MaxText keeps them with scan_layers.
    """
    params = {
        "token_embedder/embedding": tensors["model.embed_tokens.weight"],
        "decoder/decoder_norm/scale": tensors["model.norm.weight"],
        "decoder/logits_dense/kernel": tensors["lm_head.weight"].T,
    }
    for theirs, ours in _LAYER_KERNELS.items():
        layers = [
            _kernel(theirs, tensors[f"model.layers.{index}.{ours}.weight"], config.head_dim)
            for index in range(config.layers)
        ]
        if scanned:
            params[f"decoder/layers/{theirs}"] = np.stack(layers, axis=1)
        else:
            params |= {f"decoder/layers_{index}/{theirs}": layer for index, layer in enumerate(layers)}
    return {name: np.ascontiguousarray(array) for name, array in params.items()}


def _kernel(name: str, matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """The inverse of `_projection`."""
    if name.endswith("scale"):
        return matrix
    if name == "self_attention/out/kernel":
        return matrix.T.reshape(-1, head_dim, matrix.shape[0])
    if name.startswith("mlp/"):
        return matrix.T
    kernel = matrix.T.reshape(matrix.shape[1], -1, head_dim)
    return kernel / math.sqrt(head_dim) if "query" in name else kernel


def write(params: Tensors, step: Path) -> None:
    """Write a checkpoint for `read` and MaxText's load_parameters_path; it appears when it is complete."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    import orbax.checkpoint as ocp

    tree: dict[str, Any] = {}
    for name, array in params.items():
        *folders, leaf = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = array
    items = ocp.args.PyTreeSave({"params": {"params": tree}})
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(step.resolve(), ocp.args.Composite(items=items), force=True)
