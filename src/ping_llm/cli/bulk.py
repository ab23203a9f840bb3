"""Options of `query … --out`: answers to a whole file, on one machine or on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from ping_llm.errors import UsageError

if TYPE_CHECKING:
    from ping_llm.answer.bulk import Job

STEP = typer.Option(
    None, "--step", help="With --out, on clusters: the share of a task (score, or answer), then finish."
)
TASK = typer.Option(0, "--task", help="Task of the first step to run, from 0.")
TASKS = typer.Option(1, "--tasks", help="Number of tasks that share the first step.")
ENGINE = typer.Option(
    "local", "--engine", help="With --out, where the parts are made: local, or spark; the same bytes."
)
SPARK_MASTER = typer.Option(None, "--spark-master", help="Spark master, such as yarn.")

Engine = Literal["local", "spark"]


def check(out: Path | None, step: str | None, tasks: int, engine: Engine) -> None:
    """Refuse options that exclude each other, before anything is loaded."""
    if out is None and (step is not None or tasks != 1):
        raise UsageError("--step, --task and --tasks need --out")
    if engine == "spark" and (out is None or step is not None):
        raise UsageError("--engine spark needs --out, and excludes --step: Spark runs all tasks itself")


def run(
    job: "Job", model: Any, out: Path, step: str | None, task: int, tasks: int, engine: Engine,
    spark_master: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the job and print its summary."""
    from ping_llm.answer import bulk
    from ping_llm.tables import print_json, table

    if engine == "spark":
        summary: dict[str, Any] | None = bulk.run_on_spark(job, out, spark_master)
    else:
        summary = bulk.run(job, out, step, task, tasks, model)
    if summary is not None:
        empty = {"days": 0, "observed": 0, "mean_bits": None}  # of questions without times or RTTs
        rows = [
            (name.replace("_", " "), value)
            for name, value in summary.items()
            if name not in empty or value != empty[name]
        ]
        print_json(summary) if as_json else print(table([*rows, ("answers", out)]))
