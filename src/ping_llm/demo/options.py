"""What the demo does, and the sizes that make it fit into ten minutes on two cores."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DemoOptions:
    """Every default of the demo.

    The world is small and dense, about 60 measurements a pair, so that a model of 0.9M parameters which sees
    2 M tokens can come to know it.
    """

    measurements: int = 200_000
    probes: int = 150
    targets: int = 30
    days: int = 14
    seed: int = 1
    #: The last tenth by time is held out.
    holdout: float = 0.1
    steps: int = 320
    #: Held-out measurements that the model is asked about.
    questions: int = 400
    #: Earlier measurements of the same source that each question comes with.
    context: int = 12

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
