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
            raise UsageError(
                f"false_alarms_per_day must be a number above 0, not {self.false_alarms_per_day}"
            )
        if self.refresh < 1 or self.refresh_hours <= 0:
            raise UsageError(
                f"refresh must be at least 1 result, not {self.refresh}, and refresh_hours above 0, "
                f"not {self.refresh_hours}"
            )
        if self.pair_results < 1 or self.source_results < 0 or self.most_pairs < 1:
            raise UsageError(
                "pair_results and most_pairs must be at least 1 and source_results at least 0, not "
                f"{self.pair_results}, {self.most_pairs} and {self.source_results}"
            )
        if self.accept_hours <= 0 or self.jump_hours <= 0 or self.group_hours < 0:
            raise UsageError(
                "accept_hours and jump_hours must be above 0 and group_hours at least 0, not "
                f"{self.accept_hours}, {self.jump_hours} and {self.group_hours}"
            )
        if self.least_ms < 0 or self.least_share < 0:
            raise UsageError(
                f"least_ms and least_share must be at least 0, not {self.least_ms} and {self.least_share}"
            )
        if self.group_least < 2 or not 0 < self.group_share <= 1:
            raise UsageError(
                "group_least must be at least 2 and group_share above 0 and at most 1, not "
                f"{self.group_least} and {self.group_share}"
            )
