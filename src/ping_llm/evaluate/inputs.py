"""Options and inputs of an evaluation: the split data and the questions.

Data are plain measurements, which are split here, or a folder that already holds splits.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ping_llm.answer.methods.registry import BASELINES
from ping_llm.evaluate.metrics import REPLICATES
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.parquet import read_measurements
from ping_llm.splits.check import check_held_out
from ping_llm.splits.holdout import SplitOptions, Splits, fitting, given, split
from ping_llm.splits.questions import DESTINATION_CONTEXT, SOURCE_CONTEXT, Test, questions_of


@dataclass(frozen=True)
class EvaluateOptions:
    """Options.

    Attributes:
      splits: what is held out, where the data are not split already.
      queries: largest number of questions per test, drawn at random; 0 is all.
      source_context: numbers of known measurements of a new source, one test each.
      destination_context: numbers of other sources whose result of a new destination is known, one test each:
        for methods, and for the packaged model. A run is not told of them.
      context_sizes: numbers of context measurements to compare.
      context_queries: questions of that comparison, since every size costs a pass of the model.
      address_questions: addresses of each end and IP version that are completed, by best-first search, which
        takes about 0.2 s per number of known bytes.
      replicates: bootstrap replicates.
      baselines: names of `answer.methods.registry`.
      places: files that say where prefixes are: adds errors by distance and country, and a baseline.
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
    """Addresses to complete beside so many questions: none for a quick look, since each takes seconds."""
    return most if queries == 0 or queries >= 500 else 0


#: Names under which the parts of a split folder are looked for, as folders or Parquet files.
_TRAIN = ("train",)
_TEST = ("test", "holdout", "val", "validation")


@dataclass(frozen=True)
class EvaluationData:
    train: Columns
    tests: list[Test]
    proof: dict  # counts that show what the tests share with the training data
    fingerprint: str

    def learned(self, test: Test) -> Columns:
        """What a method learns from before it is asked the questions of a test."""
        return Columns.concatenate([self.train, test.learned]).sorted_by_time()


def read(path: Path, options: EvaluateOptions, every_column: bool = False) -> EvaluationData:
    """Read and split measurements, and draw the questions.

    Args:
      every_column: whether to read the optional columns, for what was trained on them or depends on them.
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
    """The questions of a split."""
    tests = questions_of(
        splits, options.queries, options.seed, options.source_context, options.destination_context
    )
    return EvaluationData(splits.train, tests, check_held_out(splits), splits.fingerprint)


def _part(path: Path, names: tuple[str, ...]) -> Path | None:
    candidates = [path / name for name in names] + [path / f"{name}.parquet" for name in names]
    return next((candidate for candidate in candidates if candidate.exists()), None)
