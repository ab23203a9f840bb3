"""`ping-llm fit`: all steps from input to run. Every step leaves complete files, so a second start resumes.

RUN/fit.json        the request, and the seconds of each step
    measurements/   the ingested input, if it was not a folder of measurements already
    rows/           all measurements by source, which questions look back on
    train-rows/     the measurements that the network is trained on
    checkpoints/ …  the training, as `ping-llm train` leaves it; without training, recipe.json and an export
    stack/          everything else that an answer needs
    report/         report.html, report.json and pictures
    final/          with --final: the further training with all data
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ping_llm.answer.methods.registry import full_name, usable
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate.inputs import EvaluateOptions, evaluation_data
from ping_llm.extras import need_for_fit
from ping_llm.files import whole_file, write_json
from ping_llm.fit.held_out import held_out
from ping_llm.fit.options import FEWEST, FINAL_SHARE, FitOptions
from ping_llm.fit.tune import keep_methods, tune
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model.packaged import NAME, base_folder
from ping_llm.splits.holdout import Splits, fitting, is_timeless, split
from ping_llm.tables import counted

FORMAT = 1

#: Value of `start` for random weights.
RANDOM = Path("none")


class Journal:
    """RUN/fit.json: inputs and options of a fit, its finished steps, and the seconds of each step so far."""

    def __init__(self, run: Path, inputs: Sequence[str], options: FitOptions, start: Path | None):
        self._path = run / "fit.json"
        asked = {
            "inputs": [str(Path(name).resolve()) for name in inputs],
            "options": json.loads(json.dumps(options.as_dict())),
            "from": None if start is None else str((base_folder(start) or start).resolve()),
        }
        self._state: dict[str, Any] = {"format": FORMAT, **asked, "seconds": {}, "done": []}
        if self._path.exists():
            try:
                saved = json.loads(self._path.read_text())
                saved["seconds"], saved["done"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise PingError(
                    f"{self._path} is damaged ({error}), so this fit cannot be resumed: give another --run"
                ) from error
            differing = [key for key in asked if saved.get(key) != asked[key]]
            if differing:
                raise UsageError(
                    f"{run} holds a fit with other {' and '.join(differing)}: give another --run"
                )
            self._state = saved
        elif run.exists() and any(entry.name != LOCK_FILE for entry in run.iterdir()):
            raise UsageError(f"{run} is not empty and holds no fit: give another --run")

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def begin(self) -> None:
        write_json(self._path, self._state)

    def do(self, step: str, work: Callable[[], None]) -> None:
        """Do a step unless it is finished; its seconds include those of interrupted attempts."""
        if step in self._state["done"]:
            return
        begun = time.monotonic()
        try:
            work()
            self._state["done"].append(step)
        finally:
            spent = self._state["seconds"]
            spent[step] = round(spent.get(step, 0.0) + time.monotonic() - begun, 1)
            write_json(self._path, self._state)

    @property
    def seconds(self) -> dict[str, float]:
        return self._state["seconds"]


def fit(
    inputs: Sequence[str],
    run: Path,
    options: FitOptions,
    say: Callable[[str], None] = lambda text: None,
    *,
    start: Path | None = None,
    world: Path | None = None,
) -> dict[str, Any]:
    """Make a run from files; returns the report with "seconds" and "examples".

    Args:
      inputs: Atlas results, tables, or folders of measurements.
      say: callback that gets a message at the start of each step.
      start: a run or an export whose weights training starts from, `base`, or `none` for random weights.
        None: chosen by `first_weights`.
      world: folder of the simulation, for simulated data: the report then includes the true distributions.
    """
    check_options(options, start, world)
    if _measurements_folder(inputs) is None:
        from ping_llm.ingest.options import find_files

        find_files([str(name) for name in inputs], run)
    Journal(run, inputs, options, start)  # refuses other inputs or options before anything is written
    with only_writer(run, "fit", with_parts=True):
        return _fit(inputs, run, options, say, start, world)


def check_options(options: FitOptions, start: Path | None = None, world: Path | None = None) -> None:
    """Refuse options that cannot work.

    Raises:
      UsageError: the message names the option and the reason.
    """
    from ping_llm.ingest.options import IngestOptions
    from ping_llm.simulate.world import World

    if options.minutes < 0:
        raise UsageError(f"--minutes must be at least 0, not {options.minutes:g}")
    if options.queries < 0:
        raise UsageError(f"--queries must be at least 0, not {options.queries}")
    if options.minutes == 0:
        _check_tuning(options, start)
    need_for_fit(options.minutes)
    IngestOptions(traceroutes=options.traceroutes)
    if options.config is not None:
        from ping_llm.train import settings

        settings.find(options.config)
    for name in options.baselines:
        full_name(name)
    if start not in (None, RANDOM) and options.minutes > 0:
        from ping_llm.train.first_weights import FirstWeights

        FirstWeights.find(start, start)
    if world is not None:
        World.load(world)


def _check_tuning(options: FitOptions, start: Path | None) -> None:
    """Refuse options that need training."""
    if base_folder(start or NAME) is None:
        raise UsageError(
            f"--minutes 0 can only tune the packaged model, not {start}: give more minutes, or --from base"
        )
    for name, given in (("--final", options.final), ("--config", options.config is not None)):
        if given:
            raise UsageError(
                f"{name} is for training, and --minutes 0 trains no transformer: leave out one of them"
            )


def _fit(
    inputs: Sequence[str],
    run: Path,
    options: FitOptions,
    say: Callable[[str], None],
    start: Path | None,
    world: Path | None,
) -> dict[str, Any]:
    journal = Journal(run, inputs, options, start)
    resumed = journal.exists
    try:
        measurements = _measurements_folder(inputs)
        if measurements is None:
            journal.begin()
            say("1/5 ingest")
            measurements = run / "measurements"
            journal.do("ingest", lambda: _ingest(inputs, run / "measurements", options))
        else:
            say("1/5 the input is a table of measurements")
        # A user's config may train on optional fields.
        data = read_measurements(measurements, every_column=options.config is not None)
        data = replace(data, kind=None)
        check_amount(data)
        splits = split(data, fitting(options.splits, data))
        network_train, _ = held_out(splits.train, options.held_out, options.stack_questions)
    except PingError:
        if not resumed:  # refused: leave no files
            for left in (entry for entry in run.iterdir() if entry.name != LOCK_FILE):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        raise
    journal.begin()
    tuned = base_folder(start or NAME) if options.minutes == 0 else None
    say(
        f"2/5 build rows: {len(data):,} measurements, {len(splits.train):,} to learn from"
        + ("" if tuned else f", {len(network_train):,} of them for the network")
        + (", not split by time: too few different times or repeated pairs" if is_timeless(data) else "")
    )
    journal.do("rows", lambda: _build_rows(run, measurements, None if tuned else network_train))
    config, overrides = choose_config(options, len(network_train))
    minutes = options.minutes * (1 - FINAL_SHARE if options.final else 1)
    if tuned:
        say("3/5 no transformer is trained: step 4 tunes the packaged model")
    else:
        weights = first_weights(start, options, config)
        say(f"3/5 train {config} for {minutes:g} minutes" + (f", from {weights}" if weights else ""))
        journal.do("train", lambda: _train(run, run / "train-rows", config, overrides, minutes, weights))
    say("4/5 fit the simple methods, and decide on held-out questions how far to trust each")
    journal.do("stack", lambda: _stack(run, splits.train, options, tuned))
    say("5/5 evaluate against every method")
    journal.do("report", lambda: _evaluate(run, splits, options, world))
    if tuned:
        journal.do("methods", lambda: keep_methods(run, run / "rows"))
    if options.final:
        say(f"and go on with all the data for {options.minutes * FINAL_SHARE:g} minutes")
        journal.do("final", lambda: _final(run, data, config, overrides, options))
    return json.loads((run / "report" / "report.json").read_text()) | {
        "seconds": journal.seconds,
        "final": options.final,
        "examples": examples(splits, tuned is not None),
    }


def check_amount(data: Columns) -> None:
    """Refuse data that are too few to fit, with an error that says what is missing."""
    sources, destinations = len(Ids(data.src)), len(Ids(data.dst))
    replies = int(data.replied.sum())
    if len(data) >= FEWEST and sources > 1 and destinations > 1 and replies >= FEWEST // 2:
        return
    raise PingError(
        f"too little to fit: {counted(len(data), 'measurement')} ({replies:,} with a reply) of "
        f"{counted(sources, 'source')} to {counted(destinations, 'destination')}, and a fit needs at least "
        f"{FEWEST} measurements, {FEWEST // 2} of them with a reply, two sources and two destinations. The "
        "packaged model answers from as few as there are: `ping-llm query rtt --data FILE --src … --dst …`"
    )


def choose_config(options: FitOptions, measurements: int) -> tuple[str, list[str]]:
    """Choose a packaged config and overrides for the data and the machine.

    `menog`, whose contexts look like questions: its 0.7M parameters are what two cores can train in minutes.
    With a GPU and at least a million measurements `20m`.
    """
    if options.config is not None:
        return options.config, []
    if measurements >= 1_000_000 and _has_gpu():
        return "20m", []
    # Warm-up: a twentieth of the expected steps at 0.3 s per step on two cores, 5 to 190 steps. A checkpoint
    # every two minutes bounds the loss by an interruption.
    expected = max(options.minutes * 60 / 0.3, 1)
    warmup = min(190.0, max(expected / 20, 5)) / 9500
    return "menog", ["checkpoint_period=300", f"warmup_steps_fraction={warmup:.5f}"]


def first_weights(start: Path | None, options: FitOptions, config: str) -> Path | None:
    """Choose the weights that training starts from: by default the packaged network, if its shape fits.

    On menog-2019 the network was better after 2,351 steps from there than after 3,311 from random weights:
    known pairs 3.64 bits instead of 3.78, new pairs 7.68 and 7.76, new destinations 7.01 and 7.49.
    """
    if start is None:
        return Path(NAME) if options.config is None and config == "menog" else None
    return None if start == RANDOM else start


def _has_gpu() -> bool:
    import jax

    return jax.default_backend() == "gpu"


def _measurements_folder(inputs: Sequence[str]) -> Path | None:
    """Return the input itself if it is a single folder written by `ingest` or `simulate`, else None."""
    if len(inputs) != 1:
        return None
    folder = Path(inputs[0])
    written = ("ingest.json", "world.json")
    return folder if folder.is_dir() and any((folder / name).is_file() for name in written) else None


def _ingest(inputs: Sequence[str], out: Path, options: FitOptions) -> None:
    from ping_llm.ingest.options import IngestOptions
    from ping_llm.ingest.tabled import ingest_usable

    ingest_usable(inputs, out, IngestOptions(traceroutes=options.traceroutes))


def _build_rows(run: Path, measurements: Path, network_train: Columns | None) -> None:
    from ping_llm.rows.build import build

    table = run / "train-rows.parquet"
    if network_train is not None and not (run / "train-rows" / "manifest.json").exists():
        with whole_file(table) as aside:
            pq.write_table(network_train.to_arrow(), aside)
        build([table], run / "train-rows")
    table.unlink(missing_ok=True)
    build([measurements], run / "rows")


def _train(
    run: Path, rows: Path, config: str, overrides: list[str], minutes: float, start: Path | None
) -> None:
    from ping_llm.train.run import train

    outcome = train(config, overrides, run=run, rows=rows, weights=start, minutes=minutes, allow_cpu=True)
    if outcome.state == "stopped":
        raise PingError(f"stopped after {outcome.step + 1} steps and saved: the same command resumes")


def _remember_data(run: Path, rows: Path) -> None:
    from ping_llm.rows.manifest import load_manifest
    from ping_llm.train import runs as folder

    fingerprint = load_manifest(rows)["fingerprint"]
    data = {"rows": str(rows.resolve()), "fingerprint": fingerprint}
    folder.update(run, context_data=data, **({} if base_folder(run) is None else {"state": "tuned"}))


def _stack(run: Path, train: Columns, options: FitOptions, tuned: Path | None) -> None:
    from ping_llm.fit.calibrate import calibrate_columns

    if tuned is None:
        names = options.baselines or usable()
        calibrate_columns(run, train, options.held_out, options.stack_questions, names)
    else:
        tune(run, tuned, train, options)
    _remember_data(run, run / "rows")


def _evaluate(run: Path, splits: Splits, options: FitOptions, world: Path | None) -> None:
    from ping_llm.answer.stack import FOLDER
    from ping_llm.evaluate.run import evaluate_data
    from ping_llm.evaluate.verdict import lost_to

    asked = EvaluateOptions(
        splits=splits.options or options.splits,
        queries=options.queries,
        address_questions=options.address_questions,
        context_queries=options.context_queries,
        context_sizes=(0, 1, 5, 30),
        # Only models like `base` use measurements of other sources to a new destination.
        destination_context=() if base_folder(run) is None else EvaluateOptions().destination_context,
        baselines=options.baselines or usable(),
        seed=options.seed,
    )
    result = evaluate_data(evaluation_data(splits, asked), run / "report", asked, run, world)
    (run / FOLDER).mkdir(exist_ok=True)
    write_json(run / FOLDER / "verdict.json", {"lost_to": lost_to(result)})
    if base_folder(run) is None:
        _export(run)


def _final(run: Path, data: Columns, config: str, overrides: list[str], options: FitOptions) -> None:
    """Train further on all data, and refit the stack's methods to all data."""
    from ping_llm.answer.stack import FOLDER, Stack
    from ping_llm.answer.stacking import refitted
    from ping_llm.fit.calibrate import about

    final = run / "final"
    minutes = options.minutes * FINAL_SHARE
    _train(final, run / "rows", config, [*overrides, "data_shuffle_seed=1"], minutes, run)
    stack = Stack.load(run / FOLDER)
    assert stack is not None
    if stack.about["trained_on"]["measurements"] != len(data):
        refitted(stack, data, stack.about | about(data)).save(run / FOLDER)
    _export(run)


