"""Explanation of an answer: the answers to the same question with less information.

Each of the most relevant measurements of the context is left out once. The question is also asked without
any context, with the pair's own past only, with everything but the pair's past, and about the two prefixes
instead of the addresses. The distance to the full answer is given in ms between medians and in bits: the
Kullback-Leibler divergence, the cost per result of using the reduced answer if the full one is right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.answer.answering import RttAnswer
from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.past import Data
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix, unpack_one
from ping_llm.measurements.times import moment_text

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Largest number of measurements that are left out one by one.
LEFT_OUT = 20

#: Largest context, in measurements; the most relevant ones are kept.
MOST = 2000

#: Bytes of the prefixes that are used instead of the addresses, by IP version: /16, and /48 for IPv6.
_PREFIX_BYTES = {4: 2, 6: 6}


@dataclass(frozen=True)
class Influence:
    """An answer from less information.

    Attributes:
      rests_on: the information that it uses, in words.
      answer: the answer.
      moved_ms: median of the full answer minus median of this one.
      bits: divergence of this answer from the full one.
    """

    rests_on: str
    answer: RttAnswer
    moved_ms: float
    bits: float

    @classmethod
    def of(cls, rests_on: str, full: RttAnswer, answer: RttAnswer) -> "Influence":
        """Compare an answer from less information with the full one."""
        moved = full.distribution.median - answer.distribution.median
        return cls(rests_on, answer, moved, divergence(full.distribution, answer.distribution))

    def as_dict(self) -> dict[str, Any]:
        median = self.answer.distribution.median
        return {"rests_on": self.rests_on, "median_ms": median, "moved_ms": self.moved_ms, "bits": self.bits}


@dataclass(frozen=True)
class Explanation:
    """The answer, the influence of single measurements on it, and the answers from other information.

    Attributes:
      measurements: one influence per measurement that was left out, the strongest first.
      alternatives: answers without context, from the pair's past only, and so on.
    """

    answer: RttAnswer
    measurements: tuple[Influence, ...]
    alternatives: tuple[Influence, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "median_ms": self.answer.distribution.median,
            "measurements": [each.as_dict() for each in self.measurements],
            "alternatives": [each.as_dict() for each in self.alternatives],
        }


def explain(
    model: "Model", question: Question, data: Data | None = None, left_out: int = LEFT_OUT
) -> Explanation:
    """Answer a question in full and with parts of its information left out.

    Args:
      left_out: largest number of measurements to leave out one by one.
    """
    dst = question.dst
    if dst is None:
        raise UsageError("an rtt question needs a destination")
    context = question.context
    if context is None:
        context = data.context(question, MOST) if data is not None else Context.empty()
        question = replace(question, context=context)
    of_pair = _of_pair(context, dst)
    asked: list[tuple[str, Question]] = [
        ("no measurements of the source", replace(question, context=Context.empty())),
        ("only the pair's own past", replace(question, context=context.take(of_pair))),
        ("all but the pair's own past", replace(question, context=context.take(~of_pair))),
        ("no measurements of the source, and only the networks of both addresses", _by_prefix(question)),
    ]
    several = 0 < int(of_pair.sum()) < len(context)
    asked = [each for number, each in enumerate(asked) if several or number in (0, 3)]
    most_relevant = np.argsort(context.rank, kind="stable")[:left_out]
    everything = np.arange(len(context))
    for number in most_relevant.tolist():
        rest = context.take(everything[everything != number])
        asked.append((f"all but {_words(context, number)}", replace(question, context=rest)))
    full, *others = model.rtt_many([question, *(each for _, each in asked)])
    made = [Influence.of(words, full, answer) for (words, _), answer in zip(asked, others, strict=True)]
    count = len(asked) - len(most_relevant)
    strongest = sorted(made[count:], key=lambda influence: -influence.bits)
    return Explanation(full, tuple(strongest), tuple(made[:count]))


def _of_pair(context: Context, dst: Prefix) -> np.ndarray:
    known = dst.packed_length
    wanted = np.frombuffer(dst.packed, np.uint8)[:known]
    out: np.ndarray = (context.dst[:, :known] == wanted).all(axis=1)
    return out


def _by_prefix(question: Question) -> Question:
    assert question.dst is not None
    src, dst = (_shortened(end) for end in (question.src, question.dst))
    return replace(question, src=src, dst=dst, context=Context.empty())


def _shortened(end: Prefix) -> Prefix:
    known = min(_PREFIX_BYTES[end.version], len(end.known_bytes))
    return Prefix.of(np.frombuffer(end.packed, np.uint8), known) if known else end


def _words(context: Context, number: int) -> str:
    rtt = float(context.rtt[number])
    result = "no reply" if rtt < 0 else f"{rtt:.1f} ms"
    time = int(context.time[number])
    when = f" at {moment_text(time)}" if time >= 0 else ""
    return f"{result} to {unpack_one(context.dst[number].tobytes())}{when}"


def divergence(right: RttDistribution, wrong: RttDistribution, most: float = 40.0) -> float:
    """Σ p log2(p / q) over millisecond bins and no reply; the factor log2(p / q) is at most `most`."""
    last = int(np.ceil(max(_highest([right, wrong]), 1.0)))
    bins = np.arange(last + 2, dtype=np.float64)
    shares = []
    for each in (right, wrong):
        replies = (1 - each.failure) * np.diff(each.cdf(bins))
        above = (1 - each.failure) * (1 - each.cdf(bins[-1]))
        shares.append(np.concatenate([[each.failure], replies, [above]]))
    p, q = shares
    cost = np.log2(np.maximum(p, 1e-300)) - np.log2(np.maximum(q, 1e-300))
    return float(np.sum(np.where(p > 0, p * np.minimum(cost, most), 0.0)))


def _highest(distributions: Sequence[RttDistribution]) -> float:
    """RTT in ms below which all but one millionth of the replies of every distribution lie."""
    return max(float(each.quantile(1 - 1e-6)) for each in distributions)
