"""Choice of the measurements to make next: those that are expected to make a set of questions most certain.

The uncertainty of an answer is the score that its own distribution expects: the CRPS, ∫ F (1 - F) dx up to
the timeout, in ms; or the entropy over millisecond bins, in bits. The model itself predicts the effect of a
measurement: the result is assumed to be one of a few equally probable values of the model's answer about it,
it is added to the source's measurements, and the source's questions are answered again.

Measurements are chosen greedily, the largest expected drop first. A chosen measurement is then assumed to
have its median as result. A measurement changes only the answers about its own source, because contexts of
other sources do not contain it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ping_llm.answer.conditions import COLUMNS, NO_CONDITIONS, Conditions
from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.past import Data
from ping_llm.answer.rank import TIMEOUT_MS
from ping_llm.errors import UsageError
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.progress import Progress

if TYPE_CHECKING:
    from ping_llm.answer.answering import RttAnswer
    from ping_llm.answer.model import Model

Measure = Literal["crps", "bits"]

#: Levels of the quantiles that are assumed as results of a measurement.
_OUTCOMES = (1 / 6, 1 / 2, 5 / 6)

#: Largest number of earlier measurements of a source that are used.
_LOOK_BACK = 500

#: One second in µs. The model sees whole seconds, so a visible measurement is at least one second earlier.
_SECOND = 1_000_000


@dataclass(frozen=True)
class Planned:
    """A measurement to make.

    Attributes:
      drop: expected decrease of the summed uncertainty of all questions, after the measurements before it.
      conditions: conditions that its candidate states.
    """

    src: str
    dst: str
    drop: float
    conditions: Conditions = NO_CONDITIONS

    def as_dict(self) -> dict[str, Any]:
        return {"src_addr": self.src, "dst_addr": self.dst, "drop": self.drop} | self.conditions.stated


@dataclass(frozen=True)
class Plan:
    """Measurements, the most useful first.

    Attributes:
      before, after: mean uncertainty of the questions, ms or bits; `after` is `before` less the drops.
      by: `crps` or `bits`.
      budget: number of requested measurements.
      is_exhausted: whether fewer are planned, because no other candidate is expected to help.
    """

    measurements: tuple[Planned, ...]
    questions: int
    candidates: int
    before: float
    after: float
    by: Measure
    budget: int
    is_exhausted: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "measurements": [each.as_dict() for each in self.measurements],
            "questions": self.questions,
            "candidates": self.candidates,
            "before": self.before,
            "after": self.after,
            "by": self.by,
            "budget": self.budget,
            "is_exhausted": self.is_exhausted,
        }


def uncertainty(distribution: RttDistribution, by: Measure, timeout_ms: float = TIMEOUT_MS) -> float:
    """Score that an answer expects of itself: CRPS in ms, or entropy in bits."""
    if by == "bits":
        bins = np.arange(np.ceil(timeout_ms) + 1)
        shares = np.diff(distribution.cdf(bins), append=1.0) * (1 - distribution.failure)
        shares = np.append(shares, distribution.failure)
        shares = shares[shares > 0]
        return float(-(shares @ np.log2(shares)))
    edges = np.unique(np.append(distribution.edges[distribution.edges < timeout_ms], timeout_ms))
    level = distribution.cdf(edges)
    low, high = level[:-1], level[1:]
    # Between two edges F is linear, so ∫ F (1 - F) is a polynomial of its values at both.
    inside = (low + high) / 2 - (low * low + low * high + high * high) / 3
    return float(inside @ np.diff(edges))


class _Source:
    """The questions, candidates and earlier measurements of one source."""

    def __init__(self, questions: Sequence[Question], candidates: Sequence[Question], context: Context):
        self.questions, self.candidates, self.context = list(questions), list(candidates), context

    def known(self, extra: tuple[Question, float] | None = None) -> Context:
        """Return the context, with one more measurement if given."""
        if extra is None:
            return self.context
        asked, rtt = extra
        assert asked.dst is not None
        times = [question.time for question in self.questions if question.time is not None]
        newest = int(self.context.time.max()) if len(self.context) else -1
        time = min(times) - _SECOND if times else max(newest, 0) + _SECOND
        dst = np.frombuffer(asked.dst.packed, np.uint8)[None]
        return Context.of(
            np.frombuffer(asked.src.packed, np.uint8),
            np.concatenate([self.context.dst, dst]),
            np.append(self.context.time, time),
            np.append(self.context.rtt, rtt),
            also=self._also(asked.conditions),
        )

    def _also(self, conditions: Conditions) -> dict[str, np.ndarray]:
        """The further columns of the context, extended by those of one more measurement."""
        stated = {COLUMNS[name]: value for name, value in conditions.stated.items()}
        names = [name for name in COLUMNS.values() if name in self.context.also or name in stated]
        return {name: np.append(self.context.column(name), stated.get(name, UNKNOWN)) for name in names}


def plan(
    model: "Model",
    questions: Sequence[Question],
    candidates: Sequence[Question],
    budget: int,
    *,
    by: Measure = "bits",
    data: Data | None = None,
) -> Plan:
    """Choose the candidates whose results are expected to help the questions most.

    Args:
      questions: pairs (and times) that answers are needed for. Contexts of their own are not used.
      candidates: pairs that can be measured, each at most once (the first conditions of a pair are used).
      budget: number of candidates to choose; fewer are chosen if no other is expected to help.
      data: probe rows with the sources' earlier measurements.
    """
    if budget < 1:
        raise UsageError("the budget must be at least 1 measurement")
    if not questions or not candidates:
        raise UsageError("plan needs at least one question and one candidate")
    if by not in ("crps", "bits"):
        raise UsageError(f"the uncertainty must be measured by crps or bits, not {by}")
    for asked in (*questions, *candidates):
        if asked.dst is None or not asked.dst.is_whole or not asked.src.is_whole:
            raise UsageError("questions and candidates of a plan must be pairs of whole addresses")
    sources = _sources(questions, candidates, data)
    state = _State(model, sources, by)
    before = sum(state.total)
    chosen: list[Planned] = []
    most = min(budget, len({(q.src, q.dst) for q in candidates}))
    with Progress("plan", most, "measurements") as progress:
        queue = [entry for number in range(len(sources)) if (entry := state.best(number)) is not None]
        heapq.heapify(queue)
        while queue and len(chosen) < budget:
            drop, number, place = heapq.heappop(queue)
            if drop >= 0:
                break  # the best candidate that is left would not help
            chosen.append(state.choose(number, place, -drop))
            progress.advance()
            if (entry := state.best(number)) is not None:
                heapq.heappush(queue, entry)
    # Not the uncertainty with every result at its median: that is lower than can be expected.
    after = before - sum(each.drop for each in chosen)
    count = len(questions)
    return Plan(
        tuple(chosen), count, len(candidates), before / count, after / count, by, budget, len(chosen) < most
    )


class _State:
    """Expected uncertainties after the measurements chosen so far."""

    def __init__(self, model: "Model", sources: Sequence[_Source], by: Measure):
        self._model, self._sources, self._by = model, sources, by
        self.total = self._totals([(source, source.context) for source in sources])

    def _ask(self, questions: Sequence[Question]) -> "list[RttAnswer]":
        return self._model.rtt_many(questions)

    def _totals(self, cases: Sequence[tuple[_Source, Context]]) -> list[float]:
        """Summed uncertainty of a source's questions, for each (source, context)."""
        asked = [
            replace(question, context=context) for source, context in cases for question in source.questions
        ]
        each = iter([uncertainty(answer.distribution, self._by) for answer in self._ask(asked)])
        return [sum(next(each) for _ in source.questions) for source, _ in cases]

    def best(self, number: int) -> tuple[float, int, int] | None:
        """(-drop, source, index) of the source's best candidate; None if no candidate is left."""
        source = self._sources[number]
        if not source.candidates:
            return None
        answers = self._ask([replace(asked, context=source.context) for asked in source.candidates])
        cases, share = [], []
        for asked, answer in zip(source.candidates, answers, strict=True):
            for rtt in answer.distribution.quantile(_OUTCOMES).tolist():
                cases.append((source, source.known((asked, min(rtt, TIMEOUT_MS)))))
            share.append(1 - answer.failure)  # a failure gives little information
        totals = np.array(self._totals(cases)).reshape(-1, len(_OUTCOMES))
        drops = np.array(share) * (self.total[number] - totals.mean(axis=1))
        place = int(np.argmax(drops))
        return -float(drops[place]), number, place

    def choose(self, number: int, place: int, drop: float) -> Planned:
        """Choose a candidate: its median is assumed as its result from then on."""
        source = self._sources[number]
        asked = source.candidates.pop(place)
        (answer,) = self._ask([replace(asked, context=source.context)])
        source.context = source.known((asked, min(answer.distribution.median, TIMEOUT_MS)))
        (self.total[number],) = self._totals([(source, source.context)])
        return Planned(str(asked.src), str(asked.dst), drop, asked.conditions)


def _sources(
    questions: Sequence[Question], candidates: Sequence[Question], data: Data | None
) -> list[_Source]:
    """Group questions and candidates by source; candidates of sources without a question are dropped."""
    of_source: dict[Any, tuple[list[Question], dict[Any, Question]]] = {}
    for asked in questions:
        of_source.setdefault(asked.src, ([], {}))[0].append(asked)
    for asked in candidates:
        if asked.src in of_source:
            of_source[asked.src][1].setdefault(asked.dst, asked)
    out = []
    for own, possible in of_source.values():
        context = Context.empty() if data is None else data.context(replace(own[0], dst=None), _LOOK_BACK)
        out.append(_Source(own, list(possible.values()), context))
    return out
