"""Progress on stderr: one rewritten line on a terminal, a line every ten seconds elsewhere."""

import contextlib
import sys
import time
from typing import Self


class StatusLine:
    """One line of status on stderr. On a terminal each line replaces the one before it, until the last."""

    def __init__(self, started: float = 0.0):
        """Make the first line due one interval after `started`."""
        self.is_terminal = sys.stderr.isatty()
        self._interval = 0.1 if self.is_terminal else 10.0
        self._written = started

    def due(self, now: float) -> bool:
        """Whether the last line is old enough to be replaced; `now` is by time.monotonic."""
        return now - self._written >= self._interval

    def write(self, line: str, now: float, last: bool = False) -> None:
        # stderr may be closed, or a file on a full disk: the work continues without a status line.
        with contextlib.suppress(OSError):
            sys.stderr.write("\r\x1b[2K" + line + ("\n" if last else "") if self.is_terminal else line + "\n")
            sys.stderr.flush()
        self._written = now


class Progress:
    """Count towards a total and report the count on stderr.

    Use as a context manager and call `advance` in the loop. A line is written at most ten times per second
    on a terminal and every ten seconds elsewhere, so calling `advance` often is cheap.
    """

    def __init__(self, label: str, total: int | None = None, unit: str = ""):
        self._label, self._total, self._unit = label, total, unit
        self._started = time.monotonic()
        self._line = StatusLine(self._started)
        self._done = 0
        self._note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._write(last=True)

    def advance(self, count: int = 1, note: str = "") -> None:
        self._done += count
        self._note = note
        if self._line.due(time.monotonic()):
            self._write()

    def _write(self, last: bool = False) -> None:
        now = time.monotonic()
        seconds = max(now - self._started, 1e-9)
        rate = self._done / seconds
        parts = [f"{self._label}: {self._done:,}"]
        if self._total is not None:
            parts[0] += f" of {self._total:,}"
        parts[0] += f" {self._unit}".rstrip()
        if self._total:
            parts.append(f"{100 * self._done / self._total:.0f} %")
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
        if last:
            parts.append(f"{seconds:.1f} s")
        elif self._total and self._done:
            parts.append(f"{(self._total - self._done) / rate:.0f} s left")
        if self._note:
            parts.append(self._note)
        self._line.write(" · ".join(parts), now, last)
