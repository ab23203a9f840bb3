"""`train`: start or resume a training, which ends with a model or an error message."""

import contextlib
import errno
import gc
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_text
from ping_llm.locks import only_writer
from ping_llm.model import doubts
from ping_llm.model.packaged import base_folder
from ping_llm.train import made_with, runs, schedule, settings, wandb
from ping_llm.train.first_weights import FirstWeights
from ping_llm.train.hardware import environment, refuse_cpu
from ping_llm.train.processes import ProcessGroup
from ping_llm.train.teacher import Teacher


@dataclass(frozen=True)
class Outcome:
    """Result of a training that did not fail.

    Attributes:
        state: `finished`, `stopped` (by a signal, and saved) or `already` (finished before).
        step: last step that was made, counted from 0.
        launch: seconds from the call to the end of the first step, by activity: imports, config (with JAX's
            devices), model (and checkpoint manager), data, compile (and restoring), first_step.
        data_wait_s: seconds spent waiting for data.
    """

    run: Path
    state: str
    step: int
    loss: float | None = None
    launch: dict[str, float] = field(default_factory=dict)
    data_wait_s: float = 0.0


def train(
    config: str,
    overrides: Sequence[str] = (),
    *,
    run: Path | None = None,
    rows: Path | None = None,
    eval_rows: Path | None = None,
    weights: Path | None = None,
    teacher: Path | None = None,
    minutes: float | None = None,
    hosts: ProcessGroup | None = None,
    allow_cpu: bool = False,
) -> Outcome:
    """Train a new run, or resume the run in the folder.

    Args:
        config: name of a packaged config or path of a yml.
        overrides: `key=value` words, as in MaxText.
        run: folder of the run; by default runs/CONFIG.
        rows: folder of probe rows to train on (network_train_files).
        eval_rows: folder of probe rows for the evaluation (network_eval_files).
        weights: a run whose newest weights are the initial weights, an export, or `base`; the state of the
            optimizer is new.
        teacher: a run or an export with at least four times the parameters, whose distributions of RTT bytes
            are learned (network_teacher).
        minutes: time budget instead of a number of steps, including launch and export: the learning rate is
            constant, then falls, and the training ends in time. For lr_schedule_type wsd.
        hosts: this process, if there are several.
        allow_cpu: train a model for GPUs on CPUs, regardless of the time.

    Raises:
        UsageError: the config cannot work, or the run in the folder was made with another one; nothing in
            the folder has changed.
        PingError: the training failed; the message has the reason.
    """
    started = time.monotonic()
    path = settings.find(config)
    run = run or Path("runs") / path.stem
    words = list(overrides)
    words += [f"network_train_files={rows.resolve()}"] if rows else []
    words += [f"network_eval_files={eval_rows.resolve()}"] if eval_rows else []
    words += [f"network_teacher={(base_folder(teacher) or teacher).resolve()}"] if teacher else []
    first = FirstWeights.find(weights, run) if weights else None
    words += [f"load_parameters_path={first.path}"] if first else []
    hosts = hosts or ProcessGroup()
    hosts.connect()

    seam = import_seam()
    from ping_llm.train import schedule as budgets
    from ping_llm.train.processes import Stops

    marks = [("imports", time.monotonic())]
    full = seam.read_config(path, words, run)
    marks.append(("config", time.monotonic()))
    check(full)
    if first:
        first.check(full, hosts.count)
    taught_by = Teacher.read(Path(full.network_teacher), hosts.count) if full.network_teacher else None
    if taught_by:
        taught_by.check(full)
    if not allow_cpu:
        refuse_cpu(full, seam)
    asked = budgets.asked(full, settings.split_overrides(overrides), minutes) if minutes is not None else None
    data = made_with.data_of(full)
    given = set(yaml.safe_load(seam.own_keys(path, words)))
    facts = taught_by.facts() if taught_by else None
    made_with.refuse_other(run, full, given, data, asked, seam, facts)
    few = doubts.measurements_of(data["rows"]) if data else None
    found = [None if few is None else doubts.about_data(few)]
    found.append(None if asked is not None else doubts.about_steps(full.steps))
    for doubt in filter(None, found):
        print(f"warning: {doubt}", file=sys.stderr)
    if data and hosts.index == 0:
        _say_what(full, hosts.count, asked is None)
    with contextlib.ExitStack() as stack:
        if hosts.index == 0:
            stack.enter_context(only_writer(run, "train"))
            if first and not made_with.begun(run):
                first.write(full.scan_layers)
        about = {
            "process": runs.here(),
            "environment": environment(),
            "processes": hosts.count,
            "config": config,
            "overrides": list(overrides),
            "minutes": minutes,
            "context_options": settings.context_options(full).as_dict(),
            **({"data": data} if data else {}),
            **({"teacher": facts} if facts else {}),
        }
        launch = _Launch(seam, path, words, run, hosts, about, taught_by)
        stops = stack.enter_context(Stops())
        if asked is None:
            return launch.ended(_steps(launch, full, stops), started, marks)
        budget = budgets.Budget(run, made_with.schedule_of(run, asked), started)
        return launch.ended(_minutes(launch, budget, stops), started, marks)


