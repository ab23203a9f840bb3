"""Options and inputs of an evaluation: the split data and the questions.

Data are plain measurements, which are split here, or a folder that already holds splits.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ping_llm.answer.methods.registry import BASELINES
from ping_llm.evaluate.metrics import REPLICATES
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.parquet import read_measurements
from ping_llm.splits.check import check_held_out
from ping_llm.splits.holdout import SplitOptions, Splits, fitting, given, split
from ping_llm.splits.questions import DESTINATION_CONTEXT, SOURCE_CONTEXT, Test, questions_of


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of an evaluation.

    Attributes:
      splits: shares that are held out, if the data are not split already.
      queries: largest number of questions per test, drawn at random; 0: all.
      source_context: numbers of known measurements of a new source, one test each.
      destination_context: numbers of other sources whose result of a new destination is known, one test each.
        They are only for simple methods and the packaged model, and left out if a run is evaluated.
      context_sizes: numbers of context measurements to compare.
      context_queries: largest number of questions of that comparison; every size costs a pass of the model.
      address_questions: number of addresses per end and IP version that are completed, by best-first search,
        which takes about 0.2 s per number of known bytes.
      replicates: number of bootstrap replicates.
      baselines: names from `answer.methods.registry`.
      places: files with the places of prefixes, which add errors by distance and country, and a baseline.
    """

    splits: SplitOptions = field(default_factory=SplitOptions)
    queries: int = 2000
    source_context: tuple[int, ...] = SOURCE_CONTEXT
    destination_context: tuple[int, ...] = DESTINATION_CONTEXT
    context_sizes: tuple[int, ...] = (0, 1, 2, 5, 10, 30, 1000)
    context_queries: int = 200
    address_questions: int = 20
    replicates: int = REPLICATES
    baselines: tuple[str, ...] = tuple(BASELINES)
    seed: int = 0
    places: tuple[str, ...] = ()


def address_questions(queries: int, most: int = 20) -> int:
    """Return the number of addresses to complete: 0 with 1 to 499 `queries`, since each takes seconds."""
    return most if queries == 0 or queries >= 500 else 0


#: Accepted names of the parts of a split folder, which are folders or Parquet files.
_TRAIN = ("train",)
_TEST = ("test", "holdout", "val", "validation")


@dataclass(frozen=True)
class EvaluationData:
    train: Columns
    tests: list[Test]
    proof: dict  # counts that show what the tests share with the training data
    fingerprint: str

    def learned(self, test: Test) -> Columns:
        """Return the measurements that a method learns from before it answers a test."""
        return Columns.concatenate([self.train, test.learned]).sorted_by_time()


def read(path: Path, options: EvaluateOptions, every_column: bool = False) -> EvaluationData:
    """Read and split measurements, and draw the questions.

    Args:
      every_column: whether to read the optional columns, for runs trained on them and simulations.
    """
    measured = partial(read_measurements, every_column=every_column, with_kind=True)
    train, test = _part(path, _TRAIN), _part(path, _TEST)
    if train is not None and test is not None:
        splits = given(measured(train), measured(test))
    else:
        measurements = measured(path)
        splits = split(measurements, fitting(options.splits, measurements))
    return evaluation_data(splits, options)


def evaluation_data(splits: Splits, options: EvaluateOptions) -> EvaluationData:
    """Draw the questions of a split."""
    tests = questions_of(
        splits, options.queries, options.seed, options.source_context, options.destination_context
    )
    return EvaluationData(splits.train, tests, check_held_out(splits), splits.fingerprint)


def evenly_spaced(asked: Columns, most: int) -> Columns:
    """Return at most `most` of the measurements, evenly spaced."""
    if len(asked) <= most:
        return asked
    return asked.take(np.arange(most) * len(asked) // most)


def _part(path: Path, names: tuple[str, ...]) -> Path | None:
    candidates = [path / name for name in names] + [path / f"{name}.parquet" for name in names]
    return next((candidate for candidate in candidates if candidate.exists()), None)
