"""Conditions of a question, besides its ends and its time: packet size, packet errors, Atlas ids and
throughput.

A network that was trained on such a field (`network_fields`) reads it before the RTT, in the question and in
the measurements of its context. The simple methods do not use conditions.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.measurements.rules import UNKNOWN
from ping_llm.measurements.schema import MAX_PACKET_ERRORS, MAX_THROUGHPUT_MBPS, THROUGHPUT
from ping_llm.tokens.vocab import LARGEST_MSM_ID, LARGEST_PROBE_ID, LARGEST_SIZE

#: Column of the measurements table for each condition.
COLUMNS = {
    "size": "size",
    "errors": "packet_error_count",
    "msm_id": "msm_id",
    "probe_id": "probe_id",
    "throughput": THROUGHPUT,
}
#: Largest allowed value of each of these columns.
LARGEST = {
    "size": LARGEST_SIZE,
    "packet_error_count": MAX_PACKET_ERRORS,
    "msm_id": LARGEST_MSM_ID,
    "probe_id": LARGEST_PROBE_ID,
    THROUGHPUT: MAX_THROUGHPUT_MBPS,
}


#: The columns among them that hold whole numbers.
WHOLE = frozenset(LARGEST) - {THROUGHPUT}


def allowed(column: str) -> str:
    """Describe the allowed values of a column, for messages."""
    what = "a whole number" if column in WHOLE else "a number of Mbit/s"
    return f"{what} from 0 to {LARGEST[column]:.0f}"


def array_of(column: str, values: Sequence[float | None]) -> np.ndarray:
    """Column of these values as an array, with UNKNOWN for None."""
    kind = np.int64 if column in WHOLE else np.float64
    return np.array([UNKNOWN if value is None else value for value in values], kind)


@dataclass(frozen=True)
class Conditions:
    """Conditions that a question states; None: not stated.

    Attributes:
      size: payload of the packets in bytes.
      errors: number of packets that were sent and not answered.
      msm_id, probe_id: Atlas measurement and probe.
      throughput: throughput measured with the RTT, Mbit/s.
    """

    size: int | None = None
    errors: int | None = None
    msm_id: int | None = None
    probe_id: int | None = None
    throughput: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.stated.items():
            column = COLUMNS[name]
            kind = int if column in WHOLE else int | float
            if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value <= LARGEST[column]:
                raise UsageError(f"{name} must be {allowed(column)}, not {value!r}")

    def __bool__(self) -> bool:
        return bool(self.stated)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.stated.items())

    @property
    def stated(self) -> dict[str, Any]:
        """Names and values of the stated conditions, in the order in which prompts state them."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def of(cls, given: "Conditions | Mapping[str, Any] | None") -> "Conditions":
        """Make conditions from names and values.

        Raises:
          UsageError: a name is not that of a condition.
        """
        if given is None or isinstance(given, Conditions):
            return given or cls()
        for name in given:
            if name not in COLUMNS:
                raise UsageError(f"there is no condition {name!r}; choose from: {', '.join(COLUMNS)}")
        return cls(**given)

    def only(self, known: Collection[str]) -> Self:
        """Return the stated conditions with these names only."""
        return type(self)(**{name: value for name, value in self.stated.items() if name in known})


NO_CONDITIONS = Conditions()
#: Forms in which a user may give conditions.
Given = Conditions | Mapping[str, float] | None


def unused(several: Collection[Conditions], known: Collection[str]) -> list[str]:
    """Names of stated conditions that are not in `known`."""
    return [name for name in COLUMNS if name not in known and any(name in one.stated for one in several)]
