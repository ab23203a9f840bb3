"""Questions about held-out measurements: one test per kind, each with its context."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.splits.check import among
from ping_llm.splits.holdout import KINDS, Splits, is_timeless, shown_half

#: Numbers of visible measurements of a new source: one test each.
SOURCE_CONTEXT = (0, 1, 2, 5, 10, 30)

#: Numbers of other sources that have measured a new destination: one test each.
DESTINATION_CONTEXT = (10,)


@dataclass(frozen=True)
class Test:
    """Questions of one kind.

    Attributes:
      name: Name such as "sources, 10 known".
      kind: One of `holdout.KINDS`, or "excerpt".
      asked: The queried measurements, with their results.
      context: The measurements that queries may look back on.
      timed: Whether only earlier measurements may be used. If times carry no information, all visible ones
        are.
      learned: Measurements that a method may learn from besides the training data; empty except for new
        destinations.
    """

    name: str
    kind: str
    asked: Columns
    context: History
    timed: bool = True
    learned: Columns = field(default_factory=Columns.empty)

    def queries(self) -> Queries:
        queries = self.asked.queries()
        return queries if self.timed else queries.without_time()


def questions_of(
    splits: Splits,
    most: int,
    seed: int = 0,
    source_context: Sequence[int] = SOURCE_CONTEXT,
    destination_context: Sequence[int] = (),
) -> list[Test]:
    """The tests of a split, with at most `most` questions each (0: all), drawn at random."""
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
        if kind == "destinations" and destination_context:
            tests += _destinations_known(splits, destination_context, most, seed, history, timed)
    return tests


def _destinations_known(
    splits: Splits, counts: Sequence[int], most: int, seed: int, history: History, timed: bool
) -> list[Test]:
    """Tests of new destinations that a few other sources have measured, once each.

    The sources of a destination are halved like the destinations of a new source: a method may learn from the
    measurements of one half, and the other half is queried. If the training data are earlier than the
    questions, so are these measurements.
    """
    every = splits.test("destinations")
    asked = every.take(~shown_half(every, seed))
    if not len(asked):
        return []
    data = splits.data
    known = among(data.dst, asked.dst) & among(data.src, splits.train.src) & shown_half(data, seed)
    if splits.timed:
        known &= data.time < every.time.min()
    newest = data.take(known).take(slice(None, None, -1))
    _, first = np.unique(pairs_of(newest.src, newest.dst), axis=0, return_index=True)
    others = newest.take(np.random.default_rng(seed).permutation(np.sort(first)))
    # The index of each measurement among those of its destination, in the drawn order.
    group = np.unique(others.dst, axis=0, return_inverse=True)[1].ravel()
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max(initial=-1) + 1))
    place = np.empty(len(others), np.int64)
    place[order] = np.arange(len(others)) - starts[group[order]]
    tests = []
    for count in counts:
        learned = others.take(place < count)
        enough = asked.take(among(asked.dst, others.dst[place == count - 1]))
        if len(enough):
            name, drawn = f"destinations, {count} known", _drawn(enough, most, seed)
            tests.append(Test(name, "destinations", drawn, history, timed, learned.sorted_by_time()))
    return tests


def _drawn(test: Columns, most: int, seed: int) -> Columns:
    if not most or len(test) <= most:
        return test
    random = np.random.default_rng(seed)
    return test.take(np.sort(random.choice(len(test), most, replace=False)))


#: Numbers from which the numbers of other sources and destinations in an excerpt are drawn.
_OTHERS = (0, 0, 1, 3, 7)

#: Share of excerpts that hold nothing of the queried pair.
_NEW_SHARE = 0.35


def excerpts(data: Columns, count: int, most: int, seed: int = 0) -> Iterator[tuple[Columns, Test]]:
    """At most `count` sets of 1 to `most` measurements, with log-uniform sizes, and a question for each.

    They are like the data that a user has: the question is about a measurement of the study, and the set has
    earlier measurements between a few sources and destinations: of the same pair, of the source to other
    destinations, and of other sources.
    """
    random = np.random.default_rng(seed)
    timeless = is_timeless(data)
    data = data.sorted_by_time()
    src, dst = Ids(data.src).of_rows, Ids(data.dst).of_rows
    for row in random.permutation(len(data))[:count].tolist():
        sources = _with_others(random, src, dst == dst[row], src[row])
        destinations = _with_others(random, dst, src == src[row], dst[row])
        known = np.isin(src, sources) & np.isin(dst, destinations)
        if random.random() < _NEW_SHARE:
            known &= (src != src[row]) | (dst != dst[row])
        known[row] = False
        if not timeless:
            known &= data.time < data.time[row]
        rows = np.flatnonzero(known)
        size = int(np.exp(random.uniform(0, np.log(most + 1))))
        if timeless:
            rows = np.sort(random.permutation(rows)[:size])
        if len(rows):
            train = data.take(rows[-size:])
            asked = data.take(np.array([row]))
            yield train, Test("excerpt", "excerpt", asked, History(train), not timeless)


def _with_others(random: np.random.Generator, ends: np.ndarray, met: np.ndarray, own: int) -> np.ndarray:
    """An end, and a few other ends from the rows `met`, drawn at random."""
    others = np.unique(ends[met])
    others = random.permutation(others[others != own])
    return np.append(others[: random.choice(_OTHERS)], own)
