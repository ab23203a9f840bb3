"""Export of a run as a folder of model.safetensors, config.json and tokens.json.

It is a Hugging Face Llama folder; neither MaxText nor Orbax is needed to load it.
"""

from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.files import read_object, read_yaml, whole_file, write_bytes, write_json
from ping_llm.locks import only_writer
from ping_llm.model import checkpoint, weights
from ping_llm.model.config import ModelConfig
from ping_llm.model.packaged import ERRORS, RECIPE, RELATIONS, TUNED_RELATIONS
from ping_llm.tokens.vocab import OPTIONAL, TOKENS_FORMATS, VOCABULARY_SIZE, tokens_format

WEIGHTS, CONFIG, TOKENS, RUN, STACK = "model.safetensors", "config.json", "tokens.json", "run.json", "stack"


@dataclass(frozen=True)
class Exported:
    """A model in memory, with the content of an export folder."""

    config: ModelConfig
    tensors: checkpoint.Tensors
    tokens: dict[str, Any]
    origin: Path
    #: Folder of the model's stack (`ping_llm.answer.stack`), if it has one.
    stack: Path | None = None


def run_facts(source: Path) -> dict[str, Any]:
    """Content of run.json of a run, or of the run of a checkpoint or an export; empty if there is none."""
    run = source if (source / RUN).is_file() else _run_of(source / "x")
    return {} if run is None else read_object(run / RUN)


def remembered_data(source: Path, *names: str) -> dict[str, str] | None:
    """Folder and fingerprint of the rows that a run answers from, {"rows", "fingerprint"}; None if unknown.

    Args:
      names: keys of run.json; `data` gives the rows that the network was trained on in any case.
    """
    known = run_facts(source)
    # A fit answers from all of its data, a training from the data that it was trained on.
    data: dict[str, str] = next(filter(None, map(known.get, names or ("context_data", "data"))), {})
    return data if data.get("rows") and data.get("fingerprint") else None


def export(source: Path | str, out: Path | str, *, tokens: dict[str, Any] | None = None) -> Path:
    """Write the export folder of a run, a checkpoint folder or another export.

    Args:
      source: a run (runs/NAME), its checkpoints folder, one checkpoint (…/checkpoints/STEP) or an export.
      out: the folder to write; made if missing.
      tokens: values for tokens.json besides the vocabulary (rtt_encoding, clip_limit_ms, context); by
          default they are taken from the run's run.json.
    """
    model = read(source, prefer_checkpoint=True)
    recipe = (Path(source) / RECIPE).is_file()
    if recipe:
        model = replace(model, stack=None)  # its methods belong to the data, which are not exported
    with only_writer(Path(out), "export"):
        written = _write_all(model, model.tokens | (tokens or {}), Path(out))
        for name in (ERRORS, RELATIONS, TUNED_RELATIONS, RECIPE) if recipe else ():
            if (Path(source) / name).is_file():  # only a tuned recipe has all
                write_bytes(written / name, (Path(source) / name).read_bytes())
    return written


def _write_all(model: "Exported", tokens: dict[str, Any], out: Path) -> Path:
    written = write(model.config, model.tensors, tokens, out)
    if model.stack is not None and model.stack.resolve() != (written / STACK).resolve():
        (written / STACK).mkdir(exist_ok=True)
        # Arrays first: a folder with stack.json is complete.
        for file in sorted(model.stack.iterdir(), reverse=True):
            write_bytes(written / STACK / file.name, file.read_bytes())
    return written


def write(config: ModelConfig, tensors: checkpoint.Tensors, tokens: dict[str, Any], out: Path) -> Path:
    """Write an export folder."""
    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / WEIGHTS) as aside:
        weights.write(aside, config, tensors)
    write_json(out / TOKENS, token_schema() | tokens)
    # Last: a folder with config.json is complete.
    write_json(out / CONFIG, config.to_llama())
    return out


def read(source: Path | str, *, prefer_checkpoint: bool = False) -> Exported:
    """Read a run, a checkpoint or an export. For a run: its export if any, else the newest checkpoint."""
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
        also = "; to ask about measurements, give them as --data or --context" if path.is_file() else ""
        raise PingError(
            f"{path} holds no model: a run has checkpoints/STEP or export/, "
            f"an export has {CONFIG} and {WEIGHTS}{also}"
        )
    run = _run_of(step)
    config, tensors = checkpoint.to_llama(checkpoint.read(step), _settings(run))
    weights.check(config, tensors, step)
    return Exported(config, tensors, _tokens(run), step, _stack(run))


