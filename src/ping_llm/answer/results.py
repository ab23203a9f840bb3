"""Types of the answers: plain data, without the network that made them.

A client of a server uses them too, without importing JAX.
"""

from dataclasses import dataclass, field
from typing import Any

from ping_llm.answer.context import Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.measurements.addresses import Prefix

#: Names of methods besides the simple ones.
STACK, RAW = "stack", "raw"

#: Default limits of an address search, in passes through the network, for a completion and for an inverse
#: search. A search that reaches its limit is not exact. A pass of the config `menog` on two cores takes
#: 0.05 s in a completion and 0.5 s in an inverse search, which runs the network for each of up to 16 RTTs.
#: The ten best IPv4 destinations of a source took 3 and 23 passes, the hundred best 70 and 242.
PASSES, INVERSE_PASSES = 64, 32


@dataclass(frozen=True)
class RttAnswer:
    """The answer to an rtt question.

    Attributes:
      method: `stack`, `network`, `raw` or the name of a simple method.
      calibrated: whether it was calibrated on held-out questions of the same kind.
      rests_on: numbers of measurements used, and which ends were trained on; empty for a raw answer.
      context_given, context_used: number of measurements of the context, and in the network's prompt.
    """

    question: Question
    distribution: RttDistribution
    method: str = RAW
    calibrated: bool = False
    rests_on: dict[str, Any] = field(default_factory=dict)
    context_given: int = 0
    context_used: int = 0
    notes: tuple[str, ...] = ()

    @property
    def failure(self) -> float:
        return self.distribution.failure

    @property
    def knows_source(self) -> bool:
        """Whether the source has measurements. True for a raw answer, where this is unknown."""
        known = self.rests_on
        return not known or bool(known["source_trained"] or known["source_measurements"])

    @property
    def knows_destination(self) -> bool:
        """Whether the destination has been measured. True for a raw answer, where this is unknown."""
        known = self.rests_on
        return not known or bool(known["destination_trained"] or known["pair_measurements"])


@dataclass(frozen=True)
class Completion:
    """A whole address or a prefix, and its probability.

    For an inverse search, `in_range` is P(reply within the RTT range | source, this destination). With a run
    that has a stack, `in_range` is calibrated, `measured` is the number of earlier measurements of the pair,
    and `observed` is the median and range of their replies in ms.
    """

    address: Prefix
    probability: float
    in_range: float | None = None
    measured: int | None = None
    observed: dict[str, float] | None = None


@dataclass(frozen=True)
class Completions:
    """Completions, the most probable first.

    Attributes:
      best: the list of completions.
      bound: largest probability that an address outside the list can have.
      exact: whether the list is certain to be the most probable; False if the search hit its limit.
      notes: sentences about measurements that were left out of the context.
    """

    best: tuple[Completion, ...]
    bound: float
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def covered(self) -> float:
        return sum(completion.probability for completion in self.best)


@dataclass(frozen=True)
class Inverse:
    """Destinations within a range of RTTs.

    Attributes:
      completions: destinations with P(destination | source, RTT in the range).
      probability: P(reply within the range | source), over all destinations.
    """

    completions: Completions
    probability: float
