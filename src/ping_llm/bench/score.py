"""`query score --out`: measurements per second by one process on one core, and by several at once.

Each process is a task of its own, bound to one core: it loads the model, scores a day that is not counted, so
that everything is compiled, and then its share of the days. The clock runs from there.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.measurements.parquet import read_measurements
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate


@dataclass(frozen=True)
class ScoreBench:
    """What to measure.

    Attributes:
      run: a run; `base` answers from the measurements themselves.
      data: measurements; None: a simulated world of `measurements`.
      processes: of the second turn.
    """

    run: str = "base"
    data: Path | None = None
    measurements: int = 4000
    processes: int = 2


def measure(bench: ScoreBench) -> dict[str, Any]:
    """Measurements per second by turn, and what a billion would take at the rate of one core."""
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as name:
        folder = Path(name)
        data = bench.data
        if data is None:
            data = folder / "world"
            probes = max(bench.measurements // 40, 10)
            simulate(data, WorldOptions(measurements=bench.measurements, probes=probes, targets=20, days=8))
        count = len(read_measurements(data))
        turns = {
            processes: _turn(bench.run, data, count, folder / f"turn-{processes}", processes)
            for processes in (1, bench.processes)
        }
    one = turns[1]["per_s"]
    return {
        "run": bench.run,
        "measurements": count,
        "one_core_per_s": one,
        f"{bench.processes}_processes_per_s": turns[bench.processes]["per_s"],
        "scaling": round(turns[bench.processes]["per_s"] / one, 2),
        "start_s": turns[1]["start_s"],
        "peak_rss_mb": max(turn["peak_rss_mb"] for turn in turns.values()),
        "core_hours_per_billion": round(1e9 / one / 3600, 1),
    }


def _turn(run: str, data: Path, count: int, out: Path, processes: int) -> dict[str, float]:
    """All tasks at once; the slowest counts."""
    cores = sorted(os.sched_getaffinity(0))
    if processes > len(cores):
        raise PingError(f"{processes} processes need as many cores, and there are {len(cores)}")
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "ping_llm.bench.score", run, data, out, str(cores[task]), str(task),
             str(processes)],
            stdout=subprocess.PIPE, text=True,
        )
        for task in range(processes)
    ]  # fmt: skip
    made = []
    for process in started:
        text, _ = process.communicate()
        if process.returncode:
            raise PingError("a process of the benchmark failed; see above")
        made.append(json.loads(text))
    return {
        "per_s": round(count / max(one["seconds"] for one in made), 2),
        "start_s": round(max(one["start_s"] for one in made), 1),
        "peak_rss_mb": max(one["peak_rss_mb"] for one in made),
    }


def _task(run: str, data: str, out: str, core: str, task: str, tasks: str) -> None:
    """One process: a line of JSON."""
    begin = time.perf_counter()
    os.sched_setaffinity(0, {int(core)})
    import resource

    from ping_llm.answer.bulk import score_days
    from ping_llm.answer.model import Model
    from ping_llm.model.packaged import base_folder

    model = Model.load(run, data=Path(data) if base_folder(run) is not None else True)
    warm = Path(data) / min(path.name for path in Path(data).glob("date=*"))
    score_days(model, Path(run), warm, Path(f"{out}-warm-{task}"))
    start = time.perf_counter()
    score_days(model, Path(run), Path(data), Path(out), "score", int(task), int(tasks))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"start_s": start - begin, "seconds": seconds, "peak_rss_mb": peak}))


if __name__ == "__main__":
    _task(*sys.argv[1:])
