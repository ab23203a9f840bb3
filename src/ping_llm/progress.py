"""Progress on stderr: one rewritten line on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from typing import Self


class Progress:
    """Counts towards a total and says so.

    Use as a context manager; `advance` from the loop. Writing happens at most ten times a second on a
    terminal and every ten seconds otherwise, so it costs nothing to call it often.
    """

    def __init__(self, label: str, total: int | None = None, unit: str = ""):
        self._label, self._total, self._unit = label, total, unit
        self._terminal = sys.stderr.isatty()
        self._interval = 0.1 if self._terminal else 10.0
        self._started = self._written = time.monotonic()
        self._done = 0
        self._note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._write(last=True)

    def advance(self, count: int = 1, note: str = "") -> None:
        self._done += count
        self._note = note
        if time.monotonic() - self._written >= self._interval:
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
        line = " · ".join(parts)
        if self._terminal:
            sys.stderr.write("\r\x1b[2K" + line + ("\n" if last else ""))
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
        self._written = now
