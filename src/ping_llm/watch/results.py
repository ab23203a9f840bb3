"""Output of a watch for each result and each batch."""

from dataclasses import dataclass, field
from typing import Any

from ping_llm.watch.expect import Judged

#: Values of `Seen.taken`.
USED, LATE, DUPLICATED, JUMPED = "used", "late", "duplicate", "clock jump"


#: Reasons why an alarm ended.
BACK, ACCEPTED, SILENT, ANOTHER = (
    "back to normal", "new level accepted", "no more results", "another change",
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """A result and its expectation.

    Attributes:
      number: number of the result in the stream, from 0.
      taken: how the result was treated: `used`; `late`: not newer than the pair's newest, judged but
        not tested; `duplicate`; `clock jump`: judged, but neither kept nor tested.
      expected: 5 %, median and 95 % of the expected replies, ms; None for a duplicate.
      failure: expected probability of no reply.
      judged: tail probability and bits; None for a duplicate.
      fresh: whether the model was asked for this result.
    """

    number: int
    time: int
    src: bytes
    dst: bytes
    rtt: float
    taken: str
    expected: tuple[float, float, float] | None = None
    failure: float | None = None
    judged: Judged | None = None
    fresh: bool = False


@dataclass
class Output:
    """Results and events of a batch."""

    seen: list[Seen] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
