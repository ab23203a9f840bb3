"""Cost of our part of training: step time compared with MaxText alone, waiting for data, and the launch.

The step is also compared with its limit: the time that its FLOPs take as one large matrix product. Both
trainings are of the same model with the same batch; ours reads probe rows and records, MaxText's repeats
one synthetic batch. They take turns in one process, because the load of a busy machine changes within a run,
and the median of each is compared.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.progress import Progress

_WARM_UP = 5  # steps after which dispatching, caches and the allocator have settled


@dataclass(frozen=True)
class TrainBench:
    """Options of the benchmark.

    Attributes:
        config: the packaged config.
        steps: number of steps per turn.
        turns: number of turns per side.
        words: overrides, for both sides.
    """

    config: str = "tiny"
    steps: int = 40
    turns: int = 3
    words: tuple[str, ...] = ()


def measure(bench: TrainBench) -> dict[str, Any]:
    """Run the benchmark and return its figures; everything it writes is removed afterwards."""
    from ping_llm.train.estimate import plan
    from ping_llm.train.hardware import matrix_flops

    with (
        tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as name,
        Progress("bench train", 2 * bench.turns + 2, "trainings") as progress,
    ):
        folder = Path(name)
        rows = simulated_rows(folder)
        launches = []
        for attempt in range(2):
            launches.append(_launch(bench, rows, folder / f"launch{attempt}"))
            progress.advance()
        ours: list[float] = []
        theirs: list[float] = []
        peak = 0.0
        waited = total = 0.0
        for turn in range(bench.turns):
            seconds, wait = _our_steps(bench, rows, folder / f"ours{turn}")
            ours += seconds
            waited, total = waited + wait, total + sum(seconds)
            progress.advance()
            theirs += _their_steps(bench, folder / f"theirs{turn}")
            progress.advance()
            peak = max(peak, matrix_flops())  # of all turns: on a busy machine, one may be slow
    step, alone = statistics.median(ours), statistics.median(theirs)
    size = plan(bench.config, bench.words)
    return {
        "config": bench.config,
        "steps": len(ours),
        "step_ms": 1000 * step,
        "tokens_per_s": size["tokens_per_step"] / step,
        "gflop_per_step": size["flops_per_step"] / 1e9,
        "matrix_product_gflops": peak / 1e9,
        "fraction_of_matrix_product": size["flops_per_step"] / step / peak,
        "maxtext_step_ms": 1000 * alone,
        "step_time_ratio": step / alone,
        "data_wait_fraction": waited / total,
        "launch_to_first_step_s": launches[1]["total"],
        "launch": launches[1],
        "first_launch_to_first_step_s": launches[0]["total"],
    }


def simulated_rows(folder: Path) -> Path:
    """Build probe rows of 100,000 simulated measurements to train on."""
    from ping_llm.rows.build import RowOptions, build
    from ping_llm.simulate import WorldOptions, simulate

    simulate(folder / "measurements", WorldOptions(measurements=100_000, probes=2000, days=3))
    build([str(folder / "measurements")], folder / "rows", RowOptions())
    return folder / "rows"


def _launch(bench: TrainBench, rows: Path, run: Path) -> dict[str, float]:
    """Time the parts of a launch in a process of its own, from the command to the end of its first step."""
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()"]
    words = ["train", bench.config, "steps=1", *bench.words, "--rows", str(rows), "--run", str(run), "--json"]
    started = time.time()
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PingError(f"the launch failed: {done.stderr.strip().splitlines()[-1]}")
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    spent = json.loads(done.stdout)["launch"]
    total = first["time"] - started
    return {"total": total, "interpreter": total - sum(spent.values()), **spent}


def _our_steps(bench: TrainBench, rows: Path, run: Path) -> tuple[list[float], float]:
    from ping_llm.train import records
    from ping_llm.train.run import train

    train(bench.config, [*bench.words, *_measured(bench)], run=run, rows=rows)
    made = list(records.read(run / "metrics.jsonl"))[_WARM_UP:]
    return [record["seconds"] for record in made], sum(record["data_wait_s"] for record in made)


def _their_steps(bench: TrainBench, run: Path) -> list[float]:
    from ping_llm.train import settings
    from ping_llm.train.run import import_seam, quiet

    seam = import_seam()

    times: list[float] = []
    words = [*bench.words, *_measured(bench), "dataset_type=synthetic"]
    with quiet():
        config = seam.read_config(settings.find(bench.config), words, run)
        seam.run_untouched(config, lambda: times.append(time.perf_counter()))
    between = [later - earlier for earlier, later in itertools.pairwise(times)]
    return between[_WARM_UP:]


def _measured(bench: TrainBench) -> list[str]:
    """Return overrides for both sides: without checkpoints, since saving is not part of a step."""
    return [
        f"steps={bench.steps}",
        "checkpoint_period=1000000",
        "eval_interval=-1",
        "enable_checkpointing=false",
    ]
