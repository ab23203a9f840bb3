"""Ranking of destinations: which is fastest for a source, and the cost of choosing another.

All figures are integrals over the answers' distribution functions, without sampling. The RTTs of two
candidates are assumed independent given the context. A cause that slows both at the same moment (the
source's own access link) is ignored, so P(fastest) is shown as less certain than it is.

A result above the timeout, or no reply, costs the timeout. With S(x) = P(no reply within x ms), the expected
cost of a candidate is ∫ S(x) dx from 0 to the timeout, and that of always choosing the fastest ∫ Π S(x) dx.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ping_llm.answer.distribution import RttDistribution, shared_edges
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix

if TYPE_CHECKING:
    from ping_llm.answer.answering import RttAnswer

#: Default cost of no reply, ms.
TIMEOUT_MS = 1000.0

#: Largest number of integration points between two edges. A product of n linear functions is a polynomial of
#: degree n: 16 points integrate degree 31 exactly, and 100 candidates to 1e-9, because edges are close to
#: each other.
_MOST_POINTS = 16

Group = Literal["worst", "mean"]


@dataclass(frozen=True)
class Candidate:
    """One destination.

    Attributes:
      answers: the answer for each source.
      expected_ms: expected cost; no reply within the timeout costs the timeout.
      fastest: probability that it is the fastest; for several sources, the mean or that of the worst.
      below: probability of a reply within the objective; None without an objective.
      no_reply: probability of no reply; for several sources, the largest.
      regret_ms: expected cost of choosing it minus that of always choosing the fastest.
    """

    dst: str
    answers: tuple["RttAnswer", ...]
    expected_ms: float
    fastest: float
    below: float | None
    no_reply: float
    regret_ms: float

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        """Quantiles of the RTT given a reply; for several sources, of the one with the largest median."""
        worst = max(self.answers, key=lambda answer: answer.distribution.median)
        return [float(value) for value in worst.distribution.quantile(levels)]


@dataclass(frozen=True)
class Ranking:
    """Candidates, the one with the least expected cost first.

    Attributes:
      nobody: probability that no candidate replies.
      timeout_ms: cost of no reply.
      objective_ms: RTT for `Candidate.below`.
      notes: sentences on what names stand for, and on ends without any measurements.
    """

    candidates: tuple[Candidate, ...]
    nobody: float
    timeout_ms: float
    objective_ms: float | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "candidates": [
                {
                    "dst": candidate.dst,
                    "expected_ms": candidate.expected_ms,
                    "quantiles_ms": dict(
                        zip(("0.05", "0.5", "0.95"), candidate.quantiles([0.05, 0.5, 0.95]), strict=True)
                    ),
                    "fastest": candidate.fastest,
                    "below": candidate.below,
                    "no_reply": candidate.no_reply,
                    "regret_ms": candidate.regret_ms,
                }
                for candidate in self.candidates
            ],
            "nobody": self.nobody,
            "timeout_ms": self.timeout_ms,
            "objective_ms": self.objective_ms,
            "notes": list(self.notes),
        }


def of_answers(answers: Sequence["RttAnswer"], candidates: Sequence[str | Prefix], **how: Any) -> Ranking:
    """Rank candidates by the answers of each source in turn; `how` goes to `rank`."""
    count = len(candidates)
    by_source = [answers[start : start + count] for start in range(0, len(answers), count or 1)]
    return rank(by_source, list(map(str, candidates)), **how)


def rank(
    answers: Sequence[Sequence["RttAnswer"]],
    names: Sequence[str],
    *,
    objective_ms: float | None = None,
    timeout_ms: float = TIMEOUT_MS,
    group: Group = "mean",
    notes: Sequence[str] = (),
) -> Ranking:
    """Rank destinations.

    Args:
      answers: for each source, its answers about the candidates.
      names: the candidates' addresses.
      notes: notes to put before those of the ranking.
      group: for several sources: `mean` over them, or `worst` for the slowest source.
    """
    if not names:
        raise UsageError("rank needs at least one candidate")
    for words, value in (("timeout", timeout_ms), ("objective", objective_ms)):
        if value is not None and not 0 < value < np.inf:
            raise UsageError(f"the {words} must be a number of ms above 0, not {value:g}")
    edges = _edges([answer.distribution for several in answers for answer in several], timeout_ms)
    late = np.stack([_late([answer.distribution for answer in several], edges) for several in answers])
    if group == "worst":
        late = 1 - np.prod(1 - late, axis=0, keepdims=True)
    within = edges <= timeout_ms
    cost = np.trapezoid(late[..., within], edges[within], axis=-1)  # [sources, candidates]
    best = np.array([_integral(each[:, within], edges[within]) for each in late])
    fastest = np.mean([fastest_of(each) for each in late], axis=0)
    below = None
    if objective_ms is not None:
        below = 1 - np.array([[np.interp(objective_ms, edges, row) for row in each] for each in late]).mean(0)
    failure = np.array([[answer.distribution.failure for answer in several] for several in answers])
    candidates = [
        Candidate(
            name,
            tuple(several[number] for several in answers),
            float(cost[:, number].mean()),
            float(fastest[number]),
            None if below is None else float(below[number]),
            float(failure[:, number].max()),
            max(float((cost[:, number] - best).mean()), 0.0),
        )
        for number, name in enumerate(names)
    ]
    candidates.sort(key=lambda candidate: candidate.expected_ms)
    nobody = float(np.mean([np.prod(each[:, -1]) for each in late]))
    return Ranking(tuple(candidates), nobody, timeout_ms, objective_ms, (*notes, *_unknown(answers)))


def _unknown(answers: Sequence[Sequence["RttAnswer"]]) -> Iterator[str]:
    """Notes on sources and candidates without any measurements."""
    for several in answers:
        if several and not several[0].knows_source:
            yield f"unknown source {several[0].question.src}: nothing has been measured from it"
    known = [any(answer.knows_destination for answer in each) for each in zip(*answers, strict=True)]
    if unknown := [answer for answer, yes in zip(answers[0], known, strict=True) if not yes]:
        listed = ", ".join(str(answer.question.dst) for answer in unknown[:3])
        yield (
            f"{len(unknown)} of {len(known)} destinations are unknown, they have not been measured: "
            f"{listed}{', …' if len(unknown) > 3 else ''}"
        )


def _edges(distributions: Sequence[RttDistribution], timeout_ms: float) -> np.ndarray:
    """Points between which every distribution function is linear."""
    return np.unique(np.concatenate([shared_edges(distributions)[0], [0.0, timeout_ms]]))


def _late(distributions: Sequence[RttDistribution], edges: np.ndarray) -> np.ndarray:
    """P(no reply within each edge), [candidates, edges]."""
    return np.stack([1 - (1 - d.failure) * d.cdf(edges) for d in distributions])


def _inside(late: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Weights and values at the Gauss-Legendre points between edges, for products of all candidates."""
    points, weights = np.polynomial.legendre.leggauss(min(len(late) // 2 + 1, _MOST_POINTS))
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        yield float(weight), (1 - point) * late[:, :-1] + point * late[:, 1:]


def _integral(late: np.ndarray, edges: np.ndarray) -> float:
    """∫ Π S(x) dx: expected cost of always choosing the fastest candidate."""
    widths = np.diff(edges)
    # Not with @: BLAS may add in another order in another process, and then the last digits differ.
    return sum(weight * float((np.prod(inside, axis=0) * widths).sum()) for weight, inside in _inside(late))


def fastest_of(late: np.ndarray) -> np.ndarray:
    """P(a candidate replies before all others), [candidates]: ∫ Π of the others' S(x) dF(x)."""
    share = late[:, :-1] - late[:, 1:]
    total = np.zeros(len(late))
    for weight, inside in _inside(late):
        before, after = np.ones_like(inside), np.ones_like(inside)
        np.cumprod(inside[:-1], axis=0, out=before[1:])
        np.cumprod(inside[:0:-1], axis=0, out=after[-2::-1])
        total += weight * (share * before * after).sum(axis=1)
    return total
