"""`Watcher`, which judges results and reports events.

Results are processed one after the other, in the order in which they arrive. Questions to the model are
answered together, which does not change the output: a stream gives the same output however it is cut into
batches.
"""

import math
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.answer.conditions import Given
from ping_llm.answer.context import Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import DAY_US, HOUR_US, NO_REPLY
from ping_llm.watch import expect
from ping_llm.watch.alarms import Alarm, Alarms, alarm_of
from ping_llm.watch.clock import Clock, Rate
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.past import DUPLICATE, Past
from ping_llm.watch.results import (
    ACCEPTED,
    ANOTHER,
    BACK,
    DUPLICATED,
    JUMPED,
    LATE,
    SILENT,
    USED,
    Output,
    Seen,
)
from ping_llm.watch.sequential import (
    CALM,
    LEAST_PAST,
    LEAST_RESULTS,
    LOSS,
    Calibration,
    Reference,
    bets,
    calmer,
    group_of,
    normal_score,
)

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Number of results after which the calibration takes effect again.
_EPOCH = 1024
#: Largest number of questions answered together.
_TOGETHER = 128
#: Smallest change worth an alarm, in standard deviations of the pair; smaller ones are its usual variation,
#: such as that by the hour.
LEAST_STANDARD = 6.0

#: Smallest number of results per day that is assumed of a stream, and the number before its rate is known.
_LEAST_PER_DAY, _FIRST_PER_DAY = 1000.0, 100_000.0


@dataclass(frozen=True)
class _Waiting:
    """A result whose question waits to be asked together with others."""

    question: Question
    number: int
    time: int
    rtt: float
    taken: str


