"""Options of a fit, with every default."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ping_llm.splits.holdout import SplitOptions

#: Fewer measurements than this cannot be divided into training, choosing and testing.
FEWEST = 300


@dataclass(frozen=True)
class FitOptions:
    """Options.

    Attributes:
      minutes: of training, on whatever the machine has.
      config: a packaged training config or the path of one; None picks one.
      traceroutes: what of traceroutes is used: `off`, `last` or `hops`, as for `ping-llm ingest`.
      final: whether to go on with all the data after the report.
      splits: what is kept apart for the report.
      held_out: what of the rest is kept from the network, to decide how far to trust each method.
      stack_questions: held-out questions of each kind that decide it.
      queries: questions of each test of the report.
      address_questions, context_queries: as in `EvaluateOptions`.
      baselines: the simple methods.
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


#: Of the minutes, what `final` leaves for going on with all the data.
FINAL_SHARE = 0.25