def _say_what(config: Any, hosts: int, steps_known: bool) -> None:
    """Print the figures of the training data, and a warning if there are too many epochs."""
    from ping_llm.train.estimate import of_data
    from ping_llm.train.pipeline import MANY_EPOCHS

    figures, batch = of_data(config), config.global_batch_size_to_train_on
    epochs = figures["epochs"] if steps_known else None
    planned = f"{epochs:,.2g} epochs planned" if epochs else "epochs by the time budget"
    print(
        f"data: {config.network_data_format}, "
        + (f"{figures['rows']:,} rows, " if "rows" in figures else "")
        + f"{figures['contexts_per_epoch']:,} contexts per epoch · {hosts} host{'' if hosts == 1 else 's'} · "
        f"{batch:,} sequences of {config.max_target_length:,} tokens per step · "
        f"{figures['steps_per_epoch']:,.3g} steps per epoch, {planned}",
        file=sys.stderr,
    )
    if epochs and epochs > MANY_EPOCHS:
        print(
            f"warning: {config.steps:,} steps repeat these data {epochs:,.0f} times; after {MANY_EPOCHS} "
            "epochs more steps hardly help: train on more data, or lower steps",
            file=sys.stderr,
        )


@dataclass
class _Launch:
    """State of one call of `train`: words of the config, folder of the run, and content of run.json."""

    seam: Any
    path: Path
    words: list[str]
    run: Path
    hosts: ProcessGroup
    about: dict[str, Any]
    teacher: Teacher | None = None
    sessions: list[Any] = field(default_factory=list)

    def begin(self, config: Any, words: list[str], steps: int | None) -> None:
        """Write config.yml and run.json; `steps` is None if their number is not decided yet."""
        if self.hosts.index == 0:
            write_text(self.run / "config.yml", self.seam.own_keys(self.path, self.words + words))
            runs.update(self.run, state=runs.RUNNING, message=None, steps=steps, **self.about)
        if config.enable_wandb:
            wandb.name_run(self.run)

    def train(self, config: Any, session: Any) -> None:
        self.sessions.append(session)
        try:
            _run(self.seam, config, session)
        except BaseException as error:
            if self.hosts.index == 0:
                with contextlib.suppress(OSError):  # likely a full disk; the error above is more important
                    runs.update(self.run, state=runs.FAILED, message=str(error))
            raise

    def ended(self, session: Any, started: float, marks: list[tuple[str, float]]) -> Outcome:
        """Export a finished model, and return the outcome."""
        first = self.hosts.index == 0
        if session.finished:  # before this call
            if first and not (self.run / "export" / "config.json").exists():
                _export(self.run, self.hosts)
            return Outcome(self.run, "already", session.step)
        state = runs.STOPPED if session.stopped else runs.FINISHED
        if first:
            if state == runs.FINISHED and session.saves:
                _export(self.run, self.hosts)
            runs.update(self.run, state=state, step=session.step, loss=session.loss)
        waited = sum(each.data_wait_s for each in self.sessions)
        launch = _spent(started, marks + self.sessions[0].marks)
        return Outcome(self.run, state, session.step, session.loss, launch, waited)


def _steps(launch: _Launch, config: Any, stops: Any) -> Any:
    """Train the config's number of steps; returns the session that ended."""
    from ping_llm.train.session import Session

    session = Session(launch.run, config, stops, teacher=launch.teacher)
    if not session.finished:
        if launch.hosts.index == 0:
            schedule.remove(launch.run)  # schedule of a run that has no checkpoint
        launch.begin(config, [], config.steps)
        launch.train(config, session)
    return session