class Watcher:
    """Compares a stream of measurements with the expectations of a model, and reports changes as events.

    `add` returns `seen`, one item per result (`expected` 5 %, median and 95 % in ms, `failure`,
    `judged.tail`, `judged.bits`, `taken`), and `events`, JSON objects as in alarms.jsonl (docs/watch.md).
    `save` and `restore` transfer the whole state to another process.

    Args:
      model: a loaded model. The history of each source begins with the model's data, if it has any.
      options: see `WatchOptions`.
      conditions: conditions that all results share, such as {"size": 64}: `size`, `msm_id`, `probe_id`
        or `throughput`.
    """

    def __init__(self, model: "Model", options: WatchOptions = WatchOptions(), conditions: Given = None):
        self._conditions = expect.conditions_of(model, conditions)
        self.model, self.options = expect.steady(model), options
        self.past = Past(options.pair_results, options.source_results, expect.columns_of_pairs() | _TESTS)
        self.alarms = Alarms(self.past, options)
        self.calibration = Calibration()
        self.clock = Clock(options.jump_hours)
        self.counts = dict.fromkeys(
            ("results", LATE, DUPLICATED, JUMPED, "questions", "forgotten pairs", "lost"), 0
        )
        self._rate = Rate()
        self._threshold = self._new_threshold()
        self._waiting: dict[int, _Waiting] = {}
        #: Active alarms by pair, and events to report: number of the result, copy of the alarm, time, reason.
        self._active: dict[int, Alarm] = {}
        self._to_tell: list[tuple[int, Alarm, int, str]] = []
        self._out = Output()

    def add(self, results: Columns) -> Output:
        """Process results; return all of them judged, and the events."""
        src = results.src.tobytes()
        dst = results.dst.tobytes()
        times, rtts = results.time.tolist(), results.rtt.tolist()
        for row in range(len(results)):
            place = 16 * row
            self._take(src[place : place + 16], dst[place : place + 16], times[row], rtts[row])
            if self.counts["results"] % _EPOCH == 0:
                self._settle()
        self._flush()
        self._tell()
        out, self._out = self._out, Output()
        out.seen.sort(key=lambda seen: seen.number)
        return out

    def _settle(self) -> None:
        """Apply the changes that occur at fixed numbers of results, so that batches do not matter."""
        self._flush()
        self.calibration.settle()
        self._rate.settle(self.clock.now, self.counts["results"])
        self._threshold = self._new_threshold()
        for alarm in list(self._active.values()):
            if self.clock.now - alarm.last > max(DAY_US, self.options.accept_hours * HOUR_US):
                self._end(alarm, self.counts["results"], self.clock.now, SILENT)
        self._tell()
        before = self.past.pairs.size
        moved = self.past.forget(self.options.most_pairs, self._active)
        if moved is not None:
            self.counts["forgotten pairs"] += before - self.past.pairs.size
            for alarm in self._active.values():
                alarm.pair = int(moved[alarm.pair])
            self._active = {alarm.pair: alarm for alarm in self._active.values()}
            self.alarms.renumber(moved)
        self.alarms.count_pairs(self.clock.now)

    def _tell(self) -> None:
        """Report the alarms that began and ended, in the order of the results that caused them."""
        for _, alarm, time, why in sorted(self._to_tell, key=lambda each: each[0]):
            self._out.events += self.alarms.end(alarm, time, why) if why else self.alarms.begin(alarm)
        self._to_tell = []

    def _new_threshold(self) -> float:
        per_day = max(self._rate.per_day, _LEAST_PER_DAY) if self._rate.per_day else _FIRST_PER_DAY
        return math.log(max(3.0 * per_day / self.options.false_alarms_per_day, 10.0))

    def _take(self, src: bytes, dst: bytes, time: int, rtt: float) -> None:
        number = self.counts["results"]
        self.counts["results"] += 1
        self.counts["lost"] += rtt == NO_REPLY
        believed = self.clock.believes(time)
        pair, new_source = self.past.pair_of(src, dst)
        if new_source:
            self._begin(src, time)
        if pair in self._waiting:
            self._flush()  # this result depends on the pair's waiting answer
        row = self.past.pairs.columns
        count = int(row["count"][pair])
        late = count > 0 and time <= int(row["times"][pair, count - 1])
        taken = USED
        question = self._question_if_due(pair, src, dst, time) if believed and not late else None
        if believed:
            if self.past.push(pair, time, rtt) == DUPLICATE:
                self.counts[DUPLICATED] += 1
                self._out.seen.append(Seen(number, time, src, dst, rtt, DUPLICATED))
                return
            row["heard"][pair] = max(int(row["heard"][pair]), time)
            row["results"][pair] += 1
            if late:
                taken = LATE
        else:
            taken = JUMPED
        if taken != USED:
            self.counts[taken] += 1
        if question is None and int(row["asked_at"][pair]) < 0:
            # Late or with a wrong clock, and the pair has no answer yet.
            question = expect.question_of(src, dst, time, self.past.context(pair, time), self._conditions)
        if question is not None:
            row["asked_at"][pair], row["asked_after"][pair] = time, int(row["results"][pair])
            row["amount"][pair] = count
            self._waiting[pair] = _Waiting(question, number, time, rtt, taken)
            if len(self._waiting) >= _TOGETHER:
                self._flush()
        else:
            answer = expect.kept(row["values"][pair], row["failure"][pair])
            self._judge(pair, number, time, rtt, taken, answer, fresh=False)

    def _question_if_due(self, pair: int, src: bytes, dst: bytes, time: int) -> Question | None:
        """Return the question about a result, before it is kept, if the pair's answer is due."""
        row = self.past.pairs.columns
        asked_at, asked_after = int(row["asked_at"][pair]), int(row["asked_after"][pair])
        options = self.options
        if not expect.is_due(
            asked_at, asked_after, int(row["results"][pair]) + 1, time, options.refresh, options.refresh_hours
        ):
            return None
        if pair in self._active or row["test"][pair].max() > expect.SUSPICIOUS:
            return None
        return expect.question_of(src, dst, time, self.past.context(pair, time), self._conditions)

    def _begin(self, src: bytes, time: int) -> None:
        """Load the history of a new source from the model's data."""
        if self.model.data is None:
            return
        asked = Question(Prefix.of(np.frombuffer(src, np.uint8)), None, time)
        known = self.model.data.history([asked]).columns
        known = known.take(known.time < time).sorted_by_time()
        source = known.src.tobytes(), known.dst.tobytes()
        for number, (at, rtt) in enumerate(zip(known.time.tolist(), known.rtt.tolist(), strict=True)):
            place = slice(16 * number, 16 * number + 16)
            other, _ = self.past.pair_of(source[0][place], source[1][place])
            self.past.push(other, at, rtt)
            self.past.pairs["heard"][other] = at

    def _flush(self) -> None:
        """Ask the waiting questions, and judge their results."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        self.counts["questions"] += len(waiting)
        answers = expect.ask(self.model, [each.question for each in waiting.values()])
        row = self.past.pairs.columns
        for (pair, each), answer in zip(waiting.items(), answers, strict=True):
            row["values"][pair] = answer.quantile(expect.LEVELS)
            row["failure"][pair] = answer.failure
            self._judge(pair, each.number, each.time, each.rtt, each.taken, answer, fresh=True)

    def _judge(
        self, pair: int, number: int, time: int, rtt: float, taken: str, answer: RttDistribution, fresh: bool
    ) -> None:
        judged = expect.judge(answer, rtt)
        row = self.past.pairs.columns
        low, middle, high = answer.quantile((0.05, 0.5, 0.95)).tolist() if fresh else row["values"][
            pair, [expect.LOW, expect.MIDDLE, expect.HIGH]
        ].tolist()  # fmt: skip
        src, dst = self.past.address(int(row["src"][pair])), self.past.address(int(row["dst"][pair]))
        self._out.seen.append(
            Seen(number, time, src, dst, rtt, taken, (low, middle, high), answer.failure, judged, fresh)
        )
        if taken == USED:
            if fresh:
                self._refer(pair, time)
            self._test(pair, number, time, rtt, answer.failure, (low, middle, high))
            if pair not in self._active and row["test"][pair].max() <= expect.SUSPICIOUS:
                self._refer(pair, time + 1)

    def _test(
        self,
        pair: int,
        number: int,
        time: int,
        rtt: float,
        failure: float,
        expected: tuple[float, float, float],
    ) -> None:
        row = self.past.pairs.columns
        if int(row["count"][pair]) <= LEAST_PAST:  # includes this result
            return
        reference = Reference(*row["reference"][pair].tolist())
        group, tails, calibrated, standard = group_of(int(row["amount"][pair])), None, None, 0.0
        if rtt != NO_REPLY:
            score = float(self._scores(pair, rtt))
            tails, standard = reference.tails(score), reference.standard(score)
            calibrated = self.calibration.tails(group, tails)
        rates = reference.low, reference.high
        bet = bets(calibrated, self.calibration.failure(reference.failure), standard, rates)
        alarm = self._active.get(pair)
        if alarm is None:
            self.calibration.learn(group, tails, reference.failure)
        else:
            self._go_on(alarm, number, time, rtt, bet[alarm.direction])
            if pair not in self._active:
                return
        test, since, results = row["test"][pair], row["since"][pair], row["run"][pair]
        highest, which = 0.0, -1
        for direction in range(3):
            if test[direction] <= 0.0:
                test[direction], since[direction], results[direction] = 0.0, time, 0
            test[direction] += bet[direction]
            results[direction] += 1
            if alarm is not None and direction == alarm.direction:
                continue
            if test[direction] > highest:
                highest, which = float(test[direction]), direction
        if which >= 0 and highest >= self._threshold and results[which] >= LEAST_RESULTS:
            onset = int(since[which])
            of_pair = self._since(pair, onset)
            replies = of_pair[of_pair != NO_REPLY]
            observed = float(np.median(replies)) if len(replies) else None
            if which != LOSS and observed is not None and not self._matters(pair, observed, expected[1]):
                row["test"][pair] = 0.0
                row["asked_after"][pair] = 0  # the next result renews the answer
                return
            if alarm is not None:
                self._end(alarm, number, time, ANOTHER)
            made = Alarm(
                pair, which, onset, time, expected, failure, observed, len(of_pair),
                int((of_pair == NO_REPLY).sum()), time,
            )  # fmt: skip
            self._active[pair] = made
            self._to_tell.append((number, replace(made), time, ""))

    def _matters(self, pair: int, observed: float, expected: float) -> bool:
        """Return whether a change is worth an alarm: in ms, as a share, and beside the usual variation."""
        reference = Reference(*self.past.pairs.columns["reference"][pair].tolist())
        usual = abs(reference.standard(float(self._scores(pair, observed)))) < LEAST_STANDARD
        least = max(self.options.least_ms, self.options.least_share * expected)
        return not usual and abs(observed - expected) >= least

    def _scores(self, pair: int, rtt: "np.ndarray | float") -> np.ndarray:
        """Return the scores of results under the kept answer of a pair."""
        values = self.past.pairs.columns["values"][pair]
        return normal_score(rtt, *values[[expect.LOW, expect.MIDDLE, expect.HIGH]].tolist())

    def _refer(self, pair: int, before: int) -> None:
        """Set the reference of the next result: the pair's results before a time, under its answer."""
        row = self.past.pairs.columns
        count = int(row["count"][pair])
        known = row["rtts"][pair, :count][row["times"][pair, :count] < before]
        replies = known[known != NO_REPLY]
        scores = self._scores(pair, replies)
        made = Reference.of(scores, len(known) - len(replies), float(row["failure"][pair]))
        row["reference"][pair] = astuple(made)

    def _since(self, pair: int, onset: int) -> np.ndarray:
        row = self.past.pairs.columns
        count = int(row["count"][pair])
        out: np.ndarray = row["rtts"][pair, :count][row["times"][pair, :count] >= onset]
        return out

    def _go_on(self, alarm: Alarm, number: int, time: int, rtt: float, bet: float) -> None:
        """Update an alarm with another result of its pair, and end it if that is due."""
        if alarm.calm == 0.0:
            alarm.calm_since = time
        alarm.calm = calmer(alarm.calm, bet)
        alarm.results += 1
        alarm.lost += rtt == NO_REPLY
        alarm.last = time
        if alarm.calm >= CALM:
            self._end(alarm, number, time, BACK)
        elif time - alarm.onset > self.options.accept_hours * HOUR_US:
            self._end(alarm, number, time, ACCEPTED)

    def _end(self, alarm: Alarm, number: int, time: int, why: str) -> None:
        del self._active[alarm.pair]
        self._to_tell.append((number, replace(alarm), time, why))
        if why == ANOTHER:
            return
        row = self.past.pairs.columns
        row["test"][alarm.pair] = 0.0
        if why == BACK:
            # The answer from before the change is expected again, and not the results during the change.
            self.past.drop(alarm.pair, alarm.onset, alarm.calm_since)
            row["asked_at"][alarm.pair], row["asked_after"][alarm.pair] = (
                time,
                int(row["results"][alarm.pair]),
            )
            self._refer(alarm.pair, time + 1)
        else:
            self.past.drop(alarm.pair, 0, alarm.onset)
            row["asked_after"][alarm.pair] = 0  # the next result renews the answer

    def save(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and JSON from which `restore` continues, to the last bit."""
        clock = {"now": self.clock.now, "other": self.clock.other, "agree": self.clock.agree}
        more = {"counts": self.counts, "clock": clock, "rate": vars(self._rate), "alarms": self.alarms.save()}
        arrays = self.past.save() | self.calibration.save()
        active = [asdict(alarm) for alarm in self._active.values()]
        return arrays, more | {"threshold": self._threshold, "active": active}

    def restore(self, arrays: dict[str, np.ndarray], saved: dict[str, Any]) -> None:
        self.past.restore(arrays)
        self.calibration = Calibration.restored(arrays)
        self.clock = Clock(self.options.jump_hours, **saved["clock"])
        self.counts |= saved["counts"]
        self._rate = Rate(**saved["rate"])
        self._threshold = saved["threshold"]
        self.alarms.restore(saved["alarms"])
        self._active = {each["pair"]: alarm_of(each) for each in saved["active"]}

    @property
    def results_per_day(self) -> float:
        return self._rate.per_day


#: Columns of the test of each pair. Per direction: statistic, and time and number of results since it was 0.
_TESTS: dict[str, tuple[type, int | None, float]] = {
    "test": (np.float64, 3, 0.0),
    "since": (np.int64, 3, 0),
    "run": (np.int32, 3, 0),
    "reference": (np.float64, 6, 1.0),
}
