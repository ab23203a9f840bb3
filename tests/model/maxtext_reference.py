"""Make small checkpoints with MaxText itself, and the logits it computes from them.

Run as a program (MaxText wants a fresh JAX): maxtext_reference.py OUT. Writes OUT/{scanned,unscanned}/
with checkpoints/ and config.yml as a run has them, and logits.npz (a packed batch, its logits and its loss).
"""

import os
import sys
from pathlib import Path

import numpy as np

LENGTH, BATCH = 48, 3

SETTINGS = {
    "dataset_type": "synthetic",
    "steps": 2,
    # Large, so that norms and embeddings have left their initial values after two steps.
    "learning_rate": 0.05,
    "warmup_steps_fraction": 0.0,
    "decoder_block": "llama2",
    "base_emb_dim": 64,
    "base_num_decoder_layers": 3,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "base_mlp_dim": 96,
    "vocab_size": 272,
    "max_target_length": LENGTH,
    "per_device_batch_size": BATCH,
    "rope_max_timescale": 5000,
    "normalization_layer_epsilon": 1e-4,
    "dtype": "float32",
    "attention": "dot_product",
    "rope_type": "default",
    "logits_via_embedding": False,
    "skip_jax_distributed_system": True,
    "async_checkpointing": False,
    "save_checkpoint_on_start": False,
    "log_config": False,
    "enable_goodput_recording": False,
    "checkpoint_period": 100,
}


def packed_batch() -> dict[str, np.ndarray]:
    """Two segments a row, positions restarting, the last positions empty."""
    generator = np.random.default_rng(7)
    inputs = generator.integers(0, 272, (BATCH, LENGTH)).astype(np.int32)
    segmentation = np.zeros((BATCH, LENGTH), np.int32)
    positions = np.zeros((BATCH, LENGTH), np.int32)
    for row, cut in enumerate((11, 20, 44)):
        segmentation[row, :cut] = 1
        segmentation[row, cut : LENGTH - 3] = 2
        positions[row, :cut] = np.arange(cut)
        positions[row, cut:] = np.arange(LENGTH - cut)
    targets = np.roll(inputs, -1, axis=1) * (segmentation != 0)
    return {
        "inputs": inputs,
        "targets": targets.astype(np.int32),
        "inputs_position": positions,
        "targets_position": positions,
        "inputs_segmentation": segmentation,
        "targets_segmentation": segmentation,
    }


def make(out: Path, scan_layers: bool) -> None:
    import maxtext
    import yaml
    from flax import nnx
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train
    from maxtext.utils import train_utils

    name = "scanned" if scan_layers else "unscanned"
    settings = SETTINGS | {"run_name": name, "base_output_directory": str(out), "scan_layers": scan_layers}
    base = Path(next(iter(maxtext.__path__))) / "configs" / "base.yml"
    config = pyconfig.initialize(["", str(base), *(f"{key}={value}" for key, value in settings.items())])

    graphs = []
    original = train_utils.setup_train_loop

    def remember(*arguments, **options):
        result = original(*arguments, **options)
        graphs.append(nnx.split(result[-1])[0])
        return result

    train_utils.setup_train_loop = remember
    try:
        state = train.train_loop(config, None)
    finally:
        train_utils.setup_train_loop = original
    batch = packed_batch()
    model = nnx.merge(graphs[0], state).model
    _, auxiliary = train.loss_fn(model, config, dict(batch), None, None, is_train=False)
    logits = model(
        decoder_input_tokens=batch["inputs"],
        decoder_positions=batch["inputs_position"],
        decoder_segment_ids=batch["inputs_segmentation"],
        enable_dropout=False,
    )
    run = out / name
    (run / "config.yml").write_text(yaml.safe_dump(settings))
    np.savez(
        run / "logits.npz",
        logits=np.asarray(logits),
        xent_sum=np.asarray(auxiliary["xent_sum"]),
        weights=np.asarray(auxiliary["total_weights"]),
        **batch,
    )


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    for scanned in (True, False):
        make(Path(sys.argv[1]), scanned)
