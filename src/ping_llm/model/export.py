"""A finished run → a folder that loads anywhere: model.safetensors, config.json, tokens.json.

The folder is a Hugging Face Llama folder; neither MaxText nor Orbax is needed to load it.
"""

import json
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from ping_llm import __version__
from ping_llm.errors import PingError
from ping_llm.files import whole_file, write_json
from ping_llm.model import checkpoint
from ping_llm.model.config import ModelConfig

WEIGHTS, CONFIG, TOKENS = "model.safetensors", "config.json", "tokens.json"

#: Version of tokens.json.
FORMAT = 1


@dataclass(frozen=True)
class Exported:
    """A model in memory, as an export folder holds it."""

    config: ModelConfig
    tensors: checkpoint.Tensors
    tokens: dict[str, Any]
    origin: Path


def export(source: Path | str, out: Path | str, *, tokens: dict[str, Any] | None = None) -> Path:
    """Write the export folder of a run, a checkpoint folder or another export.

    Args:
      source: a run (runs/NAME), its checkpoints folder, one checkpoint (…/checkpoints/STEP) or an export.
      out: the folder to write; made if missing.
      tokens: what to keep in tokens.json beside the vocabulary (rtt_encoding, clip_limit_ms, context);
        by default it is taken from the run's run.json.
    """
    model = read(source, prefer_checkpoint=True)
    return write(model.config, model.tensors, model.tokens | (tokens or {}), Path(out))


def write(config: ModelConfig, tensors: checkpoint.Tensors, tokens: dict[str, Any], out: Path) -> Path:
    """Write an export folder."""
    from safetensors.numpy import save_file

    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / WEIGHTS) as aside:
        save_file(tensors, aside, metadata={"format": "pt", "ping_llm": __version__})
    write_json(out / TOKENS, token_schema() | tokens)
    # Last: a folder with config.json is whole.
    write_json(out / CONFIG, config.to_llama())
    return out


def read(source: Path | str, *, prefer_checkpoint: bool = False) -> Exported:
    """Read a run, a checkpoint or an export. Of a run: its export if any, else the newest checkpoint."""
    path = Path(source)
    if not path.exists():
        raise PingError(f"{path} does not exist: give a run, a checkpoint or an export folder")
    if is_export(path):
        return _read_export(path)
    if is_export(path / "export") and not prefer_checkpoint:
        return _read_export(path / "export")
    step = _newest_step(path)
    if step is None:
        if is_export(path / "export"):
            return _read_export(path / "export")
        raise PingError(
            f"{path} holds no model: a run has checkpoints/STEP or export/, "
            f"an export has {CONFIG} and {WEIGHTS}"
        )
    run = _run_of(step)
    config, tensors = checkpoint.to_llama(checkpoint.read(step), _settings(run))
    return Exported(config, tensors, _tokens(run), step)


def is_export(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()


def _read_export(folder: Path) -> Exported:
    from safetensors.numpy import load_file

    config = ModelConfig.from_llama(json.loads((folder / CONFIG).read_text()), str(folder / CONFIG))
    tokens = _tokens(None)
    if (folder / TOKENS).is_file():
        tokens = json.loads((folder / TOKENS).read_text())
    if tokens.get("format") != FORMAT:
        raise PingError(f"{folder / TOKENS} has format {tokens.get('format')}, this program reads {FORMAT}")
    return Exported(config, load_file(folder / WEIGHTS), tokens, folder)


def _newest_step(path: Path) -> Path | None:
    if (path / "items").is_dir():
        return path
    found = checkpoint.steps(path / "checkpoints") or checkpoint.steps(path)
    return found[-1] if found else None


def _run_of(step: Path) -> Path | None:
    """The run folder a checkpoint belongs to: the one with run.json or config.yml above it."""
    for folder in list(step.resolve().parents)[:3]:
        if (folder / "run.json").is_file() or (folder / "config.yml").is_file():
            return folder
    return None


def _settings(run: Path | None) -> dict[str, Any]:
    """MaxText's configuration of a run, where it was kept."""
    if run is None or not (run / "config.yml").is_file():
        return {}
    import yaml

    return yaml.safe_load((run / "config.yml").read_text()) or {}


def _tokens(run: Path | None) -> dict[str, Any]:
    """The token schema of a run: tokens.json's content."""
    kept: dict[str, Any] = {}
    if run is not None and (run / "run.json").is_file():
        kept = json.loads((run / "run.json").read_text())
    context = kept.get("context_options") or kept.get("context") or {}
    return token_schema(context)


def token_schema(context: Any = None) -> dict[str, Any]:
    """Content of tokens.json for these context options (a dataclass, a dict, or none for the defaults)."""
    options = (
        asdict(context) if is_dataclass(context) and not isinstance(context, type) else dict(context or {})
    )
    return {
        "format": FORMAT,
        "vocabulary_size": 272,
        "rtt_encoding": options.get("rtt_encoding", "compact"),
        "clip_limit_ms": options.get("clip_limit_ms"),
        "context": options,
    }
