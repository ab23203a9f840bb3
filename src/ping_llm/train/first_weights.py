"""Initial weights of a new run: those of another run, of an export, or of the packaged model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import UsageError
from ping_llm.model import checkpoint, export, ledger
from ping_llm.model.packaged import base_folder
from ping_llm.train import settings

#: Folder below the run where the weights of an export are written as a checkpoint.
_FOLDER = "first-weights"

#: Sizes that must be equal in both networks: MaxText's key, and the field of ModelConfig. Lengths may differ.
_SHAPE = {
    "base_num_decoder_layers": "layers",
    "base_emb_dim": "width",
    "base_num_query_heads": "heads",
    "base_num_kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "base_mlp_dim": "mlp_width",
    "vocab_size": "vocabulary",
}


@dataclass(frozen=True)
class FirstWeights:
    """A checkpoint that MaxText loads before the first step.

    Attributes:
      path: path of the checkpoint.
      exported: the export from which `write` makes it; None: it exists.
    """

    path: Path
    exported: export.Exported | None = None

    @classmethod
    def find(cls, source: Path, run: Path) -> "FirstWeights":
        """Find the weights of `source` for the run in a folder; nothing is written.

        Raises:
          UsageError: there are no weights, or they are damaged.
        """
        source = base_folder(source) or source
        steps = ledger.steps(source / "checkpoints")
        if steps:
            newest = source / "checkpoints" / str(steps[-1])
            if fault := ledger.Ledger(source).fault(steps[-1]):
                raise UsageError(
                    f"{newest} is damaged ({fault}); remove it to begin with the weights of an earlier "
                    "checkpoint"
                )
            return cls((newest / "items").resolve())
        if not export.is_export(source):
            raise UsageError(
                f"{source} has no weights: give the folder of a run that has checkpoints, an export, or base"
            )
        return cls((run / _FOLDER / "items").resolve(), export.read(source))

    def check(self, config: Any, processes: int = 1) -> None:
        """Raise a UsageError for weights of another shape, or with another meaning of RTT bytes."""
        if self.exported is None:
            return
        if processes > 1:
            # Orbax writes with all processes, and no process may read before it has finished.
            raise UsageError(
                f"{processes} processes begin with the weights of a run, not with {self.exported.origin}: "
                "train from it for one step with one process first"
            )
        ours = self.exported.config
        differing = [
            f"{key} {getattr(ours, name)}, not {getattr(config, key)}"
            for key, name in _SHAPE.items()
            if int(getattr(config, key)) != getattr(ours, name)
        ]
        options = settings.context_options(config).as_dict()
        for key in ("rtt_encoding", "clip_limit_ms"):
            theirs = self.exported.tokens.get(key, options[key])
            if theirs != options[key]:
                differing.append(f"network_{key} {theirs}, not {options[key]}")
        if differing:
            raise UsageError(f"the weights of {self.exported.origin} have {'; '.join(differing)}")

    def write(self, scanned: bool) -> None:
        """Write the checkpoint that MaxText will load, unless it exists."""
        if self.exported is None or self.path.exists():
            return
        params = checkpoint.from_llama(self.exported.tensors, self.exported.config, scanned)
        checkpoint.write(params, self.path.parent)
