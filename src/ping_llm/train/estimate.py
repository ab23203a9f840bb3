"""Estimates of a training without running it: parameters, FLOPs, memory and steps per epoch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ping_llm.train import settings
from ping_llm.train.run import check, import_seam

_MIB = 1 << 20


def plan(config: str, overrides: Sequence[str] = (), *, rows: Path | None = None) -> dict[str, Any]:
    """Estimate the figures of a config on the devices of this machine; those of the data only with `rows`."""
    import jax

    path = settings.find(config)
    # Evaluations are not estimated, so no rows are needed for them.
    words = [*overrides, "eval_interval=-1", *([f"network_train_files={rows.resolve()}"] if rows else [])]
    seam = import_seam()
    full = seam.read_config(path, words, Path("runs") / path.stem)
    with_data = bool(full.network_train_files)
    if with_data:
        check(full)
    weights = seam.sizes(full)
    devices = jax.device_count()
    tokens = full.global_batch_size_to_train_on * full.max_target_length
    figures: dict[str, Any] = {
        "config": config,
        "devices": devices,
        "parameters": int(weights["parameters"]),
        "sequences_per_step": full.global_batch_size_to_train_on,
        "tokens_per_step": tokens,
        "steps": full.steps,
        "tokens": tokens * full.steps,
        "flops_per_step": weights["flops_per_device_step"] * devices,
        "flops": weights["flops_per_device_step"] * devices * full.steps,
        "weights_mib": weights["weight_bytes"] / _MIB,
        "gradients_mib": weights["weight_bytes"] / _MIB,
        "optimizer_mib": weights["optimizer_bytes"] / _MIB,
        # If layers are a loop, XLA holds a second copy of their weights: `bench plan-check` found 1.02 to
        # 1.09 times the weights from 1M to 309M parameters, and no copy with scan_layers=false.
        "scan_copy_mib": weights["weight_bytes"] / _MIB if full.scan_layers else 0.0,
        "activations_mib_per_device": activation_bytes(full, devices) / _MIB,
    }
    if with_data:
        figures |= of_data(full)
    return figures


def activation_bytes(config: Any, devices: int) -> float:
    """Approximate memory, in bytes, that one device keeps between forward and backward pass.

    With remat_policy full, a layer keeps its input; with minimal, also the outputs of its matrices; all
    others are counted as keeping both and the scores. One layer being recomputed, and the logits, are added.
    """
    sequences = config.micro_batch_size_to_train_on / devices
    length, width, layers = config.max_target_length, config.emb_dim, config.num_decoder_layers
    element = 2 if "16" in str(config.dtype) else 4
    heads, kv_heads, head_dim = config.num_query_heads, config.num_kv_heads, config.head_dim
    matrices = (heads + 2 * kv_heads) * head_dim + 2 * width + 2 * config.mlp_dim
    scores = heads * length if config.attention == "dot_product" else 0
    kept = {"full": width, "minimal": width + matrices}.get(
        config.remat_policy, width + matrices + config.mlp_dim + scores
    )
    recomputed = width + matrices + config.mlp_dim + 2 * scores
    logits = 3 * config.vocab_size * 4
    return sequences * length * (element * (layers * kept + recomputed) + logits)


def of_data(config: Any) -> dict[str, Any]:
    """Steps per epoch, from the rows' index and the packing of the first unit."""
    from ping_llm.contexts.batches import open_rows
    from ping_llm.contexts.kinds import of_kinds
    from ping_llm.contexts.options import Parameters
    from ping_llm.contexts.plan import Cursor, Planner, unit_sequences

    if config.network_data_format == settings.PRETOKENIZED:
        return _of_stored(config)
    options = settings.context_options(config)
    store = of_kinds(open_rows(config.network_train_files, config.network_data_format), options.kind_names)
    batch, length = config.global_batch_size_to_load, config.max_target_length
    sequences = unit_sequences(batch)
    parameters = Parameters.of(options, length)
    planner = Planner(store.index, parameters, sequences, length, config.data_shuffle_seed)
    unit = planner.plan(Cursor(0, 0), 1)
    packed = max(len(unit.row) / max(unit.used, 1), 1e-9)
    per_epoch = planner.contexts / packed / batch
    return {
        "rows": len(store.index),
        "contexts_per_epoch": planner.contexts,
        "contexts_per_sequence": packed,
        "steps_per_epoch": per_epoch,
        "epochs": config.steps / per_epoch,
    }


def _of_stored(config: Any) -> dict[str, Any]:
    """Steps per epoch of stored contexts, as if sequences were full."""
    from ping_llm.contexts.stored import Stored

    stored = Stored.open(config.network_train_files)
    packed = max(stored.contexts * config.max_target_length / stored.tokens, 1.0)
    per_epoch = stored.contexts / packed / config.global_batch_size_to_load
    return {
        "contexts_per_epoch": stored.contexts,
        "contexts_per_sequence": packed,
        "steps_per_epoch": per_epoch,
        "epochs": config.steps / per_epoch,
    }
