"""What a training leaves to read: metrics.jsonl, and a live line on stderr.

metrics.jsonl has one JSON object a line: `kind` (train or eval), `step`, `loss` and the rest. Resumed at
step s, everything from s on is cut off first, so a step is never missing and never there twice.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ping_llm.files import whole_file


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a run; a last line cut short by a kill is left out."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Records:
    """Appends to metrics.jsonl from `step` on."""

    def __init__(self, path: Path, step: int):
        if path.exists():
            with whole_file(path) as aside, aside.open("w") as kept:
                for record in read(path):
                    if record["step"] < step:
                        kept.write(_line(record))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def append(self, record: dict[str, Any]) -> None:
        self._file.write(_line(record))
        self._file.flush()

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


class LiveLine:
    """Loss, tokens a second, share of the time spent waiting for data, and what is left.

    Rates are over the last steps, not the whole run: a resumed run has no past, and compiling is no rate.
    """

    WINDOW = 50

    def __init__(self, steps: int):
        self._steps = steps
        self._terminal = sys.stderr.isatty()
        self._interval = 0.2 if self._terminal else 10.0
        self._written = 0.0
        self._recent: deque[tuple[float, int, float, float]] = deque(maxlen=self.WINDOW)
        self._loss = self._bits = float("nan")
        self._eval = ""

    def train(self, step: int, loss: float, bits: float, tokens: float, waited: float) -> None:
        """`waited` is the feed's running total in seconds."""
        now = time.monotonic()
        self._recent.append((now, step, tokens, waited))
        self._loss, self._bits = loss, bits
        if now - self._written >= self._interval or step + 1 == self._steps:
            self._write(step, last=step + 1 == self._steps)
            self._written = now

    def eval(self, loss: float, bits: float) -> None:
        self._eval = f"eval {loss:.3f} ({bits:.1f} bits)"

    def text(self, step: int) -> str:
        parts = [f"step {step + 1:,} of {self._steps:,}", f"loss {self._loss:.3f} ({self._bits:.1f} bits)"]
        if self._eval:
            parts.append(self._eval)
        (since, first, _, waited_then), (now, last, _, waited) = self._recent[0], self._recent[-1]
        seconds = now - since
        if seconds > 0 and last > first:
            tokens = sum(entry[2] for entry in list(self._recent)[1:])
            left = (self._steps - 1 - last) * seconds / (last - first)
            parts += [
                f"{tokens / seconds:,.0f} tokens/s",
                f"data wait {100 * (waited - waited_then) / seconds:.1f} %",
                f"{_duration(left)} left",
            ]
        return " · ".join(parts)

    def _write(self, step: int, last: bool) -> None:
        line = self.text(step)
        if self._terminal:
            sys.stderr.write("\r\x1b[2K" + line + ("\n" if last else ""))
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
