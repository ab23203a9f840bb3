"""Questions about held-out measurements: one test per kind, each with what it may look back on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.splits.holdout import KINDS, Splits, is_timeless

#: Of a new source, so many measurements may be looked at: one test each.
SOURCE_CONTEXT = (0, 1, 2, 5, 10, 30)


@dataclass(frozen=True)
class Test:
    """Questions of one kind.

    Attributes:
      name: such as "sources, 10 known".
      kind: one of `holdout.KINDS`.
      asked: the measurements, with their results.
      context: what may be looked back on.
      timed: whether only what is earlier may be. Without times that tell, everything visible is.
    """

    name: str
    kind: str
    asked: Columns
    context: History
    timed: bool = True

    def queries(self) -> Queries:
        queries = self.asked.queries()
        return queries if self.timed else queries.without_time()


def questions_of(
    splits: Splits, most: int, seed: int = 0, source_context: Sequence[int] = SOURCE_CONTEXT
) -> list[Test]:
    """The tests of a split, of at most `most` questions each (0: all), drawn at random."""
    history, timed = History(splits.visible), not is_timeless(splits.data)
    tests = []
    for kind in KINDS:
        asked = _drawn(splits.test(kind), most, seed)
        if not len(asked):
            continue
        if kind == "sources":
            tests += [
                Test(f"sources, {count} known", kind, asked, history.limited(count), timed)
                for count in source_context
            ]
        else:
            tests.append(Test(kind, kind, asked, history, timed))
    return tests


def _drawn(test: Columns, most: int, seed: int) -> Columns:
    if not most or len(test) <= most:
        return test
    random = np.random.default_rng(seed)
    return test.take(np.sort(random.choice(len(test), most, replace=False)))