def _minutes(launch: _Launch, budget: Any, stops: Any) -> Any:
    """Train at a constant rate, then with decay, as the budget decides; returns the session that ended."""
    from ping_llm.train.session import Session

    while True:
        since = time.monotonic()
        words = budget.schedule.words()
        config = launch.seam.read_config(launch.path, launch.words + words, launch.run)
        session = Session(launch.run, config, stops, budget, launch.teacher)
        if session.finished:
            return session
        if budget.decay_due(session.next_step):  # an earlier attempt was killed before the decision
            budget.decide(session.next_step)
            continue
        launch.begin(config, words, budget.schedule.steps)
        budget.begin(since)
        launch.train(config, session)
        if not session.decay_due:
            return session
        budget.decide(session.step + 1)


def _spent(started: float, marks: list[tuple[str, float]]) -> dict[str, float]:
    """Seconds between marks, by the name of the later one."""
    spent = {}
    for name, at in marks:
        spent[name] = round(at - started, 3)
        started = at
    return spent


def _pass_over_closed_loops() -> None:
    """Keep threads of Orbax from printing tracebacks after their error, such as a full disk, was reported."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    # Any callable may be the hook, so an attribute marks this one.
    if not getattr(before, "passes_over_closed_loops", False) and not os.environ.get("PING_LLM_DEBUG"):
        hook.passes_over_closed_loops = True  # type: ignore[attr-defined]
        sys.unraisablehook = hook


def _run(seam: Any, config: Any, session: Any) -> None:
    _pass_over_closed_loops()
    try:
        with quiet():
            seam.run(config, session)
    except (PingError, KeyboardInterrupt):
        raise
    except Exception as error:
        if _disk_full(error):
            raise PingError("the disk is full; free some space, and the same command resumes") from error
        raise PingError(f"MaxText failed: {type(error).__name__}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            session.close()
    session.check()


def import_seam() -> Any:
    """Import the seam, and with it MaxText, which takes seconds and prints messages."""
    collecting = gc.isenabled()
    # It makes half a million objects that stay: garbage collection among them took 1.1 s of 4.9 s.
    gc.disable()
    try:
        with quiet():
            from ping_llm.train import maxtext_seam
    finally:
        if collecting:
            gc.enable()
    return maxtext_seam


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output of MaxText and its imports; --debug shows it."""
    if os.environ.get("PING_LLM_DEBUG"):
        yield
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(action="ignore", category=DeprecationWarning),
    ):
        yield


def _disk_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def check(config: Any) -> None:
    """Raise a UsageError for a config that MaxText accepts but that cannot work with network data."""
    from ping_llm.tokens.vocab import VOCABULARY_SIZE

    if config.steps < 1:
        raise UsageError(f"steps={config.steps} must be at least 1")
    wandb.check(config)
    if config.dataset_type != settings.DatasetType.NETWORK:
        if config.network_teacher:
            raise UsageError(f"dataset_type={config.dataset_type} has no RTTs: a teacher needs network")
        return
    if config.network_samples < 0:
        raise UsageError(f"network_samples={config.network_samples} must be at least 0")
    if not 0 <= config.network_teacher_weight <= 1:
        raise UsageError(f"network_teacher_weight={config.network_teacher_weight} must be from 0 to 1")
    if config.vocab_size != VOCABULARY_SIZE:
        raise UsageError(f"vocab_size must be {VOCABULARY_SIZE}, not {config.vocab_size}")
    if config.per_device_batch_size <= 0:
        raise UsageError(f"per_device_batch_size={config.per_device_batch_size} must be above 0")
    if not config.network_train_files:
        raise UsageError("no data to train on: give --rows DIR or network_train_files=DIR")
    if config.eval_interval > 0 and not config.network_eval_files:
        raise UsageError("eval_interval is set, so give --eval-rows DIR or network_eval_files=DIR")
    if config.attention == "cudnn_flash_jax":
        raise UsageError(
            "attention=cudnn_flash_jax ignores segments, so packed contexts would see each other; "
            "use cudnn_flash_te or dot_product"
        )
    settings.context_options(config)
    settings.loader_options(config)
    settings.loader_options(config, evaluation=True)


def _export(run: Path, hosts: ProcessGroup) -> None:
    if hosts.count == 1:
        from ping_llm.model.export import export

        export(run, run / "export")
        return
    # With several processes, Orbax would wait for all of them to read, so a separate process exports.
    program = "from ping_llm.model.export import export; import sys; export(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(run), str(run / "export")],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PingError(f"{run} is trained, but exporting it failed: {done.stderr.strip().splitlines()[-1]}")
