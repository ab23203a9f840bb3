"""The stream's time, and its rate of results.

Sources with wrong clocks must not move the stream's time.

The stream's time is that of its newest result. A result that is far from it is a jump of a clock; it is
judged, but neither kept nor tested. When only such results come, at times that agree with each other, the
stream itself has moved (a gap, or a replay): then its time follows.
"""

from dataclasses import dataclass

from ping_llm.measurements.schema import DAY_US, HOUR_US

#: Results one after the other, all away from the stream's time and near each other, that move it.
_MOVES = 20


@dataclass
class Clock:
    """The stream's time, µs.

    Attributes:
      now: -1 before the first result.
      other: time of the last result that was far from it.
      agree: how many such results came one after the other.
    """

    jump_hours: float
    now: int = -1
    other: int = -1
    agree: int = 0

    def believes(self, time: int) -> bool:
        """Whether the result counts; False for a jump."""
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
