"""`train`: begin a training or go on with it, and end with a model or a sentence."""

import contextlib
import errno
import hashlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_text
from ping_llm.train import checkpoints, folder, settings
from ping_llm.train.hosts import Hosts


@dataclass(frozen=True)
class Outcome:
    """How a training ended, when it did not fail.

    Attributes:
        state: `finished`, `stopped` (by a signal, and saved) or `already` (finished before).
        step: the last step that was made, counted from 0.
        launch: seconds from the call to the end of the first step, by what they were spent on: imports,
            config (with JAX's devices), model (and checkpoint manager), data, compile (and restoring),
            first_step.
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
    hosts: Hosts | None = None,
) -> Outcome:
    """Train, or go on where the run in the folder stopped.

    Args:
        config: the name of a packaged config or the path of a yml.
        overrides: `key=value` words, as MaxText takes them.
        run: the run's folder; runs/CONFIG unless given.
        rows: the folder of probe rows to train on (network_train_files).
        eval_rows: that of the evaluation (network_eval_files).
        weights: a run whose newest weights this one begins with; its optimizer begins anew.
        hosts: this process among several.

    Raises:
        UsageError: the config cannot work.
        PingError: the training failed, and why.
    """
    started = time.monotonic()
    path = settings.find(config)
    run = run or Path("runs") / path.stem
    words = list(overrides)
    words += [f"network_train_files={rows.resolve()}"] if rows else []
    words += [f"network_eval_files={eval_rows.resolve()}"] if eval_rows else []
    words += [f"load_parameters_path={_newest_weights(weights)}"] if weights else []
    hosts = hosts or Hosts()
    hosts.connect()

    seam = import_seam()
    from ping_llm.train.session import Session
    from ping_llm.train.stops import Stops

    marks = [("imports", time.monotonic())]
    full = seam.read_config(path, words, run)
    marks.append(("config", time.monotonic()))
    check(full)
    with contextlib.ExitStack() as stack:
        if hosts.index == 0:
            stack.enter_context(folder.only_one(run))
        stops = stack.enter_context(Stops())
        session = Session(run, full, stops)
        if session.finished:
            if hosts.index == 0 and not (run / "export" / "config.json").exists():
                _export(run, hosts)
            return Outcome(run, "already", full.steps - 1)
        if hosts.index == 0:
            write_text(run / "config.yml", seam.own_keys(path, words))
            folder.update(
                run,
                state=folder.RUNNING,
                message=None,
                process=folder.here(),
                processes=hosts.count,
                steps=full.steps,
                config=config,
                overrides=list(overrides),
                context_options=settings.context_options(full).as_dict(),
            )
        if full.enable_wandb:
            _name_wandb_run(run)
        try:
            _run(seam, full, session)
        except BaseException as error:
            if hosts.index == 0:
                with contextlib.suppress(OSError):  # of a full disk, most likely; the error is what matters
                    folder.update(run, state=folder.FAILED, message=str(error))
            raise
        state = folder.STOPPED if session.stopped else folder.FINISHED
        if hosts.index == 0:
            if state == folder.FINISHED and full.enable_checkpointing:
                _export(run, hosts)
            folder.update(run, state=state, step=session.step, loss=session.loss)
    return Outcome(
        run, state, session.step, session.loss, _spent(started, marks + session.marks), session.data_wait_s
    )


def _newest_weights(run: Path) -> Path:
    found = checkpoints.steps(run / "checkpoints")
    if not found:
        raise UsageError(f"{run} has no checkpoints: --weights names the folder of a run that has some")
    return (run / "checkpoints" / str(found[-1]) / "items").resolve()


def _spent(started: float, marks: list[tuple[str, float]]) -> dict[str, float]:
    """Seconds between marks, by the name of the later one."""
    spent = {}
    for name, at in marks:
        spent[name] = round(at - started, 3)
        started = at
    return spent


def _run(seam: Any, config: Any, session: Any) -> None:
    try:
        with quiet():
            seam.run(config, session)
    except (PingError, KeyboardInterrupt):
        raise
    except Exception as error:
        if _disk_full(error):
            raise PingError("the disk is full; free some of it, and the same command goes on") from error
        raise PingError(f"MaxText failed: {type(error).__name__}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            session.close()
    session.check()


def import_seam() -> Any:
    """The seam, and with it MaxText, which takes seconds and prints."""
    with quiet():
        from ping_llm.train import maxtext_seam
    return maxtext_seam


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what MaxText and its imports print out of our output; --debug shows it."""
    if os.environ.get("PING_LLM_DEBUG"):
        yield
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with (
        Path(os.devnull).open("w") as nowhere,
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


def _name_wandb_run(run: Path) -> None:
    """W&B goes on with a run of the same id, and writes into our folder instead of where we were called."""
    os.environ.setdefault("WANDB_DIR", str(run))
    os.environ.setdefault("WANDB_RUN_ID", hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12])
    os.environ.setdefault("WANDB_SILENT", "true")


def check(config: Any) -> None:
    """What MaxText would accept and our data would not."""
    from ping_llm.tokens.vocab import VOCABULARY_SIZE

    if config.dataset_type != settings.DatasetType.NETWORK:
        return
    if config.vocab_size != VOCABULARY_SIZE:
        raise UsageError(f"vocab_size={config.vocab_size}, but the tokens are {VOCABULARY_SIZE}")
    if config.per_device_batch_size <= 0:
        raise UsageError(f"per_device_batch_size={config.per_device_batch_size} makes no batch")
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


def _export(run: Path, hosts: Hosts) -> None:
    if hosts.count == 1:
        from ping_llm.model.export import export

        export(run, run / "export")
        return
    # Among several processes Orbax would wait for all of them to read, so a process of its own does it.
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
