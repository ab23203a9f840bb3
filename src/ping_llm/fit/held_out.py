"""Training data that is held out from the network, and the questions about it that the stack is fitted on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids
from ping_llm.splits.holdout import NO_LIMIT, SplitOptions, is_timeless, split
from ping_llm.splits.questions import SOURCE_CONTEXT, Test, questions_of


def held_out(train: Columns, options: SplitOptions, most: int) -> tuple[Columns, list[Test]]:
    """Divide the data: measurements for training the network, and questions about the rest.

    Half of the questions about new pairs, sources and destinations are later than all measurements that the
    network is trained on, as the questions of users are. The others are at any time, because few of the
    held-out ends are measured so late, and a few ends decide nothing. A question about a new source gets 0 to
    30 earlier measurements or all, drawn at random, as it will in use.

    Args:
      most: largest number of questions of each kind.
    """
    timeless = is_timeless(train)
    timed = split(train, replace(options, time=1.0) if timeless else options)
    untimed = timed if timeless else split(train, replace(options, time=1.0))
    tests = [] if timeless else [t for t in questions_of(timed, most, options.seed, ()) if t.kind == "later"]
    half = most if timeless else most // 2
    later = {test.kind: test.asked for test in questions_of(timed, half, options.seed, (0,))}
    for test in questions_of(untimed, half, options.seed, (0,)):
        if test.kind == "later":
            continue
        if not timeless and test.kind in later:
            test = replace(test, asked=Columns.concatenate([later[test.kind], test.asked]))
        tests.append(_with_limits(test, options.seed, most) if test.kind == "sources" else test)
    return timed.train, tests


#: Oldest shares of the training data that further splits learn from. A single cut in time can be unusual: on
#: v6-path-inflation the last tenth is half an hour, in which `pair hour` is best; a week later it is not.
CUTS = (0.75, 0.6, 0.45)

#: Number of held-out sources and of destinations below which more splits are added, up to MOST_SPLITS:
#: a dozen ends are too few to tell 14 methods apart. Each split holds out 8 % of the ends, six hold out 40 %.
FEW_ENDS = 40
MOST_SPLITS = 6


def further_splits(
    train: Columns, options: SplitOptions, most: int, tests: Sequence[Test]
) -> Iterator[tuple[Columns, list[Test]]]:
    """Yield further divisions of the training data: cut at other times, until enough ends were held out."""
    counts = {"sources": 0, "destinations": 0}

    def count(asked: Sequence[Test]) -> None:
        for test in asked:
            if test.kind in counts:
                ends = test.asked.src if test.kind == "sources" else test.asked.dst
                counts[test.kind] += len(Ids(ends))

    count(tests)
    for number in range(MOST_SPLITS):
        if number >= len(CUTS) and min(counts.values()) >= FEW_ENDS:
            return
        cut = CUTS[number % len(CUTS)]
        learned, asked = held_out(
            train, replace(options, time=cut, seed=options.seed + 1000 * (number + 1)), most
        )
        count(asked)
        if asked:
            yield learned, asked


def _with_limits(test: Test, seed: int, most: int) -> Test:
    """Give every question a random limit of earlier measurements; if there are few, repeat it with others."""
    limits = np.array([*SOURCE_CONTEXT, NO_LIMIT])
    count = len(test.asked)
    times = int(np.clip(most // max(count, 1), 1, len(limits)))
    random = np.random.default_rng(seed)
    drawn = random.permuted(np.tile(limits, (count, 1)), axis=1)[:, :times]
    asked = test.asked.take(np.repeat(np.arange(count), times))
    context: History = test.context.limited(drawn.ravel())
    return replace(test, name="sources", asked=asked, context=context)
