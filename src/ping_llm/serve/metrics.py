"""Counters of a server, in the text format of Prometheus."""

import threading
import time
from collections import Counter
from collections.abc import Sequence

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUESTIONS = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts below fixed bounds, and the sum."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        place = next((at for at, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[place] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        comma = "," if labels else ""
        out, total = [], 0
        for bound, count in zip([*self._bounds, "+Inf"], self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}')
        shown = f"{{{labels}}}" if labels else ""
        return [*out, f"{name}_sum{shown} {self._sum:.6f}", f"{name}_count{shown} {total}"]


class Metrics:
    """What /metrics shows. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(_QUESTIONS)
        self._rejected: Counter[str] = Counter()
        self._loads: Counter[str] = Counter()
        self._loaded = time.time()
        self.in_progress = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            self._seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

    def batch(self, questions: int) -> None:
        with self._lock:
            self._batches.add(questions)

    def rejected(self, reason: str) -> None:
        with self._lock:
            self._rejected[reason] += 1

    def model_loaded(self, worked: bool) -> None:
        with self._lock:
            self._loads["loaded" if worked else "failed"] += 1
            if worked:
                self._loaded = time.time()

    def text(self, waiting: int) -> str:
        with self._lock:
            lines = _head("requests_total", "counter", "Requests by path and status.")
            for (path, status), count in sorted(self._requests.items()):
                lines.append(f'ping_llm_requests_total{{path="{path}",status="{status}"}} {count}')
            lines += _head("request_seconds", "histogram", "Time from a request to the end of its answer.")
            for path, histogram in sorted(self._seconds.items()):
                lines += histogram.lines("ping_llm_request_seconds", f'path="{path}"')
            lines += _head("requests_in_progress", "gauge", "Requests being answered.")
            lines.append(f"ping_llm_requests_in_progress {self.in_progress}")
            lines += _head("queue_questions", "gauge", "Questions waiting for the model.")
            lines.append(f"ping_llm_queue_questions {waiting}")
            lines += _head("batch_questions", "histogram", "Questions answered together.")
            lines += self._batches.lines("ping_llm_batch_questions")
            lines += _head("rejected_total", "counter", "Requests refused, by reason.")
            lines += [
                f'ping_llm_rejected_total{{reason="{reason}"}} {count}'
                for reason, count in sorted(self._rejected.items())
            ]
            lines += _head("model_loads_total", "counter", "Times the run was loaded, by result.")
            lines += [
                f'ping_llm_model_loads_total{{result="{result}"}} {count}'
                for result, count in sorted(self._loads.items())
            ]
            lines += _head("model_age_seconds", "gauge", "Time since the model was loaded.")
            lines.append(f"ping_llm_model_age_seconds {time.time() - self._loaded:.3f}")
        return "\n".join([*lines, ""])


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP ping_llm_{name} {about}", f"# TYPE ping_llm_{name} {kind}"]
