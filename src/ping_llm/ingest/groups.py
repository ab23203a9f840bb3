"""How the days of all parts are shared out for sorting; light, since the parent process imports it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ping_llm.ingest.options import SORT_ROWS

#: Fewer rows are not worth a task of their own.
_MIN_SORT_ROWS = 50_000


@dataclass(frozen=True)
class Group:
    """Consecutive days sorted together, and the parts that hold their rows."""

    first_day: int  # days since 1970
    last_day: int
    parts: tuple[str, ...]


@dataclass
class Written:
    """What a group became, by input file: results and rows written, and duplicates left out."""

    measurements: Counter[int] = field(default_factory=Counter)
    duplicates: Counter[int] = field(default_factory=Counter)
    packets: Counter[int] = field(default_factory=Counter)


def group_days(days_of_parts: Sequence[tuple[str, dict[int, int]]], workers: int = 1) -> list[Group]:
    """Cut all days into groups of at least one day and, if possible, at most SORT_ROWS rows.

    How they are cut decides only how the work is shared out: a day's file is the same in any group.
    """
    totals: Counter[int] = Counter()
    for _, days in days_of_parts:
        totals.update(days)
    limit = min(SORT_ROWS, max(_MIN_SORT_ROWS, totals.total() // (3 * workers)))
    groups: list[list[int]] = []
    rows = 0
    for day in sorted(totals):
        if not groups or rows + totals[day] > limit:
            groups.append([])
            rows = 0
        groups[-1].append(day)
        rows += totals[day]
    return [
        Group(
            days[0],
            days[-1],
            tuple(part for part, held in days_of_parts if any(days[0] <= day <= days[-1] for day in held)),
        )
        for days in groups
    ]
