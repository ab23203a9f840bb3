"""Training within a time budget: when the decay begins, and that an interrupted training ends alike."""

import itertools
import json
import shutil
import signal
from dataclasses import replace

import jax
import pytest
from small_training import NO_TIME, SMALL, command, in_time_config, losses, start, wait_for, what_was_learnt

from ping_llm.errors import PingError, UsageError
from ping_llm.model import ledger
from ping_llm.train import runs, schedule
from ping_llm.train.run import train
from ping_llm.train.schedule import LEAST_STEPS, UNENDING, Budget, Schedule

SAVED = "/jax/compilation_cache/compile_time_saved_sec"
ASKED = Schedule(minutes=1.0, learning_rate=0.002, warmup_steps=4, decay_fraction=0.25)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def _constant_part(run, recorded, clock, launch, step_s):
    """Steps until the decay is due, of a try that took `launch` seconds to its first step."""
    started = clock.now
    budget = Budget(run, recorded, started, clock)
    budget.begin(clock.now)
    clock.now += launch
    made = 0
    while not budget.decay_due(made):
        clock.now += step_s
        made += 1
        budget.step_made()
    return budget, made


def test_the_decay_takes_its_share_of_the_steps_and_ends_in_time(tmp_path):
    clock = Clock()
    budget, made = _constant_part(tmp_path, ASKED, clock, launch=9.9, step_s=0.1)
    clock.now += 1.0  # the checkpoint
    budget.decide(made)
    plan = schedule.read(tmp_path)
    assert plan == budget.schedule
    # 60 s, less 10 for each of two launches, are 400 steps of 0.1 s; the decay gets a quarter of them.
    assert plan.decay_from == made == pytest.approx(300, abs=2)
    # The checkpoint took 1 s; 2 s more are kept for the end.
    assert plan.steps - made == pytest.approx(70, abs=2)
    assert clock.now - 1000 + 10 + 0.1 * (plan.steps - made) + 2 == pytest.approx(60, abs=0.2)


def test_time_of_earlier_tries_counts_and_time_between_them_does_not(tmp_path):
    clock = Clock()
    budget = Budget(tmp_path, ASKED, clock.now, clock)
    budget.begin(clock.now)
    for _ in range(200):
        clock.now += 0.1
        budget.step_made()
    killed = schedule.read(tmp_path)
    assert killed.spent_s == pytest.approx(20, abs=5.1)  # recorded every five seconds
    assert not killed.decided
    clock.now += 86400
    _, made = _constant_part(tmp_path, killed, clock, launch=0.0, step_s=0.1)
    assert made == pytest.approx(0.75 * (600 - killed.spent_s / 0.1), abs=3)


def test_one_slow_step_of_a_resumed_try_does_not_start_the_decay(tmp_path):
    clock = Clock()
    budget = Budget(tmp_path, replace(ASKED, spent_s=20.0, step_s=0.01), clock.now, clock)
    budget.begin(clock.now)
    for made in range(2001, 2010):
        clock.now += 2.0 if made == 2003 else 0.01
        budget.step_made()
        assert not budget.decay_due(made)


def test_a_compilation_that_the_cache_saved_counts_for_the_restart(tmp_path):
    clock = Clock()
    budget = Budget(tmp_path, ASKED, clock.now, clock)
    budget.begin(clock.now)
    for seconds in (0.5, 7.0, 2.0):
        jax.monitoring.record_event_duration_secs(SAVED, seconds)
    clock.now += 3.0
    budget.step_made()
    jax.monitoring.record_event_duration_secs(SAVED, 100.0)  # of another program, later
    budget.record()
    assert schedule.read(tmp_path).restart_s == 10.0


def test_a_decided_schedule_is_not_rewritten(tmp_path):
    clock = Clock()
    budget, made = _constant_part(tmp_path, ASKED, clock, launch=1.0, step_s=0.1)
    budget.decide(made)
    written = (tmp_path / "schedule.json").read_bytes()
    again = Budget(tmp_path, schedule.read(tmp_path), clock.now, clock)
    again.begin(clock.now)
    for step in range(500):
        clock.now += 1.0
        again.step_made()
        assert not again.decay_due(step + 1)
    again.record()
    assert (tmp_path / "schedule.json").read_bytes() == written


def _rates(words, config):
    """MaxText's own schedule for the words, at each step."""
    from maxtext.utils import maxtext_utils

    from ping_llm.train.run import import_seam

    full = import_seam().read_config(config, words, config.parent / "run")
    made = maxtext_utils.create_learning_rate_schedule(full)
    return lambda step: float(made(step)), full.steps


