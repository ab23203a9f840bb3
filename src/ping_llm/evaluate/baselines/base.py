"""One small interface for every method: learn from measurements, then answer queries with distributions."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np

from ping_llm.evaluate.columns import Columns, Queries
from ping_llm.evaluate.history import History
from ping_llm.evaluate.predictive import Knots, Predictive, mixed
from ping_llm.schema import MAX_RTT_MS

#: Levels at which distributions are tabulated: 1/64 apart in the middle, finer in the tails.
LEVELS = np.unique(
    np.concatenate([[0, 0.001, 0.0025, 0.005], np.linspace(0, 1, 65), [0.995, 0.9975, 0.999, 1]])
)

#: This share of every answer is the training marginal, so that no surprise costs without bound.
BACKGROUND = 0.02


class Baseline(ABC):
    """A method. After `fit`, `predict` may be called any number of times."""

    name: str
    #: Where the method was published, or what it is folklore of.
    paper: ClassVar[str] = ""
    #: Raised when its answers change, so that kept ones are not mistaken for them.
    revision: ClassVar[int] = 1

    @abstractmethod
    def fit(self, train: Columns) -> Self: ...

    @abstractmethod
    def predict(self, queries: Queries, context: History) -> Predictive:
        """Answer each query, knowing the training data and what `context` allows it to look back on."""


def marginal(train: Columns) -> Knots:
    """The training replies' distribution in one row, with a thin tail over all that the schema allows."""
    rtt = train.rtt[train.replied]
    if not len(rtt):
        rtt = np.array([1.0, 100.0])
    values = np.quantile(rtt, LEVELS)
    prior = np.expm1(np.linspace(0, np.log1p(MAX_RTT_MS), 33))
    everything = Knots(prior[None], np.linspace(0, 1, 33), np.zeros(1))
    # One part in a thousand for what has never been seen; more when little has been.
    weight = np.array([1.0 / (1.0 + min(len(rtt), 1000))])
    return mixed(values[None], LEVELS, everything, weight, np.zeros(1))


def medians(number: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Median of the values of each group 0 … size - 1, none of which is empty."""
    order = np.lexsort((values, number))
    start = np.searchsorted(number[order], np.arange(size))
    end = np.searchsorted(number[order], np.arange(size), side="right")
    ranked = values[order]
    return 0.5 * (ranked[start + (end - start - 1) // 2] + ranked[start + (end - start) // 2])
