"""The time of a stream, and its rate of results.

The time of a stream is that of its newest result. Sources with wrong clocks must not move it: a result far
from it counts as a clock jump, and is judged, but neither kept nor tested. If only such results arrive, at
times that agree with each other, the stream itself has moved (a gap, or a replay), and its time follows.
"""

from dataclasses import dataclass

from ping_llm.measurements.schema import DAY_US, HOUR_US

#: Number of successive results, all far from the stream's time and near each other, that move it.
_MOVES = 20


@dataclass
class Clock:
    """The stream's time, µs.

    Attributes:
      now: time of the newest result; -1 before the first.
      other: time of the last result that was far from it.
      agree: number of such results in succession.
    """

    jump_hours: float
    now: int = -1
    other: int = -1
    agree: int = 0

    def believes(self, time: int) -> bool:
        """Update the time with a result; return whether it counts, which a clock jump does not."""
        most = int(self.jump_hours * HOUR_US)
        if self.now < 0 or abs(time - self.now) <= most:
            self.now = max(self.now, time)
            self.agree = 0
            return True
        self.agree = self.agree + 1 if self.agree and abs(time - self.other) <= most else 1
        self.other = time
        if self.agree >= _MOVES:
            self.now, self.agree = time, 0
            return True
        return False


@dataclass
class Rate:
    """Results per day of the stream's own time, smoothed over about a day."""

    per_day: float = 0.0
    at: int = -1
    results: int = 0

    def settle(self, now: int, results: int) -> None:
        if self.at < 0:
            self.at, self.results = now, results
            return
        days = (now - self.at) / DAY_US
        if days <= 0:
            return
        here = (results - self.results) / days
        weight = 1.0 if self.per_day == 0 else min(1.0, days)
        self.per_day += weight * (here - self.per_day)
        self.at, self.results = now, results