def _export(run: Path) -> None:
    """Write weights, stack and model card to one folder that can be shared."""
    from ping_llm.files import write_text
    from ping_llm.model import export
    from ping_llm.model.card import model_card

    folder = run / "export"
    export.export(run, folder)
    write_text(folder / "README.md", model_card(export.read(folder), run))


def examples(splits: Splits, tuned: bool = False) -> list[dict[str, str]]:
    """Three example questions for the user, later than all data, so that the run can look back on it.

    What the report held out is in the run's data, from which a tuned model answers.
    """
    train = splits.train.take(splits.train.replied)
    newest = train.take(slice(-1, None))
    # After all data: a tuned model uses its saved methods only for such questions.
    at = str(np.datetime64(int(splits.data.time.max()) // 1_000_000 + 1, "s")) + "Z"
    words = "a known pair" if tuned else "a pair it was trained on"
    held = "held out of the report's training; now in the run's data" if tuned else "that was held out"
    chosen = [(words, newest.src[0], newest.dst[0])]
    for kind, noun in (("pairs", "pair"), ("destinations", "destination"), ("sources", "source")):
        test = splits.test(kind)
        if len(test):
            chosen.append((f"a {noun} {held}", test.src[-1], test.dst[-1]))
    from ping_llm.measurements.addresses import unpack_one

    return [
        {"about": words, "src": unpack_one(src.tobytes()), "dst": unpack_one(dst.tobytes()), "at": at}
        for words, src, dst in chosen[:3]
    ]
