"""`query score --out`: measurements per second by one process on one core, and by several at once.

Each process is a task of its own, bound to one core: it loads the model, scores a day that is not counted, so
that everything is compiled, and then its share of the days, which is timed. On a machine that does other work
too, the figure to use is measurements per second of processor time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ping_llm.bench.memory import peak_rss_mib
from ping_llm.errors import PingError
from ping_llm.extras import need
from ping_llm.measurements.parquet import read_measurements
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate


@dataclass(frozen=True)
class ScoreBench:
    """Options of the benchmark.

    Attributes:
      run: a run; `base` answers from the measurements themselves.
      data: measurements; None: a simulated world with `measurements` of them.
      processes: number of processes of the second turn.
      spark: whether to score also with as many workers of Spark on this machine.
    """

    run: str = "base"
    data: Path | None = None
    measurements: int = 4000
    processes: int = 2
    spark: bool = False


def measure(bench: ScoreBench) -> dict[str, Any]:
    """Return measurements per second by turn, and core hours per billion at the rate of one core."""
    if bench.spark:
        need("spark")
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
        spark = _on_spark(bench, data, count, folder / "spark") if bench.spark else {}
    one, several = turns[1], turns[bench.processes]
    return {
        "run": bench.run,
        "measurements": count,
        "one_core_per_s": one["per_s"],
        "one_core_per_cpu_s": one["per_cpu_s"],
        f"{bench.processes}_processes_per_s": several["per_s"],
        f"{bench.processes}_processes_per_cpu_s": several["per_cpu_s"],
        "scaling": round(several["per_s"] / one["per_s"], 2),
        **spark,
        "start_s": one["start_s"],
        "peak_rss_mib": max(one["peak_rss_mib"], several["peak_rss_mib"]),
        "core_hours_per_billion": round(1e9 / one["per_cpu_s"] / 3600, 1),
    }


def _turn(run: str, data: Path, count: int, out: Path, processes: int) -> dict[str, float]:
    """Run all tasks at once; the slowest one determines the rate."""
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
        "per_cpu_s": round(count / sum(one["cpu_s"] for one in made), 2),
        "start_s": round(max(one["start_s"] for one in made), 1),
        "peak_rss_mib": max(one["peak_rss_mib"] for one in made),
    }


def _on_spark(bench: ScoreBench, data: Path, count: int, out: Path) -> dict[str, float]:
    """Time the whole command, with Spark's start, and loading and compiling the model in each worker."""
    words = ["query", "score", bench.run, data, "--out", out, "--engine", "spark"]
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()", *map(str, words)]
    begin = time.perf_counter()
    done = subprocess.run(
        [*program, "--spark-master", f"local[{bench.processes}]"], stdout=subprocess.DEVNULL
    )
    if done.returncode:
        raise PingError("the turn on Spark failed; see above")
    seconds = time.perf_counter() - begin
    return {"spark_s": round(seconds, 1), "spark_per_s": round(count / seconds, 2)}


def _task(run: str, data: str, out: str, core: str, task: str, tasks: str) -> None:
    """Score the share of one process, and print its figures as a line of JSON."""
    begin = time.perf_counter()
    os.sched_setaffinity(0, {int(core)})

    from ping_llm.answer import bulk
    from ping_llm.answer.bulk_scores import ScoreJob
    from ping_llm.model.packaged import base_folder

    known = Path(data) if base_folder(run) is not None else True
    job = ScoreJob(Path(run), known, Path(data))
    model = job.open()
    warm = Path(data) / min(path.name for path in Path(data).glob("date=*"))
    bulk.run(replace(job, path=warm), Path(f"{out}-warm-{task}"), model=model)
    start, cpu_start = time.perf_counter(), time.process_time()
    bulk.run(job, Path(out), job.step, int(task), int(tasks), model)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    figures = {"start_s": start - begin, "seconds": seconds, "cpu_s": cpu_seconds}
    figures["peak_rss_mib"] = peak_rss_mib()
    print(json.dumps(figures))


if __name__ == "__main__":
    _task(*sys.argv[1:])
