"""A trained model as one more method.

The context of a question is chosen for the question: earlier measurements of the same pair first, then of
the destination's neighbours, then the newest of the rest.
"""

from pathlib import Path
from typing import Self

import numpy as np

from ping_llm.addresses import Prefix, is_ipv4
from ping_llm.evaluate.baselines.base import Baseline
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.predictive import Knots
from ping_llm.query.context import Context, Question
from ping_llm.query.model import Model
from ping_llm.schema import MAX_RTT_MS

#: Measurements of context a question gets by default; those that do not fit the model's length are left out.
CONTEXT_SIZE = 30

#: Of these, at most this share for the pair itself: what else the source sees now says how it fares now.
PAIR_SHARE = 2 / 3

#: Looked through for a question: older measurements of a busy source are hardly ever the better choice.
_LOOK_BACK = 4000

#: The distribution function is kept at these RTTs: 0.1 ms apart where RTTs are small, at every whole
#: millisecond to 2 s, so that bits are exact there, then 2 % apart.
_GRID = np.concatenate(
    [
        np.arange(0, 1000) / 10,
        np.arange(400, 1600) / 4,
        np.arange(400.0, 2000.0),
        np.unique(np.ceil(2000 * 1.02 ** np.arange(379))),
    ]
)
_GRID = np.append(_GRID[_GRID < MAX_RTT_MS], MAX_RTT_MS + 1)


class ModelMethod(Baseline):
    """Answers of a trained run.

    Args:
      model: loaded weights.
      size: measurements of context for a question.
    """

    def __init__(self, model: Model, name: str = "model", size: int = CONTEXT_SIZE):
        self.model, self.name, self._size = model, name, size

    @classmethod
    def load(cls, run: Path, size: int = CONTEXT_SIZE) -> Self:
        return cls(Model.load(run), "model", size)

    def sized(self, size: int) -> "ModelMethod":
        return ModelMethod(self.model, self.name, size)

    def fit(self, train: Columns) -> Self:
        """Nothing: it was trained before, and must not have seen what it is asked about."""
        return self

    def predict(self, queries: Queries, context: History) -> Knots:
        questions = self.questions(queries, context)
        levels, failure = np.empty((len(queries), len(_GRID))), np.empty(len(queries))
        point = np.empty(len(queries))
        for index, answer in self.model.rtt_stream(questions):
            levels[index] = answer.distribution.cdf(_GRID)
            failure[index] = answer.failure
            point[index] = answer.distribution.median
        levels[:, 0], levels[:, -1] = 0.0, 1.0
        return Knots(np.broadcast_to(_GRID, levels.shape), levels, failure, point=point)

    def questions(self, queries: Queries, context: History) -> list[Question]:
        past = context.of_source(queries)
        return [
            _question(queries, index, past.columns, max(low, high - _LOOK_BACK), high, self._size)
            for index, (low, high) in enumerate(zip(past.low, past.high, strict=True))
        ]


def _question(queries: Queries, index: int, past: Columns, low: int, high: int, size: int) -> Question:
    dst, seconds = queries.dst[index], int(queries.time[index] // 1_000_000)
    chosen = choose(past.dst[low:high], dst, size) + low
    known = past.take(chosen)
    # Seconds are all that tokens carry: a measurement of the same second would not be seen as earlier.
    context = Context.of(queries.src[index], known.dst, known.time, known.rtt, np.arange(len(chosen)))
    return Question(_whole(queries.src[index]), _whole(dst), seconds, context if len(chosen) else None)


def choose(past_dst: np.ndarray, dst: np.ndarray, size: int) -> np.ndarray:
    """Positions of `size` earlier measurements (oldest first), the most relevant first."""
    newest_first = np.arange(len(past_dst))[::-1]
    if not size or not len(past_dst):
        return newest_first[:0]
    same = (past_dst == dst).all(axis=1)[newest_first]
    near_bytes = 15 if is_ipv4(dst[None])[0] else 6  # an IPv4 /24 or an IPv6 /48
    near = ~same & (past_dst[:, :near_bytes] == dst[:near_bytes]).all(axis=1)[newest_first]
    pair = newest_first[same][: max(1, round(size * PAIR_SHARE))]
    neighbours = newest_first[near][: max(size - len(pair), 0) // 2]
    rest = newest_first[~same & ~np.isin(newest_first, neighbours)]
    chosen = np.concatenate([pair, neighbours, rest[: size - len(pair) - len(neighbours)]])
    if len(chosen) < size:  # nothing else is known: the pair may have it all
        chosen = np.concatenate([chosen, newest_first[same][len(pair) : len(pair) + size - len(chosen)]])
    return chosen


def _whole(packed: np.ndarray) -> Prefix:
    return Prefix(packed.tobytes(), 32 if is_ipv4(packed[None])[0] else 128)
