"""The parts of an evaluation: one file per method and test, and a key with the data and the options."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ping_llm.answer import state
from ping_llm.answer.grid import GRID
from ping_llm.answer.methods.registry import make
from ping_llm.answer.model import Model
from ping_llm.answer.network import ALSO_UNNAMED, Asking
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate.inputs import EvaluateOptions, EvaluationData
from ping_llm.files import write_json
from ping_llm.model.packaged import ERRORS, RECIPE, RELATIONS, TUNED_RELATIONS, base_folder

#: Format version of the parts and of report.json.
FORMAT = 2

#: Options that change no part: which baselines and tests run, and how intervals are drawn.
_FREE_OPTIONS = (
    *("baselines", "replicates", "source_context", "destination_context", "context_sizes"),
    *("address_questions", "places"),
)


def claim(out: Path, data: EvaluationData, options: EvaluateOptions) -> None:
    """Write the key of the data and the options beside the parts; refuse parts with another key."""
    settings = plain(options)
    for free in _FREE_OPTIONS:
        settings.pop(free)
    key = {"format": FORMAT, "data": data.fingerprint, "options": settings}
    path = out / "parts" / "key.json"
    if path.exists():
        try:
            known = json.loads(path.read_bytes())
        except ValueError as error:
            raise PingError(
                f"{path} is damaged ({error}), so the data and options of the parts beside it are unknown: "
                f"remove {path.parent}, or name another --out"
            ) from error
        if known != json.loads(json.dumps(key)):
            raise UsageError(
                f"{out} holds the parts of an evaluation on other data or with other options: "
                "name another --out, or remove it"
            )
    else:
        write_json(path, key)


def plain(options: EvaluateOptions) -> dict:
    return json.loads(json.dumps(asdict(options)))


def folder_of(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def baseline_folder(name: str) -> str:
    revision = make(name).revision
    return folder_of(name) + (f"-{revision}" if revision > 1 else "")


def places_of(run: Path, load: Callable[[], Model]) -> dict[str, str]:
    """Return the folders of a run's parts by subject: "network", and "stack" if it has one."""
    if (folder := base_folder(run)) is not None:
        made = f"{_weights_digest(folder)}-{_recipe_digest(folder)}"
        return {"network": f"base-network-{made}", "stack": f"base-{made}"}
    weights = _weights_digest(run)
    places = {"network": f"network-{weights}-{_manner_digest()}"}
    if load().stack is not None:
        places["stack"] = f"stack-{weights}-{_stack_digest(load())}"
    return places


def _manner_digest() -> str:
    """Return a digest of the settings of prompts and of the RTT grid."""
    return hashlib.sha256(repr((Asking(), ALSO_UNNAMED, GRID.tobytes())).encode()).hexdigest()[:8]


def _stack_digest(model: Model) -> str:
    tree, _ = state.pack(model.stack)  # names every array by its content
    return hashlib.sha256((_manner_digest() + json.dumps(tree)).encode()).hexdigest()[:12]


def _recipe_digest(folder: Path) -> str:
    parts = [folder / name for name in (RECIPE, ERRORS, RELATIONS, TUNED_RELATIONS)]
    made = b"".join(part.read_bytes() for part in parts if part.is_file()) + GRID.tobytes()
    return hashlib.sha256(made).hexdigest()[:8]


def _weights_digest(run: Path) -> str:
    """Return a digest of the exported weights, or else of the newest checkpoint's name and time."""
    for candidate in (run / "model.safetensors", run / "export" / "model.safetensors"):
        if candidate.exists():
            with candidate.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    steps = sorted((run / "checkpoints").glob("*"), key=lambda p: p.stat().st_mtime) if run.exists() else []
    if not steps:
        raise UsageError(f"{run}: neither an export nor a run with checkpoints")
    return hashlib.sha256(f"{steps[-1]}{steps[-1].stat().st_mtime_ns}".encode()).hexdigest()[:12]
