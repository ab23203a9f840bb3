"""Options of a fit and their defaults."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ping_llm.splits.holdout import SplitOptions

#: Least number of measurements: fewer cannot be divided for training, fitting the stack and testing.
FEWEST = 300


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit.

    Attributes:
      minutes: minutes of training, on the hardware that the machine has.
      config: a packaged training config or the path of one; None: chosen automatically.
      traceroutes: part of traceroutes to use: `off`, `last` or `hops`, as for `ping-llm ingest`.
      final: whether to train further with all data after the report.
      splits: data held out for the report.
      held_out: part of the rest that is held out from the network, to fit the weights of the methods.
      stack_questions: largest number of held-out questions of each kind for this.
      queries: largest number of questions per test of the report.
      address_questions, context_queries: as in `EvaluateOptions`.
      baselines: names of the simple methods; empty: all that are usable.
    """

    minutes: float = 20.0
    config: str | None = None
    traceroutes: str = "off"
    final: bool = False
    seed: int = 0
    splits: SplitOptions = field(default_factory=SplitOptions)
    held_out: SplitOptions = field(default_factory=lambda: SplitOptions(0.9, 0.08, 0.08, 0.08, 1))
    stack_questions: int = 800
    queries: int = 1000
    address_questions: int = 10
    context_queries: int = 60
    baselines: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: Share of the minutes that `final` uses for training further with all data.
FINAL_SHARE = 0.25