def state_of(source: Path | str) -> tuple[str, ...] | None:
    """Identify the model that `read` would read: a different value means a different model. None: no model.

    Unfinished writes do not count, because config.json, stack.json and a checkpoint's folder come last.
    """
    path = Path(source)
    try:
        folder = path if is_export(path) else path / "export"
        step = None if is_export(folder) else _newest_step(path)
        if step is None and not is_export(folder):
            return None
        run = folder.parent if step is None else _run_of(step) or path
        files = (folder / CONFIG, folder / STACK / f"{STACK}.json", run / STACK / f"{STACK}.json")
        stamps = [str(file.stat().st_mtime_ns) if file.is_file() else "" for file in files]
        return (str(step), *stamps)
    except OSError:
        return None


def is_export(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()


def _read_export(folder: Path) -> Exported:
    config = ModelConfig.from_llama(read_object(folder / CONFIG), str(folder / CONFIG))
    tokens = read_object(folder / TOKENS) if (folder / TOKENS).is_file() else _tokens(None)
    _check_tokens(tokens, folder / TOKENS)
    tensors = weights.read(folder / WEIGHTS, config)
    # A run's stack is newer than its export's copy.
    return Exported(config, tensors, tokens, folder, _stack(folder.parent) or _stack(folder))


def _check_tokens(tokens: dict[str, Any], path: Path) -> None:
    if tokens.get("format") not in TOKENS_FORMATS:
        raise PingError(
            f"{path} has format {tokens.get('format')}, this program reads "
            f"{TOKENS_FORMATS[0]} to {TOKENS_FORMATS[-1]}"
        )
    if (size := tokens.get("vocabulary_size", VOCABULARY_SIZE)) != VOCABULARY_SIZE:
        raise PingError(f"{path}: vocabulary_size is {size!r}; it must be {VOCABULARY_SIZE}")
    for key, kinds, what in (
        ("rtt_encoding", str, "the name of an encoding"),
        ("clip_limit_ms", int | float | None, "a number or null"),
        ("context", dict, "an object"),
    ):
        if key in tokens and not isinstance(tokens[key], kinds):
            raise PingError(f"{path}: {key} is {tokens[key]!r}; it must be {what}")


def _stack(folder: Path | None) -> Path | None:
    """The folder of the stack of a run or an export, if it has one."""
    return folder / STACK if folder is not None and (folder / STACK / f"{STACK}.json").is_file() else None


def optional_fields(source: Path | str) -> tuple[str, ...]:
    """Names of the optional fields that a run, a checkpoint or an export was trained on."""
    path = Path(source)
    folder = next((each for each in (path, path / "export") if (each / TOKENS).is_file()), None)
    if folder is not None:
        return stated_fields(read_object(folder / TOKENS))
    step = _newest_step(path)
    return () if step is None else stated_fields(_tokens(_run_of(step)))


def stated_fields(tokens: dict[str, Any]) -> tuple[str, ...]:
    """Names of the optional fields in the content of a tokens.json."""
    context = tokens.get("context")
    names = str(context.get("fields", "")) if isinstance(context, dict) else ""
    return tuple(name for name in OPTIONAL if name in [one.strip() for one in names.split(",")])


def _newest_step(path: Path) -> Path | None:
    if (path / "items").is_dir():
        return path
    # After a fit that continued with all data, the model of RUN/final is the newest.
    if is_export(path / "final" / "export"):
        path = path / "final"
    found = checkpoint.steps(path / "checkpoints") or checkpoint.steps(path)
    return found[-1] if found else None


def _run_of(step: Path) -> Path | None:
    """The run folder of a checkpoint: the folder above it that has run.json or config.yml."""
    for folder in list(step.resolve().parents)[:3]:
        if (folder / RUN).is_file() or (folder / "config.yml").is_file():
            return folder
    return None


def _settings(run: Path | None) -> dict[str, Any]:
    """MaxText's configuration of a run, if it was kept."""
    if run is None or not (run / "config.yml").is_file():
        return {}
    return read_yaml(run / "config.yml")


def _tokens(run: Path | None) -> dict[str, Any]:
    """The token schema of a run, as in tokens.json."""
    kept: dict[str, Any] = {}
    if run is not None and (run / RUN).is_file():
        kept = read_object(run / RUN)
    context = kept.get("context_options") or kept.get("context") or {}
    return token_schema(context)


def token_schema(context: Any = None) -> dict[str, Any]:
    """Content of tokens.json for these context options (a dataclass, a dict, or none for the defaults)."""
    options = (
        asdict(context) if is_dataclass(context) and not isinstance(context, type) else dict(context or {})
    )
    return {
        "format": tokens_format(stated_fields({"context": options})),
        "vocabulary_size": VOCABULARY_SIZE,
        "rtt_encoding": options.get("rtt_encoding", "compact"),
        "clip_limit_ms": options.get("clip_limit_ms"),
        "context": options,
    }
