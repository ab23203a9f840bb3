"""Distillation: a smaller network learns the distributions of RTT bytes of a trained run, the teacher.

The teacher reads the same packed batches. At the bytes of an RTT, its probabilities replace the true byte as
the target of the student's cross entropy (`token_loss`); all other tokens keep the true one. After Hinton,
Vinyals and Dean, "Distilling the knowledge in a neural network", 2015.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import UsageError
from ping_llm.model import export, weights
from ping_llm.model.config import ModelConfig
from ping_llm.model.packaged import base_folder
from ping_llm.train import settings

#: Largest number of parameters of a student, as a share of its teacher's.
LARGEST_SHARE = 0.25

#: Arrays of a batch by name → probabilities of the teacher, [batch, length, vocabulary].
Teach = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Teacher:
    """A network whose weights do not change.

    Attributes:
      exported: weights and token schema of the network.
      fingerprint: checksum of the weights.
    """

    exported: export.Exported
    fingerprint: str

    @classmethod
    def read(cls, source: Path, processes: int = 1) -> "Teacher":
        """Read the network of a run, of a checkpoint or of an export."""
        source = base_folder(source) or source
        if processes > 1 and not any(export.is_export(each) for each in (source, source / "export")):
            # Orbax would wait for all processes.
            raise UsageError(
                f"{processes} processes read a teacher from an export, which {source} does not have: "
                f"ping-llm export {source}"
            )
        exported = export.read(source)
        return cls(exported, weights.checksum(exported.config, exported.tensors))

    def facts(self) -> dict[str, Any]:
        """Path, fingerprint and number of parameters, for run.json."""
        return {
            "path": str(self.exported.origin.resolve()),
            "fingerprint": self.fingerprint,
            "parameters": self.exported.config.parameters,
        }

    def check(self, config: Any) -> None:
        """Refuse a student that is too large, or tokens that the teacher was not trained on.

        Raises:
          UsageError: the config does not fit; the message says what to change.
        """
        teacher, origin = self.exported.config, self.exported.origin
        student = _sizes(config).parameters
        if student > LARGEST_SHARE * teacher.parameters:
            raise UsageError(
                f"a student has at most a quarter of its teacher's parameters: this config has {student:,}, "
                f"and {origin} has {teacher.parameters:,}; lower base_num_decoder_layers, base_emb_dim or "
                "base_mlp_dim"
            )
        if config.max_target_length > teacher.max_length:
            raise UsageError(
                f"max_target_length={config.max_target_length}: the teacher {origin} was trained on "
                f"sequences of {teacher.max_length} tokens; give max_target_length={teacher.max_length} or "
                "less"
            )
        options, theirs = settings.context_options(config), self.exported.tokens
        for key in ("rtt_encoding", "clip_limit_ms"):
            ours, other = getattr(options, key), theirs.get(key)
            if other is not None and other != ours:
                raise UsageError(f"network_{key}={ours}: the teacher {origin} has {other}; give the same")
        known = str(theirs.get("context", {}).get("fields", options.fields)).split(",")
        if unknown := [name for name in options.field_names if name not in known]:
            raise UsageError(
                f"network_fields={options.fields}: the teacher {origin} was not trained on "
                f"{', '.join(unknown)}"
            )

    def on(self, sharding: Any) -> Teach:
        """Put the teacher on the devices of a batch's sharding; each device reads its share of the batch."""
        import jax
        import numpy as np

        from ping_llm.model import transformer

        config = self.exported.config
        params = jax.tree.map(np.asarray, transformer.prepare(config, self.exported.tensors))
        params = jax.device_put(
            params, jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
        )

        def probabilities(params: Any, inputs: Any, positions: Any, segmentation: Any) -> Any:
            logits = transformer.packed_logits(config, params, inputs, positions, segmentation)
            return jax.nn.softmax(logits, axis=-1)

        compiled = jax.jit(probabilities, out_shardings=sharding)

        def teach(batch: dict[str, Any]) -> Any:
            names = ("inputs", "inputs_position", "inputs_segmentation")
            return compiled(params, *(batch[name] for name in names))

        return teach


def _sizes(config: Any) -> ModelConfig:
    return ModelConfig(
        layers=config.num_decoder_layers,
        width=config.emb_dim,
        heads=config.num_query_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=config.mlp_dim,
        vocabulary=config.vocab_size,
    )
