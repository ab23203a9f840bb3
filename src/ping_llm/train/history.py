"""Runs on disk: how each stands, and their curves side by side."""

import itertools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ping_llm.errors import PingError, UsageError
from ping_llm.train import folder, records

_AVERAGED = 50  # most steps in the moving average of a training curve; evaluations are drawn as they are


@dataclass(frozen=True)
class Standing:
    """How a run stands.

    Attributes:
        state: running, killed (it says running, but its process is gone), stopped, finished or failed.
        step: steps made, of `steps`.
        bits: bits a measurement, of the last step.
    """

    name: str
    state: str
    step: int
    steps: int
    loss: float | None
    bits: float | None
    eval_loss: float | None
    updated: str


def standings(base: Path) -> list[Standing]:
    """Every run below a folder, oldest first."""
    found = [standing(path.parent) for path in sorted(base.glob("**/run.json"))]
    return sorted(found, key=lambda run: run.updated)


def standing(run: Path) -> Standing:
    about = folder.read(run)
    train = evaluation = None
    for record in records.read(run / "metrics.jsonl"):
        if record["kind"] == "train":
            train = record
        else:
            evaluation = record
    state = about.get("state", "unknown")
    if state == folder.RUNNING and _gone(about.get("process", {})):
        state = "killed"
    return Standing(
        name=str(run),
        state=state,
        step=train["step"] + 1 if train else 0,
        steps=about.get("steps", 0),
        loss=train["loss"] if train else None,
        bits=train["bits"].get("total") if train else None,
        eval_loss=evaluation["loss"] if evaluation else None,
        updated=about.get("updated", ""),
    )


def _gone(process: dict[str, object]) -> bool:
    """Only this host's processes can be seen."""
    if process.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(str(process["pid"])), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def curve(run: Path, key: str, kind: str) -> tuple[list[int], list[float]]:
    """Steps and values of `loss`, or of a field's bits (`total`, `rtt`, …)."""
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
    """Draw the curves of runs into one PNG: training averaged, evaluations as dots."""
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
    axes.set_ylabel("loss (nats a token)" if key == "loss" else f"{key} (bits a measurement)")
    axes.grid(alpha=0.3)
    axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _moving_average(values: list[float]) -> list[float]:
    """Over the last fifth of the steps so far, lest the steep beginning lift all that follows."""
    sums = [0.0, *itertools.accumulate(values)]
    averages = []
    for end in range(1, len(sums)):
        window = max(1, min(_AVERAGED, end // 5))
        averages.append((sums[end] - sums[end - window]) / window)
    return averages
