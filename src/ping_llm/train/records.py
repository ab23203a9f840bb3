"""Records of a training in metrics.jsonl, and its status line on stderr.

metrics.jsonl has one JSON object per line: `kind` (train or eval), `step`, `loss` and other figures. A run
that resumes at step s first removes all records from s on, so each step is recorded exactly once.
"""

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.files import whole_file
from ping_llm.progress import StatusLine


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a run, without an incomplete last line after a kill.

    Raises:
        PingError: a line is not a record; the message has its number.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                try:
                    record = json.loads(line)
                    record["kind"], record["step"], record["loss"]
                except (ValueError, TypeError, KeyError) as error:
                    raise PingError(
                        f"{path}: line {number} is damaged ({error}); remove that line"
                    ) from error
                yield record


class Records:
    """Appends to metrics.jsonl from `step` on."""

    def __init__(self, path: Path, step: int):
        if path.exists():
            with whole_file(path) as aside, aside.open("w", encoding="utf-8") as kept:
                for record in read(path):
                    if record["step"] < step:
                        kept.write(line(record))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: dict[str, Any]) -> None:
        self._file.write(line(record))
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def line(record: dict[str, Any]) -> str:
    """A record as a line of metrics.jsonl."""
    return json.dumps(record, allow_nan=False) + "\n"


class TrainingLine:
    """Status line of a training: loss, tokens per second and device, MFU, share of data wait, time left.

    Rates are over the last WINDOW steps: a resumed run has no earlier ones, and compiling is not counted.

    Args:
        steps: number of all steps.
        ends_at: end of the time budget by time.monotonic, if the budget determines the number of steps.
        devices: number of devices.
    """

    WINDOW = 50

    def __init__(self, steps: int, ends_at: float | None = None, devices: int = 1):
        self._steps, self._ends_at, self._devices = steps, ends_at, devices
        self._mfu: deque[float] = deque(maxlen=self.WINDOW)
        self._line = StatusLine()
        self._recent: deque[tuple[float, int, float, float]] = deque(maxlen=self.WINDOW)
        self._loss = self._bits = float("nan")
        self._eval = ""

    def train(
        self, step: int, loss: float, bits: float, tokens: float, waited: float, mfu: float | None = None
    ) -> None:
        """Show a training step; `waited` is the feed's total in seconds."""
        now = time.monotonic()
        if mfu is not None and self._recent:  # the first step is mostly compiling
            self._mfu.append(mfu)
        self._recent.append((now, step, tokens, waited))
        self._loss, self._bits = loss, bits
        last = step + 1 == self._steps
        if last or self._line.due(now):
            self._line.write(self.text(step), now, last)

    def eval(self, loss: float, bits: float) -> None:
        self._eval = f"eval {loss:.3f} ({bits:.1f} bits)"

    def text(self, step: int) -> str:
        of = "" if self._ends_at else f" of {self._steps:,}"
        parts = [f"step {step + 1:,}{of}", f"loss {self._loss:.3f} ({self._bits:.1f} bits)"]
        if self._eval:
            parts.append(self._eval)
        (since, first, _, waited_then), (now, last, _, waited) = self._recent[0], self._recent[-1]
        seconds = now - since
        if seconds > 0 and last > first:
            tokens = sum(entry[2] for entry in list(self._recent)[1:])
            left = (self._steps - 1 - last) * seconds / (last - first)
            if self._ends_at:
                left = max(self._ends_at - now, 0.0)
            each = " per device" if self._devices > 1 else ""
            parts.append(f"{tokens / seconds / self._devices:,.0f} tokens/s{each}")
            if self._mfu:  # FLOPs are the same in each step, so the mean is harmonic
                parts.append(f"MFU {100 * len(self._mfu) / sum(1 / mfu for mfu in self._mfu):.0f} %")
            parts += [
                f"data wait {100 * (waited - waited_then) / seconds:.1f} %",
                f"{_duration(left)} left",
            ]
        return " · ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
