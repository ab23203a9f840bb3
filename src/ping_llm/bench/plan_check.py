"""Memory and FLOPs of a config by `train --plan`, compared with real steps, which also show its losses.

Weights, gradients and the optimizer's state do not depend on the batch, so one short sequence per step is
enough to check a config for GPUs on a CPU. Each config is measured in processes of its own, because the peak
memory of a process never falls. XLA counts the body of a loop once, whatever its iterations: FLOPs are those
of the same step with its layers unrolled (scan_layers=false), which is lowered and not compiled.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.bench.memory import peak_rss_mib
from ping_llm.bench.train import simulated_rows
from ping_llm.errors import PingError
from ping_llm.progress import Progress

_MIB = 1 << 20
#: Figures of a plan on memory that is held between the steps, and during a step.
STATE = ("weights_mib", "optimizer_mib")
TEMPORARIES = ("gradients_mib", "scan_copy_mib", "activations_mib_per_device")
_COMPARED = ("state_mib", "temporaries_mib", "process_mib", "flops_per_step")


@dataclass(frozen=True)
class PlanCheck:
    """Options of the benchmark.

    Attributes:
        configs: packaged configs.
        steps: number of steps per config.
        length: tokens per sequence; one sequence per step.
        words: further overrides.
    """

    configs: tuple[str, ...]
    steps: int = 3
    length: int = 256
    words: tuple[str, ...] = ()

    def overrides(self) -> list[str]:
        return [
            "network_batch_size=1",
            f"max_target_length={self.length}",
            # Training in bfloat16 is for GPUs: CPUs compute it with copies in float32.
            "dtype=float32",
            f"steps={self.steps}",
            "eval_interval=-1",
            "enable_checkpointing=false",
            "enable_tensorboard=false",
            "network_samples=0",
            *self.words,
        ]


def measure(check: PlanCheck, rows: Path | None = None) -> list[dict[str, Any]]:
    """Return the figures of each config; everything that is written is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as name,
        Progress("bench plan-check", len(check.configs), "configs") as progress,
    ):
        folder = Path(name)
        rows = rows or simulated_rows(folder)
        found = []
        for config in check.configs:
            found.append(_compared(config, check, rows, folder / config))
            progress.advance()
    return found


def _compared(config: str, check: PlanCheck, rows: Path, folder: Path) -> dict[str, Any]:
    # An empty cache: a program that was compiled before cannot report its memory.
    words = [*check.overrides(), f"jax_cache_dir={folder / 'cache'}"]
    # The steps first, so that the real training reports an error in the config.
    steps = _in_a_process("steps", config, words, rows, folder / "steps")
    flops = _in_a_process("flops", config, [*words, "scan_layers=false"], rows, folder / "flops")
    plan = steps["plan"]
    return {
        "config": config,
        "parameters": plan["parameters"],
        "losses": steps["losses"],
        "seconds_per_step": steps["seconds"],
        "state_mib": {
            "planned": sum(plan[name] for name in STATE),
            "measured": steps["arguments"] / _MIB,
        },
        "temporaries_mib": {
            "planned": sum(plan[name] for name in TEMPORARIES),
            "measured": steps["temporaries"] / _MIB,
        },
        "process_mib": {
            "planned": sum(plan[name] for name in (*STATE, *TEMPORARIES)) + steps["before_mib"],
            "measured": steps["peak_mib"],
        },
        "flops_per_step": {"planned": plan["flops_per_step"], "measured": flops["flops"]},
    }


def lines(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return a table of the figures, its header first."""
    out = [["config", "parameters", *(name.replace("_", " ") for name in _COMPARED), "s per step", "loss"]]
    for one in found:
        both = [f"{one[name]['planned']:,.4g} / {one[name]['measured']:,.4g}" for name in _COMPARED]
        seconds, losses = (
            ", ".join(f"{value:.2f}" for value in one[name]) for name in ("seconds_per_step", "losses")
        )
        out.append([one["config"], f"{one['parameters']:,}", *both, seconds, losses])
    return out


def _in_a_process(part: str, config: str, words: list[str], rows: Path, run: Path) -> dict[str, Any]:
    program = "import sys; from ping_llm.bench import plan_check; plan_check.child(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, part, config, json.dumps(words), str(rows), str(run)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PingError(f"the steps of {config} failed: {last}")
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def child(part: str, config: str, words: str, rows: str, run: str) -> None:
    """Print the figures of one config as JSON: those of its steps, or the FLOPs of one step."""
    overrides = json.loads(words)
    made = (of_steps if part == "steps" else of_flops)(config, overrides, Path(rows), Path(run))
    print(json.dumps(made))


def of_steps(config: str, words: list[str], rows: Path, run: Path) -> dict[str, Any]:
    """Return the plan, and the figures of the steps, of the compiled step and of the process's memory."""
    from ping_llm.train import records
    from ping_llm.train.estimate import plan
    from ping_llm.train.run import train

    made: dict[str, Any] = {"plan": plan(config, words), "before_mib": peak_rss_mib()}

    def look(lowered: Any, compiled: Callable[[], Any]) -> Any:
        program = compiled()
        memory = program.memory_analysis()
        made["arguments"], made["temporaries"] = memory.argument_size_in_bytes, memory.temp_size_in_bytes
        return program

    with _watch_compiling(look):
        train(config, words, run=run, rows=rows, allow_cpu=True)
    steps = list(records.read(run / "metrics.jsonl"))
    made |= {"losses": [one["loss"] for one in steps], "seconds": [one["seconds"] for one in steps]}
    return made | {"peak_mib": peak_rss_mib()}


class _EnoughError(Exception):
    """Stops the training when its step is lowered."""


def of_flops(config: str, words: list[str], rows: Path, run: Path) -> dict[str, Any]:
    """Return the FLOPs of one step, counted by XLA."""
    from ping_llm.train.run import train

    found: list[float] = []

    def look(lowered: Any, compiled: Callable[[], Any]) -> Any:
        found.append(float(lowered.cost_analysis()["flops"]))
        raise _EnoughError

    try:
        with _watch_compiling(look):
            train(config, words, run=run, rows=rows, allow_cpu=True)
    except PingError as error:
        if not isinstance(error.__cause__, _EnoughError):
            raise
    return {"flops": found[0]}


@contextlib.contextmanager
def _watch_compiling(look: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Call `look` whenever something is compiled ahead of time, as MaxText compiles its step."""
    import jax

    original = jax.stages.Lowered.compile

    def compile(lowered: Any, *arguments: Any, **options: Any) -> Any:
        return look(lowered, lambda: original(lowered, *arguments, **options))

    jax.stages.Lowered.compile = compile  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        jax.stages.Lowered.compile = original  # type: ignore[method-assign]
