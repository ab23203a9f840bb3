"""What a watch gives for each result and each batch."""

from dataclasses import dataclass, field
from typing import Any

from ping_llm.watch.expect import Judged

#: How a result was taken.
USED, LATE, DUPLICATED, JUMPED = "used", "late", "duplicate", "clock jump"


#: Why an alarm ended.
BACK, ACCEPTED, SILENT, ANOTHER = (
    "back to normal", "new level accepted", "no more results", "another change",
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """A result and what was expected of it.

    Attributes:
      number: of the result in the stream, from 0.
      taken: `used`; `late`: not newer than the pair's newest, judged but not tested; `duplicate`;
        `clock jump`: judged, but neither kept nor tested.
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
    """What a batch gave."""

    seen: list[Seen] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
