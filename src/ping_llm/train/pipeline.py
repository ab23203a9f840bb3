"""A live view of a training's time: planning, reading and filling of batches, hand-over to devices, steps.

Planning, reading and filling run in parallel to the steps, in threads or processes, so their shares are of
the time of these. Hand-over and steps alternate in the thread of the training.
"""

import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from ping_llm.contexts.batches import Stages

#: Interval between two views, in seconds.
EVERY_S = 60.0

#: Share of time waiting for data below which the loader is fast enough.
_LITTLE = 0.05

#: Number of epochs above which more hardly help. Repeated text helps almost like new text for about 4 epochs,
#: and hardly at all after about 16 (Muennighoff et al., "Scaling data-constrained language models", 2023).
MANY_EPOCHS = 16


@dataclass(frozen=True)
class View:
    """Seconds of an interval, by stage.

    Attributes:
        seconds: length of the interval; steps: number of steps in it.
        plan, read, fill: work of the loader, over all of its lanes.
        lanes: number of threads or processes that read and fill.
        wait: time for which steps waited for a filled batch; hand_over: for its copy to the devices.
        step: all other time.
        queue: mean number of filled units (some hundred sequences each) that were ready.
        epoch: epoch of the data, from 1.
        bottleneck: stage that limits the speed.
    """

    seconds: float
    steps: int
    plan: float
    read: float
    fill: float
    lanes: int
    wait: float
    hand_over: float
    step: float
    queue: float
    epoch: int
    bottleneck: str

    def as_dict(self) -> dict[str, Any]:
        """The view as an object of metrics.jsonl."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def bottleneck(view: View) -> str:
    """The stage that limits the speed; a stage of the loader, which runs in parallel, only if steps wait."""
    if view.wait < _LITTLE * view.seconds:
        return "hand-over" if view.hand_over > view.step else "step"
    if view.plan > (view.read + view.fill) / view.lanes:
        return "plan"
    return "read" if view.read > view.fill else "fill"


def lines(view: dict[str, Any]) -> list[str]:
    """A view (from metrics.jsonl) as text: a head, and one line per stage."""
    seconds, lanes = max(view["seconds"], 1e-9), view["lanes"]
    head = (
        f"pipeline, last {view['seconds']:.0f} s: {view['steps']:,} steps, epoch {view['epoch']}, bottleneck "
        f"{view['bottleneck']}, waited {100 * view['wait'] / seconds:.1f} %, {view['queue']:.1f} units ready"
    )
    of_lanes = f"of {lanes} {'lane' if lanes == 1 else 'lanes'}"
    rows = [
        ("plan", view["plan"], seconds, "beside the steps"),
        ("read", view["read"], seconds * lanes, of_lanes),
        ("fill", view["fill"], seconds * lanes, of_lanes),
        ("hand-over", view["hand_over"], seconds, ""),
        ("step", view["step"], seconds, ""),
    ]
    return [head] + [
        f"  {name:<9} {spent:8.2f} s  {100 * spent / of:5.1f} %  {note}".rstrip()
        + ("  ← bottleneck" if name == view["bottleneck"] else "")
        for name, spent, of, note in rows
    ]


class Pipeline:
    """Makes a view of each interval of a feed."""

    def __init__(self, feed: Any, lanes: int, step: int):
        self._feed, self._lanes = feed, lanes
        self._begin(step)

    def _begin(self, step: int) -> None:
        self._since, self._step = time.monotonic(), step
        self._waited, self._handed = self._feed.waited, self._feed.handing
        self._stages: Stages = replace(self._feed.stages)

    def due(self) -> bool:
        return time.monotonic() - self._since >= EVERY_S

    def view(self, step: int) -> View:
        """The view of the time since the last one, up to this step."""
        now, then = self._feed.stages, self._stages
        seconds = time.monotonic() - self._since
        handed = self._feed.handing - self._handed
        waited = self._feed.waited - self._waited - handed
        view = View(
            seconds, step - self._step, now.plan - then.plan, now.read - then.read, now.fill - then.fill,
            self._lanes, waited, handed, max(seconds - waited - handed, 0.0),
            (now.ready - then.ready) / max(seconds, 1e-9), self._feed.state()["epoch"] + 1, "",
        )  # fmt: skip
        self._begin(step)
        return replace(view, bottleneck=bottleneck(view))


def say(text: str) -> None:
    """Write a whole line to stderr, in place of a status line if there is one."""
    with suppress(OSError):
        sys.stderr.write(("\r\x1b[2K" if sys.stderr.isatty() else "") + text + "\n")
        sys.stderr.flush()
