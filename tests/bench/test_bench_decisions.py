"""What the benchmarks of decisions count is what they say."""

import os

import numpy as np
import pytest

from ping_llm.answer.distribution import RttDistributions
from ping_llm.bench import detection, plan, rank, score
from ping_llm.bench.watch import steady
from ping_llm.errors import PingError
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.watch.sequential import LOSS, UP

HOUR = 3_600_000_000


def one_pair(rtt):
    stream = steady(len(rtt), 1)
    return Columns(
        stream.time[0] + np.arange(len(rtt)) * HOUR // 4, stream.src, stream.dst, np.array(rtt, float)
    )


def test_alarms_are_matched_with_changes():
    columns = one_pair([20.0] * 40 + [90.0] * 20 + [20.0] * 240)
    changes = (detection.Change(40, 0, UP), detection.Change(250, 0, LOSS))
    stream = detection.ResultStream(columns, np.zeros(300, np.int64), changes)
    found = [detection.Found(44, 0, UP), detection.Found(52, 0, UP), detection.Found(200, 0, UP)]
    figures = detection.score(stream, found)
    assert figures["changes"] == 2
    assert figures["found"] == 0.5
    assert figures["delay_results"] == 5
    assert figures["delay_hours"] == 1.0
    assert figures["false_per_day"] == pytest.approx(1 / stream.days, abs=0.01)


def test_the_simple_rules_wait_for_three_in_a_row():
    rtt = [20.0 + 0.1 * (number % 5) for number in range(60)]
    rtt[20] = rtt[21] = 90.0  # two are not enough
    rtt[40:46] = [90.0] * 6
    rtt[50:54] = [NO_REPLY] * 4
    stream = detection.ResultStream(one_pair(rtt), np.zeros(60, np.int64), ())
    expected = [detection.Found(42, 0, UP), detection.Found(52, 0, LOSS)]
    assert detection.by_threshold(stream, 50.0) == expected
    assert detection.by_deviation(stream, 12.0) == expected


def test_added_changes_are_where_they_are_said_to_be():
    calm = steady(120_000, 200)
    stream = detection.ResultStream.of(Columns(calm.time, calm.src, calm.dst, np.full(120_000, 50.0)), None)
    wanted = [change for change in stream.changes if change.wanted]
    assert len(wanted) > 10
    for change in wanted:
        now = stream.columns.rtt[change.row]
        # An outage may come while a network is slow already.
        assert now == NO_REPLY or (change.direction == UP and now >= 90)
        before = np.flatnonzero(stream.pair[: change.row] == change.pair)[-1]
        assert stream.columns.rtt[before] != now


def test_candidates_are_held_out_and_the_least_cost_is_chosen():
    stream = steady(3_000, 300)
    asked = rank.groups(stream, 5)
    held = Ids(pairs_of(asked.queries.src, asked.queries.dst))
    assert not held.has(pairs_of(asked.train.src, asked.train.dst)).any()
    assert asked.truth.shape == (5, 10)
    middle = asked.truth.reshape(-1, 1)
    exact = RttDistributions(np.hstack([middle, middle + 0.1]), np.array([0.0, 1.0]), np.zeros(50))
    figures = rank.score(asked.truth, rank.chosen(exact))
    assert figures == {"fastest": 1.0, "regret_ms": 0.0, "median_regret_ms": 0.0}
    worst = rank.score(asked.truth, asked.truth.argmax(axis=1))
    assert worst["fastest"] == 0
    assert worst["regret_ms"] == pytest.approx(
        np.mean(asked.truth.max(axis=1) - asked.truth.min(axis=1)), abs=0.01
    )
    with pytest.raises(PingError, match="no source has 14"):
        rank.groups(steady(100, 5), 5)


def test_a_stack_and_the_packaged_model_are_ranked_beside_the_methods():
    names = ("by destination", "pair recent", "stack", "base")
    figures = rank.measure(steady(3_000, 300), 3, 20, names)
    assert set(figures["methods"]) == {*names, "by chance"}
    assert all(0 <= one["fastest"] <= 1 and one["regret_ms"] >= 0 for one in figures["methods"].values())


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores")
def test_scores_are_timed_by_process():
    figures = score.measure(score.ScoreBench(measurements=40))
    assert figures["measurements"] == 40
    assert figures["core_hours_per_billion"] == pytest.approx(
        1e9 / figures["one_core_per_cpu_s"] / 3600, abs=0.1
    )
    assert figures["2_processes_per_s"] > 0


def test_a_replay_measures_before_it_asks():
    replay = plan.of_stream(steady(3_000, 300), 6, 8)
    assert len(replay.first) == len(replay.second) == 48
    assert (replay.first.src == replay.second.src).all()
    assert (replay.first.dst == replay.second.dst).all()
    for number in np.unique(Ids(replay.first.src).of_rows):
        own = Ids(replay.first.src).of_rows == number
        assert replay.first.time[own].max() < replay.second.time[own].min()


def test_questions_of_the_query_bench_look_back_on_their_contexts():
    from ping_llm.bench.query import questions

    for question in questions(3, 32):
        assert len(question.context) == 32
        assert question.time > question.context.time.max()
        assert question.time < question.context.time.max() + 3_600_000_000
