"""A run's folder: run.json, the state of the run, and training curves.

runs/NAME/run.json          metadata and state
          config.yml        every key that differs from MaxText's defaults; reproduces the training
          checkpoints/STEP  Orbax checkpoints; STEP is the last step in them, counted from 0
          checkpoints.json  their checksums
          schedule.json     schedule of a training with a time budget
          metrics.jsonl     one record per step and per evaluation
          tensorboard/      the same for TensorBoard
          export/           the final model, readable without MaxText or Orbax
"""

import itertools
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import PICTURES, whole_file, write_json
from ping_llm.pages import tidy_figure
from ping_llm.train import records

FORMAT = 1
RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


def read(run: Path) -> dict[str, Any]:
    """Content of run.json, or an empty dict if there is none yet."""
    path = run / "run.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PingError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise PingError(f"{path} must hold a JSON object")
    if content.get("format") != FORMAT:
        raise PingError(f"{path} has format {content.get('format')}; this version reads {FORMAT}")
    return content


def update(run: Path, **changes: Any) -> dict[str, Any]:
    """Change values of run.json, which is replaced as a whole, and return its content."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"format": FORMAT, "name": run.name, "created": now} | read(run) | {"updated": now} | changes
    write_json(run / "run.json", content)
    return content


def here() -> dict[str, Any]:
    """Host and id of this process, to distinguish a running training from a killed one later."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


_AVERAGED = 50  # largest window of a training curve's moving average, in steps; evaluations have none


@dataclass(frozen=True)
class Standing:
    """State and latest figures of a run.

    Attributes:
        state: running, killed (running in run.json, but its process has gone), stopped, finished, failed, or
            unreadable.
        step: number of steps made, of `steps`, which is 0 while a time budget has not decided it.
        bits: bits per measurement of the last step.
        problem: reason why the run cannot be read.
    """

    name: str
    state: str
    step: int
    steps: int
    loss: float | None
    bits: float | None
    eval_loss: float | None
    updated: str
    problem: str | None = None


def standings(base: Path) -> list[Standing]:
    """All runs below a folder, oldest first, including those that cannot be read."""
    found = [_standing_or_problem(path.parent) for path in sorted(base.glob("**/run.json"))]
    return sorted(found, key=lambda run: run.updated)


def _standing_or_problem(run: Path) -> Standing:
    try:
        return standing(run)
    except (PingError, OSError) as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{run / 'run.json'} or the metrics beside it are damaged ({type(error).__name__}: {error})"
    return Standing(str(run), "unreadable", 0, 0, None, None, None, "", problem)


def standing(run: Path) -> Standing:
    about = read(run)
    train = evaluation = None
    for record in records.read(run / "metrics.jsonl"):
        if record["kind"] == "train":
            train = record
        else:
            evaluation = record
    return Standing(
        name=str(run),
        state=_state(about),
        step=train["step"] + 1 if train else 0,
        steps=about.get("steps") or 0,
        loss=train["loss"] if train else None,
        bits=train["bits"].get("total") if train else None,
        eval_loss=evaluation["loss"] if evaluation else None,
        updated=str(about.get("updated", "")),
    )


def state_of(run: Path) -> str:
    """The state of `Standing`, without reading the records."""
    return _state(read(run))


def _state(about: dict[str, Any]) -> str:
    state = str(about.get("state", "unknown"))
    return "killed" if state == RUNNING and _gone(about.get("process", {})) else state


def _gone(process: dict[str, object]) -> bool:
    """Whether a process no longer exists; only processes of this host can be checked."""
    if process.get("host") != socket.gethostname() or "pid" not in process:
        return False
    try:
        os.kill(int(str(process["pid"])), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def curve(run: Path, key: str, kind: str) -> tuple[list[int], list[float]]:
    """Steps and values of `loss`, or of the bits of a field (`total`, `rtt`, …)."""
    steps, values = [], []
    for record in records.read(run / "metrics.jsonl"):
        if record["kind"] != kind:
            continue
        value = record["loss"] if key == "loss" else record["bits"].get(key)
        if value is None:
            raise UsageError(f"{run}: nothing is called {key!r}; there are loss, {', '.join(record['bits'])}")
        steps.append(record["step"])
        values.append(value)
    return steps, values


def plot(runs: Sequence[Path], out: Path, key: str = "loss") -> None:
    """Draw the curves of runs into one picture: training averaged, evaluations as dots."""
    if out.suffix.lower() not in PICTURES:
        raise UsageError(f"the name of {out} must end in {', '.join(PICTURES)}")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for index, run in enumerate(runs):
        steps, values = curve(run, key, "train")
        if not steps:
            raise PingError(f"{run} has no record of a step in {run / 'metrics.jsonl'}")
        colour = f"C{index}"
        axes.plot(steps, values, color=colour, alpha=0.15, linewidth=0.8)
        axes.plot(steps, _moving_average(values), color=colour, linewidth=1.8, label=str(run))
        steps, values = curve(run, key, "eval")
        if steps:
            axes.plot(steps, values, "o", color=colour, markersize=5, label=f"{run}, evaluation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)" if key == "loss" else f"{key} (bits per measurement)")
    axes.grid(alpha=0.3)
    axes.legend()
    tidy_figure(figure)
    with whole_file(out) as aside:
        figure.savefig(aside, dpi=120, format=out.suffix[1:].lower())
    plt.close(figure)


def _moving_average(values: list[float]) -> list[float]:
    """Average over the last fifth of the steps so far, so that the high first values affect few others."""
    sums = [0.0, *itertools.accumulate(values)]
    averages = []
    for end in range(1, len(sums)):
        window = max(1, min(_AVERAGED, end // 5))
        averages.append((sums[end] - sums[end - window]) / window)
    return averages