@pytest.mark.parametrize("decay_from", [20, 4, 3])
def test_maxtext_makes_the_rates_that_were_decided(decay_from, config):
    """Before the decay those of the constant part, also where that ended in the warm-up; then they fall."""
    constant, unending = _rates(ASKED.words(), config)
    whole, steps = _rates(ASKED.decide(decay_from, 10).words(), config)
    assert (unending, steps) == (UNENDING, decay_from + 10)
    assert [constant(step) for step in (0, 2, 4, 10_000_000)] == pytest.approx([0, 0.001, 0.002, 0.002])
    for step in range(decay_from):
        assert whole(step) == pytest.approx(constant(step), rel=1e-6)
    falling = [whole(step) for step in range(decay_from, steps)]
    peak = whole(decay_from - 1)
    assert falling[0] == pytest.approx(peak, rel=1e-6)
    assert all(before > after for before, after in itertools.pairwise(falling))
    assert falling[-1] == pytest.approx(0.1 * peak)


@pytest.mark.parametrize(
    ("part", "steps"), [(7, 10), (29, 100), (190, UNENDING), (57, 58), (0, 3), (4_999, 9_998)]
)
def test_a_share_of_the_steps_is_exact(part, steps):
    assert int(steps * schedule.share(part, steps)) == part


def test_a_schedule_of_another_version(tmp_path):
    schedule.write(tmp_path, ASKED)
    assert schedule.read(tmp_path) == ASKED
    (tmp_path / "schedule.json").write_text('{"format": 2}')
    with pytest.raises(PingError, match=r"schedule\.json has format 2; this version reads 1"):
        schedule.read(tmp_path)


@pytest.fixture
def config(tmp_path):
    return in_time_config(tmp_path / "small.yml")


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestTrainings:
    def test_a_budget_of_nothing_ends_with_a_model(self, in_time):
        plan = schedule.read(in_time)
        assert (plan.decay_from, plan.steps) == (LEAST_STEPS, 2 * LEAST_STEPS)
        assert list(losses(in_time)) == list(range(plan.steps))
        about = runs.read(in_time)
        assert (about["state"], about["steps"], about["minutes"]) == ("finished", plan.steps, NO_TIME)
        assert (in_time / "export" / "model.safetensors").exists()
        records = [json.loads(line) for line in (in_time / "metrics.jsonl").read_text().splitlines()]
        rates = [record["learning_rate"] for record in records]
        assert rates == sorted(rates[:5]) + [rates[4]] * 5 + rates[10:]
        assert rates[0] < rates[4] == pytest.approx(rates[10], rel=1e-6)
        assert rates[10:] == sorted(rates[10:], reverse=True)
        assert rates[-1] == pytest.approx(0.1 * rates[4])

    def test_killed_and_run_again(self, in_time, rows, config, tmp_path):
        """kill -9 at the constant rate and in the decay: the same steps with the same losses, to the bit."""
        run = tmp_path / "run"
        words = command(run, rows, "--minutes", str(NO_TIME))
        words = [word for word in words if word not in SMALL]
        words[words.index("tiny")] = str(config)
        for step in (4, LEAST_STEPS + 3):
            training = start(words)
            wait_for(run, step, training)
            training.send_signal(signal.SIGKILL)
            training.communicate()
        plan = (run / "schedule.json").read_bytes()
        assert schedule.read(run).decided
        assert train(str(config), run=run, rows=rows, minutes=NO_TIME).state == "finished"
        assert (run / "schedule.json").read_bytes() == plan
        assert what_was_learnt(run) == what_was_learnt(in_time)

    def test_killed_before_the_decision_was_written(self, in_time, rows, config, tmp_path):
        """The time is over and the last checkpoint at the constant rate is there: the decay begins now."""
        run = shutil.copytree(in_time, tmp_path / "run")
        for step in ledger.steps(run / "checkpoints"):
            if step >= LEAST_STEPS:
                shutil.rmtree(run / "checkpoints" / str(step))
        plan = schedule.read(run)
        schedule.write(run, replace(plan, decay_from=None, steps=None))
        train(str(config), run=run, rows=rows, minutes=NO_TIME)
        assert schedule.read(run).decay_from == plan.decay_from
        assert what_was_learnt(run) == what_was_learnt(in_time)

    def test_a_finished_one_says_so(self, in_time, rows, config, tmp_path):
        run = shutil.copytree(in_time, tmp_path / "run")
        outcome = train(str(config), run=run, rows=rows, minutes=NO_TIME)
        assert (outcome.state, outcome.step) == ("already", 2 * LEAST_STEPS - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "minutes", "says"),
    [
        (["lr_schedule_type=cosine"], 1, "add lr_schedule_type=wsd"),
        (["steps=100"], 1, "steps=100 and --minutes exclude each other"),
        (["wsd_decay_steps_fraction=0"], 1, "must be above 0 and below 1"),
        (["enable_checkpointing=false"], 1, "enable_checkpointing=true"),
        ([], 0, "--minutes 0: it must be above 0"),
        ([], float("nan"), "it must be above 0"),
    ],
)
def test_a_budget_that_cannot_work(words, minutes, says, rows, config, tmp_path):
    with pytest.raises(UsageError, match=says):
        train(str(config), words, run=tmp_path / "run", rows=rows, minutes=minutes)
    assert not (tmp_path / "run").exists()
