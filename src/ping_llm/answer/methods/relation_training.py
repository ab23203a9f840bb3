"""Training questions for the network of `relations`, about random parts of studies.

Each question is about a part of a study: some of its sources, destinations and pairs, often with all RTTs
scaled and warped by random numbers. It is of one of five kinds, and only a few other results of its new ends
are shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS
from ping_llm.answer.methods.relation_features import PairMatrix, features
from ping_llm.answer.methods.relation_kernels import TYPICAL, AskedPairs, Features, Shown, Side
from ping_llm.answer.methods.relation_network import Batch
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History, Ranges
from ping_llm.measurements.ids import Ids

#: Shares of the kinds of questions: new pair, new source, new destination, both new, known pair.
KINDS = (0.28, 0.26, 0.18, 0.05, 0.23)
#: Numbers of known results of a new source and of a new destination, and limits of those of a known pair; one
#: is drawn at random.
OF_NEW_SOURCE, OF_NEW_DESTINATION = (0, 0, 1, 2, 3, 5, 10, 30), (0, 0, 0, 1, 2, 3, 10, 10)
OF_PAIR = (1, 2, 4, 8, 64, 1000)
#: Probabilities that a part of a study is mirrored (sources become destinations), that its RTTs are scaled
#: and warped, and that some results of a question are not shown.
MIRRORED, WARPED, DROPPED = 0.25, 0.7, 0.3
#: Limits of a part of a study: largest number of measurements and of questions, least number of replies.
MOST, ASKED, FEWEST = 60_000, 192, 8
BATCH = 128


Pool = tuple[Features, np.ndarray]


def pool(studies: Sequence[Columns], count: int, random: np.random.Generator) -> Pool:
    """Make at least `count` questions, and their results."""
    ends = [(Ids(study.src).of_rows, Ids(study.dst).of_rows) for study in studies]
    parts: list[Pool] = []
    made = 0
    while made < count:
        number = int(random.integers(len(studies)))
        part = part_of(studies[number], *ends[number], random)
        if len(part) >= FEWEST:
            parts.append(questions(part, random))
            made += len(parts[-1][1])
    shown = Features(*(np.concatenate(each) for each in zip(*(part[0] for part in parts), strict=True)))
    return shown, np.concatenate([part[1] for part in parts])


def part_of(
    study: Columns, source: np.ndarray, destination: np.ndarray, random: np.random.Generator
) -> Columns:
    """Draw a part of a study: replies of random sources and destinations, and of these of random pairs.

    Args:
      source, destination: number of each measurement's ends.
    """
    sources, destinations = int(source.max()) + 1, int(destination.max()) + 1
    chosen = random.random(sources)[source] < _share(random, 0.35, 6 / sources)
    chosen &= random.random(destinations)[destination] < _share(random, 0.35, 4 / destinations)
    rows = np.flatnonzero(chosen & study.replied)
    of_pairs = Ids((source[rows] * destinations + destination[rows])[:, None].view(np.uint8)).of_rows
    if len(rows):
        rows = rows[random.random(of_pairs.max() + 1)[of_pairs] < _share(random, 0.4, 0.03)]
    if len(rows) > MOST:
        rows = np.sort(random.choice(rows, MOST, replace=False))
    part = study.take(rows)
    if random.random() < MIRRORED:
        part = replace(part, src=part.dst, dst=part.src)
    if random.random() < WARPED:
        power, scale = np.exp(random.normal(0, (0.1, 0.3)))
        middle = np.exp(TYPICAL)
        part = replace(part, rtt=scale * middle * (part.rtt / middle) ** power)
    return part


def _share(random: np.random.Generator, everything: float, least: float) -> float:
    """Draw a share: 1 with probability `everything`, else log-uniform from `least` to 1."""
    return 1.0 if random.random() < everything else float(np.exp(random.uniform(np.log(min(least, 1.0)), 0)))


def questions(replies: Columns, random: np.random.Generator) -> Pool:
    """Draw questions of all kinds from replies; a pair is drawn in proportion to the root of its replies."""
    matrix = PairMatrix(replies)
    of_source, of_destination = (ids.levels[-1].of_rows for ids in (matrix.sources, matrix.destinations))
    _, of_pair, size = np.unique(
        of_source * len(matrix.destinations) + of_destination, return_inverse=True, return_counts=True
    )
    chance = 1 / np.sqrt(size[of_pair])
    count = min(ASKED, max(FEWEST, len(replies) // 2))
    picked = random.choice(len(replies), count, p=chance / chance.sum())
    kind = random.choice(len(KINDS), count, p=KINDS)
    new_source, new_destination = (kind == 1) | (kind == 3), (kind == 2) | (kind == 3)
    source, destination = of_source[picked], of_destination[picked]
    asked = AskedPairs(
        source, destination, matrix.sources.of_each[source], matrix.destinations.of_each[destination]
    )
    row = some(matrix.rows, source, destination, new_source, OF_NEW_SOURCE, random)
    column = some(matrix.columns, destination, source, new_destination, OF_NEW_DESTINATION, random)
    queries = replies.take(picked).queries()
    past = History(replies).replies_of_pair(queries)
    known = np.where(kind == 4, random.choice(OF_PAIR, count), 0)
    past = Ranges(past.columns, np.maximum(past.low, past.high - known), past.high)
    return features(matrix, asked, row, column, past, queries.time), replies.rtt[picked]


def some(
    side: Side, end: np.ndarray, asked: np.ndarray, new: np.ndarray, counts: Sequence[int],
    random: np.random.Generator,
) -> Shown:  # fmt: skip
    """Show all results of known ends, and a few random ones of new ends, without the queried pair.

    Args:
      end, asked: number of the end, and of the other end of the question.
      new: bool [n], whether the end counts as new.
      counts: numbers of results of a new end, drawn at random.
    """
    low, high, others, values = side.start[end].copy(), side.start[end + 1].copy(), [], []
    start = 0
    for i in np.flatnonzero(new).tolist():
        places = np.arange(low[i], high[i])
        places = places[side.other[places] != asked[i]]
        places = random.permutation(places)[: random.choice(counts)]
        low[i], high[i] = start, start + len(places)
        start = high[i]
        others.append(side.other[places])
        values.append(side.value[places])
    other = np.concatenate([*others, np.zeros(0, np.int64)]).astype(np.int64)
    return Shown(low, high, new.copy(), other, np.concatenate([*values, np.zeros(0)]), new.copy())


def batches(pools: Sequence[Pool], shares: Sequence[float], random: np.random.Generator) -> Iterator[Batch]:
    """Yield batches of random questions, without end.

    Args:
      shares: relative shares of the pools in a batch.
    """
    chance = np.array(shares) / np.sum(shares)
    while True:
        parts = []
        for (shown, rtt), count in zip(pools, random.multinomial(BATCH, chance), strict=True):
            rows = random.integers(len(rtt), size=count)
            parts.append((*(part[rows] for part in shown), rtt[rows]))
        results, known, question, rtt = (np.concatenate(each) for each in zip(*parts, strict=True))
        left = np.where(random.random(BATCH) < DROPPED, random.uniform(0.3, 1, BATCH), 1.0)
        known &= random.random(known.shape) < left[:, None]
        low = np.floor(rtt)
        ends = [np.where(low > 0, np.log(low + FLOOR_MS), -20.0), np.log(low + 1 + FLOOR_MS)]
        low, high = (each.astype(np.float32) for each in ends)
        yield Features(results, known, question), low, high
