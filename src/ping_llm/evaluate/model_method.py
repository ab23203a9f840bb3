"""A trained model as one more method: asked as `asking` says, answers mixed where it says so."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from ping_llm.evaluate.asking import Asking, kinds, ways
from ping_llm.evaluate.baselines.base import Baseline
from ping_llm.evaluate.calibration import Background, Calibration
from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.predictive import Knots
from ping_llm.evaluate.splits import Novelty
from ping_llm.query.distribution import RttDistribution, mix
from ping_llm.query.model import Model
from ping_llm.schema import MAX_RTT_MS

#: The distribution function is kept at these RTTs: 0.1 ms apart where RTTs are small, at every whole
#: millisecond to 2 s, so that bits are exact there, then 2 % apart.
GRID = np.concatenate(
    [
        np.arange(0, 1000) / 10,
        np.arange(400, 1600) / 4,
        np.arange(400.0, 2000.0),
        np.unique(np.ceil(2000 * 1.02 ** np.arange(379))),
    ]
)
GRID = np.append(GRID[GRID < MAX_RTT_MS], MAX_RTT_MS + 1)


class ModelMethod(Baseline):
    """Answers of a trained run.

    Args:
      model: loaded weights.
      asking: how it is asked; None: as suits it.
      calibration: what is made of its answers; None leaves them as they are.
    """

    def __init__(
        self,
        model: Model,
        name: str = "model",
        asking: Asking | None = None,
        calibration: Calibration | None = None,
    ):
        self.model, self.name, self.asking = model, name, asking or Asking.of(model)
        self.calibration = calibration
        self._trained: Novelty | None = None
        self._background: Background | None = None

    @classmethod
    def load(cls, run: Path, calibration: Calibration | None = None) -> Self:
        return cls(Model.load(run), "model", calibration=calibration)

    def sized(self, size: int) -> "ModelMethod":
        """The same with another number of measurements of context."""
        return self._asking(replace(self.asking, size=size))

    def as_strangers(self) -> "ModelMethod":
        """The same, asking about every new source as about a strange one."""
        return self._asking(replace(self.asking, source_bytes=self.asking.strange_bytes))

    def _asking(self, asking: Asking) -> "ModelMethod":
        other = copy(self)
        other.asking = asking
        return other

    def fit(self, train: Columns) -> Self:
        """Only note what was trained on: that was done before, without what it is asked about."""
        self._trained, self._background = Novelty.of(train), Background.of(train)
        return self

    def predict(self, queries: Queries, context: History) -> Knots:
        levels, failure, point = self.raw(queries, context)
        if self.calibration is None or self._trained is None or self._background is None:
            return Knots(np.broadcast_to(GRID, levels.shape), levels, failure, point=point)
        return self.calibration.apply(GRID, levels, failure, self.kinds(queries), self._background, point)

    def kinds(self, queries: Queries) -> np.ndarray:
        """int64 [n]: which part of the calibration is each one's; fitted methods know."""
        assert self._trained is not None
        return kinds(queries, self._trained)

    def raw(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As the model says it: [n, GRID] P(RTT < GRID | reply), [n] P(no reply), [n] the one number."""
        asked = ways(queries, context, self.asking, self._trained)
        owner = [index for index, questions in enumerate(asked) for _ in questions]
        questions = [question for several in asked for question in several]
        levels, failure = np.empty((len(queries), len(GRID))), np.empty(len(queries))
        point = np.empty(len(queries))
        known = np.ones(len(queries), bool)
        if self._trained is not None:
            known = self._trained.classes(queries.src, queries.dst) == Novelty.KNOWN_PAIR
        parts: dict[int, list[RttDistribution]] = {}
        for number, answer in self.model.rtt_stream(questions):
            index = owner[number]
            parts.setdefault(index, []).append(answer.distribution)
            if len(parts[index]) < len(asked[index]):
                continue
            of_query = parts.pop(index)
            distribution = of_query[0] if len(of_query) == 1 else mix(of_query)
            levels[index] = distribution.cdf(GRID)
            failure[index] = distribution.failure
            typical = self.asking.typical_share
            point[index] = distribution.typical(typical) if known[index] else distribution.median
        levels[:, 0], levels[:, -1] = 0.0, 1.0
        return levels, failure, point
