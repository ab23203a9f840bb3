"""Share of rankings whose first choice is the fastest of ten destinations, and the regret of the others.

Sources that measured at least fourteen destinations are queried for ten of them. Their measurements to these
ten are held out, and methods learn from the rest. The truth is the median of the held-out replies. Each
method chooses the destination with the least expected cost by its answers, as `rank` does.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.answering import STACK
from ping_llm.answer.base import BaseModel
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import GRID
from ping_llm.answer.methods.registry import make, usable
from ping_llm.answer.model import Model
from ping_llm.answer.rank import TIMEOUT_MS
from ping_llm.errors import PingError
from ping_llm.fit.calibrate import calibrate_columns
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.packaged import NAME
from ping_llm.model.random import random_tensors
from ping_llm.progress import Progress
from ping_llm.splits.holdout import SplitOptions

#: Number of candidates, and of further destinations that a source must have measured.
_CANDIDATES, _MORE = 10, 4


#: The smallest possible network: it is not trained, so the stack gives it no weight.
_UNTRAINED = ModelConfig(layers=1, width=16, heads=1, kv_heads=1, head_dim=16, mlp_width=16, max_length=128)


def write_untrained(run: Path) -> None:
    """Write a run with an untrained network, to hold a stack of simple methods."""
    export.write(_UNTRAINED, random_tensors(_UNTRAINED, seed=5), {"context": {}}, run / "export")


@dataclass(frozen=True)
class Groups:
    """Sources with ten candidates each.

    Attributes:
      train: measurements to learn from.
      queries: the candidates of all sources, ten by ten.
      truth: float64 [sources, 10], medians of the held-out replies, ms.
    """

    train: Columns
    queries: Queries
    truth: np.ndarray


def groups(columns: Columns, most: int, seed: int = 0) -> Groups:
    """Hold out ten destinations of each of at most `most` sources."""
    columns = columns.sorted_by_time()
    replies = columns.take(columns.replied)
    random = np.random.default_rng(seed)
    pair, source = Ids(pairs_of(replies.src, replies.dst)).of_rows, Ids(replies.src).of_rows
    _, first = np.unique(pair, return_index=True)
    numbers, counts = np.unique(source[first], return_counts=True)
    able = numbers[counts >= _CANDIDATES + _MORE]
    if not len(able):
        raise PingError(f"no source has {_CANDIDATES + _MORE} destinations to choose from")
    held, rows, truth = [], [], []
    for number in random.permutation(able)[:most]:
        chosen = random.permutation(first[source[first] == number])[:_CANDIDATES]
        held.append(pair[chosen])
        rows.append(chosen)
        truth.append([float(np.median(replies.rtt[pair == pair[row]])) for row in chosen])
    chosen_rows = np.concatenate(rows)
    apart = Ids(pairs_of(replies.src[chosen_rows], replies.dst[chosen_rows]))
    train = columns.take(~apart.has(pairs_of(columns.src, columns.dst)))
    # Questions are later than all training data, so that a source's other measurements are known.
    time = np.full(len(chosen_rows), int(columns.time.max()) + 1_000_000, np.int64)
    queries = Queries(time, replies.src[chosen_rows], replies.dst[chosen_rows])
    return Groups(train, queries, np.array(truth))


def chosen(distributions: RttDistributions, count: int = _CANDIDATES) -> np.ndarray:
    """Return the candidate with the least expected cost for each source, int [sources]."""
    within = GRID <= TIMEOUT_MS
    late = 1 - (1 - distributions.failure)[:, None] * distributions.on(GRID[within])
    return np.trapezoid(late, GRID[within], axis=1).reshape(-1, count).argmin(axis=1)


def score(truth: np.ndarray, choice: np.ndarray) -> dict[str, float]:
    """Return the share of sources whose fastest was chosen, and mean and median regret, ms."""
    got, best = truth[np.arange(len(truth)), choice], truth.min(axis=1)
    return {
        "fastest": round(float((got <= best).mean()), 3),
        "regret_ms": round(float((got - best).mean()), 2),
        "median_regret_ms": round(float(np.median(got - best)), 2),
    }


def _stacked(asked: Groups, history: History, questions: int, names: Sequence[str]) -> RttDistributions:
    """Return the answers of a stack of simple methods that was fitted to the training data."""
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as folder:
        run = Path(folder)
        write_untrained(run)
        stack = calibrate_columns(run, asked.train, SplitOptions(0.8, 0.15, 0.2, 0.2, 2), questions, names)
        return stack.answer(Model.load(run, data=False), asked.queries, history).distributions


def measure(
    columns: Columns, most: int, questions: int, names: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """Return figures of simple methods, of their stack (weights from held-out questions), and of `base`.

    Args:
      names: simple methods, `stack` and `base`; default: all.
    """
    asked = groups(columns, most, seed)
    history = History(asked.train)
    names = tuple(names or (*usable(), STACK, NAME))
    simple = [name for name in names if name not in (STACK, NAME)]
    out: dict[str, Any] = {"sources": len(asked.truth), "train": len(asked.train), "methods": {}}
    with Progress("rank", len(names), "methods") as progress:
        for name in names:
            if name == STACK:
                answers = _stacked(asked, history, questions, simple)
            elif name == NAME:
                base = BaseModel.packaged().about(asked.train)
                assert base.stack is not None
                answers = base.stack.answer(base, asked.queries, history).distributions
            else:
                answers = make(name).fit(asked.train).predict(asked.queries, history)
            out["methods"][name] = score(asked.truth, chosen(answers))
            progress.advance()
    out["methods"]["by chance"] = {
        "fastest": 1 / _CANDIDATES,
        "regret_ms": round(float((asked.truth.mean(axis=1) - asked.truth.min(axis=1)).mean()), 2),
        "median_regret_ms": round(float(np.median(asked.truth.mean(axis=1) - asked.truth.min(axis=1))), 2),
    }
    return out
