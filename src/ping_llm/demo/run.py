"""The demo's steps in order. Each leaves whole files, so a second start goes on where the first stopped."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ping_llm.demo import data
from ping_llm.demo.options import DemoOptions
from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json


class Journal:
    """run/demo.json: with which options the demo was begun, and how long each step has taken so far."""

    def __init__(self, run: Path, options: DemoOptions):
        self._path = run / "demo.json"
        self._state: dict[str, Any] = {"options": options.as_dict(), "seconds": {}}
        if self._path.exists():
            saved = json.loads(self._path.read_text())
            if saved["options"] != options.as_dict():
                raise UsageError(f"{run} holds a demo with other options: remove it, or give another --out.")
            self._state = saved

    def time(self, step: str, work: Callable[[], Any]) -> Any:
        """Do the work and add its seconds, those of an interrupted earlier try included."""
        begun = time.monotonic()
        try:
            return work()
        finally:
            spent = self._state["seconds"]
            spent[step] = round(spent.get(step, 0.0) + time.monotonic() - begun, 1)
            write_json(self._path, self._state)

    @property
    def seconds(self) -> dict[str, float]:
        return self._state["seconds"]


def run_demo(run: Path, options: DemoOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Simulate, build rows, train, check on held-out data; return what summary.json holds."""
    summary_path = run / "summary.json"
    run.mkdir(parents=True, exist_ok=True)
    journal = Journal(run, options)
    if summary_path.exists():
        say(f"{summary_path} is there: the demo was finished before. Remove {run} to run it again.")
        return json.loads(summary_path.read_text())

    say("1/4 simulate an Internet")
    journal.time("simulate", lambda: data.make_world(run / "world", options))
    journal.time("split", lambda: data.split_by_time(run / "world", run / "split", options.holdout))
    say("2/4 group the measurements into probe rows")
    journal.time("rows", lambda: _build_rows(run))
    say("3/4 train the tiny model")
    journal.time("train", lambda: _train(run, options))
    say("4/4 ask about held-out measurements")
    summary = journal.time("check", lambda: _check(run, options))
    summary["seconds"] = round(sum(journal.seconds.values()), 1)
    summary["seconds_by_step"] = journal.seconds
    write_json(summary_path, summary)
    return summary


def _build_rows(run: Path) -> None:
    from ping_llm.rows.build import build

    build([run / "split" / "train.parquet"], run / "rows")


def _train(run: Path, options: DemoOptions) -> None:
    from ping_llm.train.run import train

    # A checkpoint a minute: what an interruption can cost.
    overrides = [f"steps={options.steps}", "checkpoint_period=60"]
    outcome = train("tiny", overrides, run=run, rows=run / "rows")
    if outcome.state == "stopped":
        raise PingError(
            f"training stopped after step {outcome.step} and is saved: make demo goes on from there."
        )


def _check(run: Path, options: DemoOptions) -> dict[str, Any]:
    from ping_llm.demo.check import check
    from ping_llm.simulate.world import World

    return check(run, World.load(run / "world"), run / "split", options)
