"""A training session: its data as MaxText's global arrays, its records, checkpoints and end."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

import jax
import numpy as np
from jax.experimental import multihost_utils

from ping_llm.contexts.batches import Stages
from ping_llm.errors import PingError
from ping_llm.model import ledger
from ping_llm.train import hardware, pipeline, runs, settings, tuning
from ping_llm.train.processes import Stops
from ping_llm.train.records import Records, TrainingLine
from ping_llm.train.samples import Samples
from ping_llm.train.schedule import Budget
from ping_llm.train.teacher import Teach, Teacher
from ping_llm.train.token_loss import TAUGHT


class Source(Protocol):
    """Interface of the source of a feed, such as `contexts.batches.Batches`."""

    bad_rows: set[int]
    stages: Stages

    @property
    def lanes(self) -> int: ...
    def __next__(self) -> dict[str, np.ndarray]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class Feed:
    """Passes each local batch to the devices as its share of a global array.

    MaxText turns any exception of its data iterator into a silent stop with exit code 0. So the exception
    is kept in `error`, and the caller of the training raises it.

    Attributes:
        taken: number of batches since the start of the training, including those before a resume.
        waited: seconds spent here, the total time that steps wait for data.
        handing: part of these seconds spent on copying batches to the devices.
        error: exception that ended the feed, or None; StopIteration means that the data ran out.
    """

    def __init__(self, source: Source, sharding: Any, finite: bool = False, teach: Teach | None = None):
        self._source, self._sharding, self._finite, self._teach = source, sharding, finite, teach
        self._beginning = source.get_state()
        self.taken = 0
        self.waited = self.handing = 0.0
        self.error: BaseException | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        started = time.perf_counter()
        try:
            local = next(self._source)
            filled = time.perf_counter()
            batch = {
                key: jax.make_array_from_process_local_data(self._sharding, value)
                for key, value in local.items()
            }
            handed = time.perf_counter()
            if self._teach is not None:
                batch[TAUGHT] = self._teach(batch)
        except StopIteration as end:
            if self._finite and self.taken:
                raise
            self.error = end
            raise
        except Exception as error:
            self.error = error
            raise
        self.taken += 1
        self.waited += handed - started
        self.handing += handed - filled
        return batch

    @property
    def stages(self) -> Stages:
        """Time that the loader has spent so far, by stage."""
        return self._source.stages

    @property
    def bad_rows(self) -> set[int]:
        """Numbers of the rows that were skipped so far."""
        return self._source.bad_rows

    def state(self) -> dict[str, Any]:
        return self._source.get_state()

    def skip_to(self, state: dict[str, Any], taken: int) -> None:
        """Continue from `state`, the state after `taken` batches."""
        self._source.set_state(state)
        self.taken = taken

    def reset(self) -> None:
        """Start from the beginning; MaxText calls this before each evaluation."""
        self.skip_to(self._beginning, 0)

    def close(self) -> None:
        self._source.close()


_LAUNCH_MARKS = 4  # model, data, compile, first_step


class Session:
    """Callbacks of the seam during a training (see maxtext_seam.Session).

    Attributes:
        next_step: first step that is not in a checkpoint.
        step: last step that was recorded.
        loss: loss of that step.
        stopped: whether a signal ended the training.
        decay_due: whether the time budget ended it, so that the decay of the learning rate can begin.
    """

    def __init__(
        self,
        run: Path,
        config: Any,
        stops: Stops,
        budget: Budget | None = None,
        teacher: Teacher | None = None,
    ):
        self._run, self._config, self._stops, self._budget = run, config, stops, budget
        self._teacher = teacher
        self._first = jax.process_index() == 0
        self._ledger = ledger.Ledger(run)
        self._streams = ledger.Streams(run)
        newest = self._ledger.newest_whole() if self._first else None
        if jax.process_count() > 1:
            newest = int(multihost_utils.broadcast_one_to_all(-1 if newest is None else newest))
        self.next_step = 0 if newest is None or newest < 0 else newest + 1
        self.step = self.next_step - 1
        self.loss: float | None = None
        self.stopped = self.decay_due = False
        self.marks: list[tuple[str, float]] = []
        self._feed: Feed | None = None
        self._pipeline: pipeline.Pipeline | None = None
        self._utilization: hardware.Utilization | None = None
        self._choice: tuning.Tuned | None = None
        self._eval_feed: Feed | None = None
        self._records: Records | None = None
        self._samples: Samples | None = None
        undecided = budget is not None and not budget.decided
        ends_at = budget.ends_at if budget is not None and undecided else None
        self._live = TrainingLine(config.steps, ends_at, jax.device_count())

    @property
    def finished(self) -> bool:
        """Whether the training was finished before."""
        return self.next_step >= self._config.steps

    @property
    def saves(self) -> bool:
        return bool(self._config.enable_checkpointing)

    @property
    def data_wait_s(self) -> float:
        return self._feed.waited if self._feed else 0.0

    def _mark(self, name: str) -> None:
        self.marks.append((name, time.monotonic()))

    def feeds(self, config: Any, for_train: Any, for_eval: Any) -> tuple[Feed, Feed | None]:
        self._mark("model")
        rows = Path(config.network_train_files)
        epochs = config.network_epochs or None
        source = self._open(rows, config.global_batch_size_to_load, epochs)
        self._feed = Feed(source, for_train, teach=self._teacher.on(for_train) if self._teacher else None)
        self._lanes = source.lanes
        if self.next_step:
            self._feed.skip_to(self._streams.at(self.next_step - 1), self.next_step)
        if config.eval_interval > 0:
            eval_rows = Path(config.network_eval_files)
            source = self._open(eval_rows, config.global_batch_size_to_load_eval, 1, evaluation=True)
            self._eval_feed = Feed(source, for_eval, finite=True)
        self._mark("data")
        return self._feed, self._eval_feed

    def _open(self, rows: Path, batch_size: int, epochs: int | None, evaluation: bool = False) -> Source:
        from ping_llm.contexts.batches import Batches
        from ping_llm.contexts.stored import StoredBatches

        options = settings.loader_options(self._config, evaluation)
        stream: dict[str, Any] = {
            "batch_size": batch_size,
            "length": self._config.max_target_length,
            "seed": self._config.data_shuffle_seed,
            "epochs": epochs,
            "process_index": jax.process_index(),
            "process_count": jax.process_count(),
        }
        if options["data_format"] == settings.PRETOKENIZED:
            drawn = settings.context_options(self._config)
            return StoredBatches(rows, drawn, threads=options["threads"], **stream)
        if options["workers"] == tuning.MEASURE:
            options |= self._tuned(rows, stream, options)
        looked_into = self._first and not evaluation  # Grain's summary is of one process's training data
        try:
            return Batches(
                rows,
                settings.context_options(self._config),
                grain_debug_mode=looked_into and self._config.grain_debug_mode,
                grain_visualization_dir=self._config.grain_visualization_dir if looked_into else "",
                **stream,
                **options,
            )
        except (OSError, ValueError) as error:
            raise PingError(f"cannot read {rows}: {error}") from error

    def _tuned(self, rows: Path, stream: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """Choose threads and buffers by measurement, once; they do not change the batches."""
        from ping_llm.contexts.batches import Batches, open_rows

        if self._choice is None:
            drawn, opened = settings.context_options(self._config), open_rows(rows, options["data_format"])
            endless = stream | {"epochs": None}

            def make(threads: int) -> Batches:
                own = {"workers": 0, "threads": threads}
                return Batches(opened, drawn, **endless, **options | own)

            self._choice = tuning.tune(make)
            if self._first:
                pipeline.say(str(self._choice))
        return {"workers": 0, "threads": self._choice.threads, "units_ahead": self._choice.units_ahead}

    def begin(self, step: int, parameters: int, writer: Any) -> None:
        if step != self.next_step:
            raise PingError(f"MaxText begins at step {step}, the newest checkpoint says {self.next_step}")
        self._mark("compile")
        if self._first:
            runs.update(self._run, parameters=parameters)
            self._records = Records(self._run / "metrics.jsonl", step)
            peak = hardware.peak_flops(str(self._config.dtype))
            self._utilization = hardware.Utilization(peak) if peak else None
            self._recorded_at, self._waited = time.time(), 0.0
            if self._feed is not None and jax.process_count() == 1:  # else no process has all weights
                self._samples = Samples.of(self._run, self._config, step, self._held_out)

    def _held_out(self, sequences: int) -> Source:
        """Batches of the evaluation data, or of the training data if there are none."""
        rows, evaluation = Path(self._config.network_train_files), self._eval_feed is not None
        return self._open(
            Path(self._config.network_eval_files) if evaluation else rows, sequences, 1, evaluation
        )

    def sample(self, step: int, weights: Callable[[], dict[str, np.ndarray]]) -> None:
        if self._samples is not None:
            self._samples.take(step, weights)

    def record(self, kind: str, step: int, scalars: dict[str, float]) -> dict[str, float]:
        loss = scalars["learning/loss" if kind == "train" else "eval/avg_loss"]
        norm = scalars.get("learning/grad_norm", 0.0)
        if not math.isfinite(loss) or not math.isfinite(norm):
            what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient's norm", norm)
            raise PingError(
                f"the {what} of step {step} is {value}; checkpoints from before are in "
                f"{self._run / 'checkpoints'}. A lower learning_rate or gradient_clipping_threshold may help "
                "in another run"
            )
        bits = {name.split("/")[-1]: value for name, value in scalars.items() if "/bits/" in name}
        if kind == "train":
            self.step, self.loss = step, loss
        if not self._first:
            return {}
        more: dict[str, float] = {}
        assert self._records is not None
        record: dict[str, Any] = {"kind": kind, "step": step, "loss": loss, "bits": bits}
        if kind == "train":
            now, waited = time.time(), self.data_wait_s
            tokens = scalars["learning/total_weights"]
            seconds = max(now - self._recorded_at, 1e-9)
            more = {"perf/per_device_real_tokens_per_sec": tokens / seconds / jax.device_count()}
            if self._utilization and "perf/per_device_tflops" in scalars:
                flops = scalars["perf/per_device_tflops"] * 1e12
                more["perf/mfu"] = self._utilization.of(flops, seconds)
            record |= {
                "learning_rate": scalars["learning/current_learning_rate"],
                "grad_norm": scalars["learning/grad_norm"],
                "tokens": int(tokens),
                "seconds": round(now - self._recorded_at, 6),
                "data_wait_s": round(waited - self._waited, 6),
                "tokens_per_s_per_device": round(more["perf/per_device_real_tokens_per_sec"], 1),
                "mfu": None if "perf/mfu" not in more else round(more["perf/mfu"], 5),
            }
            self._recorded_at, self._waited = now, waited
            self._live.train(step, loss, bits.get("total", math.nan), tokens, waited, more.get("perf/mfu"))
            record |= self._look(step)
        else:
            record["tokens"] = int(scalars["eval/total_weights"])
            self._live.eval(loss, bits.get("total", math.nan))
        record["time"] = round(time.time(), 3)
        self._records.append(record)
        return more

    def _look(self, step: int) -> dict[str, Any]:
        """Print a view of the pipeline and return it for the record, every minute and on SIGUSR1."""
        if self._feed is None:
            return {}
        if self._pipeline is None:  # begin after the first step, which is mostly compiling
            self._pipeline = pipeline.Pipeline(self._feed, self._lanes, step)
            return {}
        if not self._stops.look() and not self._pipeline.due():
            return {}
        view = self._pipeline.view(step).as_dict()
        pipeline.say("\n".join(pipeline.lines(view)))
        return {"pipeline": view}

    def must_stop(self, step: int) -> bool:
        if len(self.marks) == _LAUNCH_MARKS - 1:
            self._mark("first_step")
        if self._feed is not None and self._feed.taken != step + 1:
            raise PingError(
                f"MaxText took {self._feed.taken} batches up to step {step}: it must take one per step, so "
                f"{step + 1}"
            )
        self.stopped = self._stops.requested(step)
        if self._budget is not None:
            self._budget.step_made()
            self.decay_due = not self.stopped and self._budget.decay_due(step + 1)
        return self.stopped or self.decay_due

    def saving(self, step: int) -> None:
        if self._first:
            assert self._records is not None
            self._records.sync()
            self._ledger.enter_new()
            if self._feed is not None:
                self._streams.keep(step, self._feed.state())
        if self._budget is not None:
            self._budget.record()

    def check(self) -> None:
        """Raise errors that MaxText suppressed, after its loop has returned."""
        for feed, what in ((self._feed, "training"), (self._eval_feed, "evaluation")):
            if feed is None or feed.error is None:
                continue
            if isinstance(feed.error, StopIteration):
                raise PingError(self._ran_out(feed, what))
            if isinstance(feed.error, PingError):
                raise feed.error
            raise PingError(
                f"the {what} data failed at batch {feed.taken}: {type(feed.error).__name__}: {feed.error}"
            ) from feed.error
        if self._config.dataset_type == settings.DatasetType.NETWORK and self._feed is None:
            raise PingError("MaxText did not read the batches of network_train_files; this run is not valid")
        if not (self.stopped or self.decay_due) and self.step != self._config.steps - 1:
            raise PingError(
                f"the training ended after step {self.step}, before its {self._config.steps} steps"
            )

    def _ran_out(self, feed: Feed, what: str) -> str:
        if what == "evaluation":
            return f"{self._config.network_eval_files} must give at least one batch to evaluate"
        return (
            f"the data ran out after {feed.taken} of {self._config.steps} steps: "
            f"{self._config.network_epochs} epochs of {self._config.network_train_files} are complete. "
            "Lower steps, or raise network_epochs (0: endless)"
        )

    def close(self) -> None:
        for feed in (self._feed, self._eval_feed):
            if feed is not None:
                feed.close()
        self._tell_of_bad_rows()
        if self._records is not None:
            self._records.close()
            if self._samples is not None:
                self._samples.close()
            self._ledger.enter_new()

    def _tell_of_bad_rows(self) -> None:
        skipped = len(self._feed.bad_rows) if self._feed else 0
        if skipped and self._first:
            runs.update(self._run, skipped_rows=skipped)
            where = self._config.network_train_files
            print(f"warning: {skipped} bad rows of {where} were skipped", file=sys.stderr)
