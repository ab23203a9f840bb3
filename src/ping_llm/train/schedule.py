"""The time budget of a training and its learning-rate schedule, recorded in schedule.json.

The rate rises for `warmup_steps`, is constant, and falls from step `decay_from` to the end at `steps`. The
last two are null until they are decided, once, from measured step times. After that the file does not change,
so that an interrupted training ends in the same way as an uninterrupted one.

The decay begins when the steps that still fit into the time are no more than the decay's share of all steps.
Their number is computed from the measured step time, after subtracting the time for the restart between
constant rate and decay and for the end (last checkpoint and export).
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_json

FILE = "schedule.json"
FORMAT = 1
# Number of steps while the end of the constant rate is not decided. Below 2^31: JAX counts steps in int32.
UNENDING = 1_000_000_000


@dataclass(frozen=True)
class Schedule:
    """The requested schedule, the measurements so far, and the decision.

    Attributes:
        minutes: time budget.
        learning_rate: rate of the constant part.
        warmup_steps: number of steps over which the rate rises.
        decay_fraction: share of all steps over which the rate falls.
        spent_s: seconds that this and earlier attempts took; time between attempts does not count.
        step_s: seconds per step; 0 if not measured yet.
        restart_s: seconds from reading the config to the end of the first step, mostly compiling.
        decay_from: first step of the decay, or None while undecided.
        steps: number of all steps, or None while undecided.
    """

    minutes: float
    learning_rate: float
    warmup_steps: int
    decay_fraction: float
    spent_s: float = 0.0
    step_s: float = 0.0
    restart_s: float = 0.0
    decay_from: int | None = None
    steps: int | None = None

    @property
    def decided(self) -> bool:
        return self.steps is not None

    def asked(self) -> dict[str, float]:
        """The values that a command requests; a run resumes its schedule only if these are unchanged."""
        return {
            "minutes": self.minutes,
            "learning_rate": self.learning_rate,
            "warm-up steps": self.warmup_steps,
            "wsd_decay_steps_fraction": self.decay_fraction,
        }

    def decide(self, decay_from: int, decay_steps: int) -> "Schedule":
        return replace(self, decay_from=decay_from, steps=decay_from + decay_steps)

    def words(self) -> list[str]:
        """The schedule as MaxText's keys: only the constant rate while undecided, then the whole schedule."""
        if self.steps is None or self.decay_from is None:
            return _words(UNENDING, self.learning_rate, self.warmup_steps, 0)
        rate, warmup = self.learning_rate, self.warmup_steps
        if self.decay_from <= warmup:
            # The budget ended in the warm-up: the rate reached so far is the peak, held for one step.
            warmup = self.decay_from - 1
            rate *= warmup / self.warmup_steps
        return _words(self.steps, rate, warmup, self.steps - self.decay_from)


def _words(steps: int, rate: float, warmup: int, decay: int) -> list[str]:
    return [
        f"steps={steps}",
        f"learning_rate_schedule_steps={steps}",
        f"learning_rate={rate!r}",
        f"warmup_steps_fraction={share(warmup, steps)!r}",
        f"wsd_decay_steps_fraction={share(decay, steps)!r}",
    ]


def share(part: int, steps: int) -> float:
    """The fraction from which MaxText, which truncates the product, computes exactly `part` steps."""
    fraction = part / steps
    while int(steps * fraction) < part:
        fraction = math.nextafter(fraction, 1.0)
    return fraction


def read(run: Path) -> Schedule | None:
    """The schedule of a run, or None if it has none."""
    path = run / FILE
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise PingError(f"{path} is not JSON ({error})") from error
    if content.get("format") != FORMAT:
        raise PingError(f"{path} has format {content.get('format')}; this version reads {FORMAT}")
    return of_json(content)


def of_json(content: dict[str, Any]) -> Schedule:
    return Schedule(**{field.name: content[field.name] for field in fields(Schedule)})


def as_json(schedule: Schedule) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(schedule)}


def write(run: Path, schedule: Schedule) -> None:
    write_json(run / FILE, as_json(schedule))


def remove(run: Path) -> None:
    (run / FILE).unlink(missing_ok=True)


# Smallest number of steps, for any time budget.
LEAST_STEPS = 10
_RECORD_EVERY_S = 5.0  # interval between writes, each of which takes a few milliseconds
_ENOUGH = 50  # number of steps of a resumed attempt before its own step time is used
_ASK_EVERY = 10  # steps between agreements of several processes, each of which stalls the devices
_TEXT = 4096  # size in bytes of a schedule that is sent to other processes
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"


def asked(config: Any, overrides: dict[str, str], minutes: float) -> Schedule:
    """Make the schedule for a config and a number of minutes.

    Raises:
        UsageError: they do not allow a schedule with a time budget.
    """
    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g}: it must be above 0")
    if config.lr_schedule_type != "wsd":
        raise UsageError(
            f"--minutes needs a constant rate that can end at any step, but lr_schedule_type is "
            f"{config.lr_schedule_type.value}; add lr_schedule_type=wsd, or give steps=… instead of --minutes"
        )
    for key in ("steps", "learning_rate_schedule_steps"):
        if key in overrides:
            raise UsageError(
                f"{key}={overrides[key]} and --minutes exclude each other: "
                "the minutes decide the number of steps"
            )
    if not 0 < config.wsd_decay_steps_fraction < 1:
        raise UsageError(
            f"wsd_decay_steps_fraction={config.wsd_decay_steps_fraction}: "
            "with --minutes it must be above 0 and below 1"
        )
    if not config.enable_checkpointing:
        raise UsageError("--minutes needs enable_checkpointing=true: the decay begins from a checkpoint")
    return Schedule(
        minutes=float(minutes),
        learning_rate=float(config.learning_rate),
        # From the config's own number of steps: the necessary warm-up does not grow with the budget.
        warmup_steps=int(config.learning_rate_schedule_steps * config.warmup_steps_fraction),
        decay_fraction=float(config.wsd_decay_steps_fraction),
    )


