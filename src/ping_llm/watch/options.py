"""Options of a watch, with all defaults."""

from dataclasses import dataclass

from ping_llm.errors import UsageError


@dataclass(frozen=True)
class WatchOptions:
    """Options of a watch. A saved state needs the same `pair_results` and `source_results`.

    Attributes:
      false_alarms_per_day: false alarms per day of the whole stream, at most, while nothing changes.
      refresh: number of results of a pair after which the model is asked about it again. It is asked about
        a pair that is new to the watch after 1, 2, 4, 8 … results until then.
      refresh_hours: hours after which the model is asked about a pair again.
      least_ms, least_share: smallest change of an RTT worth an alarm, in ms and relative to the expected
        median; the larger one counts. After a smaller change the new level is expected.
      accept_hours: hours after which an alarm ends and the new level becomes the expected one.
      pair_results, source_results: number of newest results kept per pair, and per source.
      most_pairs: largest number of pairs in memory; those without a result for the longest time are dropped.
      jump_hours: hours from the stream's time beyond which the time of a result is a clock jump.
      group_hours: largest time between the beginnings of alarms that may share a cause, hours.
      group_least: smallest number of alarms in a group.
      group_share: smallest share of alarms among the watched pairs of an address or prefix for a group.
    """

    false_alarms_per_day: float = 1.0
    refresh: int = 16
    refresh_hours: float = 3.0
    least_ms: float = 2.0
    least_share: float = 0.05
    accept_hours: float = 24.0
    pair_results: int = 32
    source_results: int = 128
    most_pairs: int = 200_000
    jump_hours: float = 12.0
    group_hours: float = 2.0
    group_least: int = 3
    group_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.false_alarms_per_day < float("inf"):
            raise UsageError("the false alarms per day must be a number above 0")
        if self.refresh < 1 or self.refresh_hours <= 0:
            raise UsageError("the refresh must be at least 1 result and above 0 hours")
        if self.pair_results < 1 or self.source_results < 0 or self.most_pairs < 1:
            raise UsageError("at least one result of a pair and one pair must be kept")
        if self.accept_hours <= 0 or self.jump_hours <= 0 or self.group_hours < 0:
            raise UsageError("hours must be above 0")
        if self.least_ms < 0 or self.least_share < 0:
            raise UsageError("the least change must be at least 0")
        if self.group_least < 2 or not 0 < self.group_share <= 1:
            raise UsageError("a group needs at least 2 alarms and a share above 0 and up to 1")
