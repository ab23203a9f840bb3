"""The expectation for a pair: the model's answer, kept for a while.

An answer of the stack takes 10 to 30 ms on two cores, so a stream of 500 results per second cannot have one
per result. The answer for a pair is kept as quantiles and renewed after `refresh` results or `refresh_hours`,
and more often while a pair is new. It is not renewed while the pair's test is above SUSPICIOUS or has raised
an alarm: an answer that has seen the change would expect it.

A fresh answer is that of `Model.rtt_many` (of the `steady` model), with the kept results of the pair and its
source as context.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.conditions import NO_CONDITIONS, Conditions, Given
from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import WORST_BITS, RttDistribution
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.schema import HOUR_US, NO_REPLY

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Levels of the kept quantiles: 131, denser in the tails, including 5 %, the median and 95 %.
_TAIL = np.array([0.0, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075])
LEVELS = np.unique(
    np.concatenate([_TAIL, np.linspace(0.01, 0.99, 113), [0.05, 0.5, 0.95], 1 - _TAIL]).round(6)
)
LOW, MIDDLE, HIGH = (int(np.searchsorted(LEVELS, level)) for level in (0.05, 0.5, 0.95))

#: Test statistic, a logarithm, above which an answer is not renewed.
SUSPICIOUS = float(np.log(3.0))


@dataclass(frozen=True)
class Judged:
    """A result compared with its expectation.

    Attributes:
      tail: two-sided tail probability, as in `query score`.
      bits: -log2 of the probability of its millisecond, or of no reply.
    """

    tail: float
    bits: float


def columns_of_pairs() -> dict[str, tuple[type, int | None, float]]:
    """Return the columns kept of each pair's answer."""
    return {
        "values": (np.float32, len(LEVELS), 0.0),
        "failure": (np.float32, None, 0.0),
        "asked_at": (np.int64, None, -1),
        "asked_after": (np.int32, None, 0),
        "amount": (np.int32, None, 0),
        "results": (np.int32, None, 0),
    }


def is_due(asked_at: int, asked_after: int, results: int, time: int, refresh: int, hours: float) -> bool:
    """Return whether a pair's answer must be renewed.

    Args:
      asked_at: time of the kept answer, -1 for none.
      asked_after: number of results of the pair when the kept answer was made.
      results: number of results of the pair now.
    """
    if asked_at < 0 or abs(time - asked_at) > hours * HOUR_US:
        return True
    return results - asked_after >= min(refresh, max(asked_after, 1))


def conditions_of(model: "Model", given: Given) -> Conditions:
    """Return the conditions that all results of a stream share, if the model was trained on them."""
    conditions = Conditions.of(given)
    if conditions.errors is not None:
        raise UsageError(
            "errors must not be given to a watch: each result has its own, which is not known before it"
        )
    model.check_conditions(conditions)
    return conditions


def question_of(
    src: bytes,
    dst: bytes,
    time: int,
    past: tuple[np.ndarray, np.ndarray, np.ndarray],
    conditions: Conditions = NO_CONDITIONS,
) -> Question:
    """Return the question that a result answers, with the results kept before it as context."""
    known_dst, known_time, known_rtt = past
    return Question(
        Prefix.of(np.frombuffer(src, np.uint8)),
        Prefix.of(np.frombuffer(dst, np.uint8)),
        time,
        Context.of(src, known_dst, known_time, known_rtt),
        conditions,
    )


def steady(model: "Model") -> "Model":
    """Return the model for a watch: the weights of its stack do not follow the pair's newest results.

    If they do, an answer made right after a change has begun treats the change as usual: of 30 pairs that
    rise by 45 ms, 18 to 23 were found in three streams, and 21 to 26 if they do not.
    """
    if model.stack is None:
        return model
    asked = copy(model)
    asked.stack = model.stack.without_own_past()
    return asked


def ask(model: "Model", questions: Sequence[Question]) -> list[RttDistribution]:
    """Return the answers to questions, asked together so that equal contexts are read once."""
    return [answer.distribution for answer in model.rtt_many(questions)]


def kept(values: np.ndarray, failure: float) -> RttDistribution:
    """Return the distribution of kept quantiles."""
    edges = np.maximum.accumulate(values.astype(np.float64) + np.arange(len(values)) * 1e-7)
    return RttDistribution(edges, LEVELS, float(failure))


def judge(distribution: RttDistribution, rtt: float) -> Judged:
    if rtt == NO_REPLY:
        bits = -np.log2(max(distribution.failure, 2.0**-WORST_BITS))
        return Judged(distribution.failure, float(bits))
    edges, levels = distribution.edges, distribution.levels
    low = float(np.floor(rtt))
    below, first, last = np.interp((rtt, low, low + 1.0), edges, levels).tolist()
    probability = (1.0 - distribution.failure) * (last - first)
    bits = -np.log2(max(probability, 2.0**-WORST_BITS))
    return Judged(min(1.0, 2 * min(below, 1 - below)), float(bits))