class Budget:
    """The time budget of one attempt, and the schedule as far as it is decided.

    Args:
        run: folder of the run; the first process writes schedule.json there.
        recorded: schedule so far.
        started: start of this attempt, by `clock`.
        clock: function that returns the time in seconds; tests replace it.
    """

    def __init__(
        self, run: Path, recorded: Schedule, started: float, clock: Callable[[], float] = time.monotonic
    ):
        self._run, self._started, self._clock = run, started, clock
        self._first, self._several = jax.process_index() == 0, jax.process_count() > 1
        self.schedule = self._agreed(recorded)
        self._before, self._earlier_step_s = self.schedule.spent_s, self.schedule.step_s
        self._began, self._saved = started, 0.0
        self._steps_at: list[float] = []
        self._stopped_at: float | None = None
        self._recorded_at = started

    @property
    def decided(self) -> bool:
        return self.schedule.decided

    @property
    def ends_at(self) -> float:
        """End of the time budget, in seconds by the clock."""
        return self._started + 60 * self.schedule.minutes - self._before

    def begin(self, since: float) -> None:
        """Called before the training loop, for which preparations began at `since`."""
        self._began, self._steps_at = since, []
        self._saved = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        self.record()

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _SAVED:
            self._saved = max(self._saved, duration_secs)

    def step_made(self) -> None:
        """Record the time of a step; write the schedule every few seconds."""
        now = self._clock()
        if not self._steps_at:
            jax.monitoring.unregister_event_duration_listener(self._listen)
        self._steps_at.append(now)
        if now - self._recorded_at >= _RECORD_EVERY_S:
            self.record()

    def record(self) -> None:
        """Write the measured times, unless the schedule is decided: then it no longer changes."""
        if self.decided:
            return
        self.schedule = replace(
            self.schedule,
            spent_s=round(self._spent(), 3),
            step_s=round(self._step_s(), 6),
            restart_s=round(self._restart_s(), 3),
        )
        self._recorded_at = self._clock()
        if self._first:
            write(self._run, self.schedule)

    def decay_due(self, made: int) -> bool:
        """Whether the decay begins after `made` steps."""
        if self.decided:
            return False
        if self._several:
            if made % _ASK_EVERY:
                return False
            return bool(multihost_utils.broadcast_one_to_all(np.int32(self._due(made))))
        return self._due(made)

    def _due(self, made: int) -> bool:
        if made < LEAST_STEPS or not self._step_s():
            return False
        left, share = self._steps_left(), self.schedule.decay_fraction
        due = left * (1 - share) <= share * made
        if due:
            self._stopped_at = self._clock()
        return due

    def decide(self, made: int) -> None:
        """Decide the number of steps, and write the schedule."""
        self.record()
        decided = self.schedule.decide(made, max(self._steps_left(), LEAST_STEPS))
        self.schedule = self._agreed(decided)
        if self._first:
            write(self._run, self.schedule)

    def _spent(self) -> float:
        return self._before + self._clock() - self._started

    def _step_s(self) -> float:
        """Seconds per step over the later half of this attempt, evaluations and checkpoints included.

        If this attempt is too short for an average, the value of an earlier one is used: a single slow step
        would start the decay.
        """
        last = len(self._steps_at) - 1
        if last < (_ENOUGH if self._earlier_step_s else 2):
            return self._earlier_step_s
        middle = last // 2
        return (self._steps_at[last] - self._steps_at[middle]) / (last - middle)

    def _restart_s(self) -> float:
        """Time of this launch plus that saved by JAX's cache, because the decay's step is another program."""
        here = self._steps_at[0] - self._began + self._saved if self._steps_at else 0.0
        return max(here, self.schedule.restart_s)

    def _end_s(self) -> float:
        """Time of last checkpoint and export: about twice that of the checkpoint before the decay."""
        return 2 * (self._clock() - self._stopped_at) if self._stopped_at else 0.0

    def _steps_left(self) -> int:
        left = 60 * self.schedule.minutes - self._spent() - self._restart_s() - self._end_s()
        return max(int(left / self._step_s()), 0)

    def _agreed(self, mine: Schedule) -> Schedule:
        """The schedule of the first process, for all processes, which must compile the same program."""
        if not self._several:
            return mine
        text = np.zeros(_TEXT, np.uint8)
        written = json.dumps(as_json(mine)).encode()
        text[: len(written)] = np.frombuffer(written, np.uint8)
        of_first = bytes(np.asarray(multihost_utils.broadcast_one_to_all(text))).rstrip(b"\0")
        return of_json(json.loads(of_first))
