"""Counters of a server, in the text format of Prometheus.

Several workers write their counters to files in a shared folder, twice per second; the worker that answers a
request adds those of the others to its own. A worker that replaces one that ended continues its counters.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUESTIONS = (1, 2, 4, 8, 16, 32, 64, 128)


#: Seconds between two writes of a worker's counters.
_PUBLISH = 0.5


class Histogram:
    """Counts of values up to fixed bounds, and the sum of the values."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        place = next((at for at, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[place] += 1
        self._sum += value

    @property
    def state(self) -> dict[str, Any]:
        return {"counts": self._counts, "sum": self._sum}

    def add_state(self, state: dict[str, Any]) -> None:
        self._counts = [own + other for own, other in zip(self._counts, state["counts"], strict=True)]
        self._sum += state["sum"]

    def lines(self, name: str, labels: str = "") -> list[str]:
        comma = "," if labels else ""
        out, total = [], 0
        for bound, count in zip([*self._bounds, "+Inf"], self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}')
        shown = f"{{{labels}}}" if labels else ""
        return [*out, f"{name}_sum{shown} {self._sum:.6f}", f"{name}_count{shown} {total}"]


class Counts:
    """Counters, which are added up over workers."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.batches = Histogram(_QUESTIONS)
        self.rejected: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()

    @property
    def state(self) -> dict[str, Any]:
        return {
            "requests": [[path, status, count] for (path, status), count in self.requests.items()],
            "seconds": {path: histogram.state for path, histogram in self.seconds.items()},
            "batches": self.batches.state,
            "rejected": dict(self.rejected),
            "loads": dict(self.loads),
        }

    def add_state(self, state: dict[str, Any]) -> None:
        for path, status, count in state["requests"]:
            self.requests[path, status] += count
        for path, histogram in state["seconds"].items():
            self.seconds.setdefault(path, Histogram(_SECONDS)).add_state(histogram)
        self.batches.add_state(state["batches"])
        self.rejected.update(state["rejected"])
        self.loads.update(state["loads"])


class Metrics:
    """The metrics shown at /metrics. Safe to use from several threads.

    Args:
      shared: folder shared by the workers of a server; None: there is one process.
      slot: number of this worker.
    """

    def __init__(self, shared: Path | None = None, slot: int = 0) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._loaded = time.time()
        self._shared, self._file = shared, f"{slot}.json"
        self.in_progress = 0
        if shared is not None and (before := _read(shared / self._file)) is not None:
            self._counts.add_state(before["counts"])

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._counts.requests[path, status] += 1
            self._counts.seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

    def batch(self, questions: int) -> None:
        with self._lock:
            self._counts.batches.add(questions)

    def rejected(self, reason: str) -> None:
        with self._lock:
            self._counts.rejected[reason] += 1

    def model_loaded(self, worked: bool) -> None:
        with self._lock:
            self._counts.loads["loaded" if worked else "failed"] += 1
            if worked:
                self._loaded = time.time()

    def _state(self, waiting: int) -> dict[str, Any]:
        with self._lock:
            gauges = {"in_progress": self.in_progress, "waiting": waiting, "loaded": self._loaded}
            return {"counts": self._counts.state, **gauges}

    def publish(self, waiting: int) -> None:
        """Write the counters of this worker for the others; errors of the disk are ignored."""
        if self._shared is not None:
            aside = self._shared / f".{self._file}"
            with contextlib.suppress(OSError):
                aside.write_text(json.dumps(self._state(waiting)))
                aside.replace(self._shared / self._file)

    async def keep_published(self, waiting: Callable[[], int]) -> None:
        while True:
            self.publish(waiting())
            await asyncio.sleep(_PUBLISH)

    def text(self, waiting: int) -> str:
        """Return the metrics of all workers together."""
        states = [self._state(waiting)]
        if self._shared is not None:
            others = (path for path in sorted(self._shared.glob("[0-9]*.json")) if path.name != self._file)
            states += [state for state in map(_read, others) if state is not None]
        counts = Counts()
        for state in states:
            counts.add_state(state["counts"])
        lines = _head("requests_total", "counter", "Requests by path and status.")
        for (path, status), count in sorted(counts.requests.items()):
            lines.append(f'ping_llm_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += _head("request_seconds", "histogram", "Time from a request to the end of its answer.")
        for path, histogram in sorted(counts.seconds.items()):
            lines += histogram.lines("ping_llm_request_seconds", f'path="{path}"')
        lines += _head("requests_in_progress", "gauge", "Requests being answered.")
        lines.append(f"ping_llm_requests_in_progress {sum(state['in_progress'] for state in states)}")
        lines += _head("queue_questions", "gauge", "Questions waiting for the model.")
        lines.append(f"ping_llm_queue_questions {sum(state['waiting'] for state in states)}")
        lines += _head("batch_questions", "histogram", "Questions answered together.")
        lines += counts.batches.lines("ping_llm_batch_questions")
        lines += _head("rejected_total", "counter", "Requests refused, by reason.")
        lines += [
            f'ping_llm_rejected_total{{reason="{reason}"}} {count}'
            for reason, count in sorted(counts.rejected.items())
        ]
        lines += _head("model_loads_total", "counter", "Times the run was loaded, by result.")
        lines += [
            f'ping_llm_model_loads_total{{result="{result}"}} {count}'
            for result, count in sorted(counts.loads.items())
        ]
        lines += _head("model_age_seconds", "gauge", "Time since the model was loaded, the oldest worker's.")
        oldest = min(state["loaded"] for state in states)
        lines.append(f"ping_llm_model_age_seconds {time.time() - oldest:.3f}")
        return "\n".join([*lines, ""])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return state


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP ping_llm_{name} {about}", f"# TYPE ping_llm_{name} {kind}"]
