"""What is evaluated on: plain measurements, which are split here, or a folder that holds splits."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ping_llm.evaluate.columns import Columns, read_measurements
from ping_llm.evaluate.history import History
from ping_llm.evaluate.options import EvaluateOptions
from ping_llm.evaluate.splits import KINDS, Splits, check, given, split

#: Names under which the parts of a split folder are looked for, as folders or Parquet files.
_TRAIN = ("train",)
_TEST = ("test", "holdout", "val", "validation")


@dataclass(frozen=True)
class Test:
    """Questions of one kind."""

    name: str
    kind: str
    asked: Columns
    context: History


@dataclass(frozen=True)
class EvaluationData:
    train: Columns
    tests: list[Test]
    proof: dict  # counts that show what the tests share with the training data
    fingerprint: str


def read(path: Path, options: EvaluateOptions) -> EvaluationData:
    """Read and split measurements, and draw the questions."""
    train, test = _part(path, _TRAIN), _part(path, _TEST)
    if train is not None and test is not None:
        splits = given(read_measurements(train), read_measurements(test))
    else:
        splits = split(read_measurements(path), options.splits)
    history = History(splits.visible)
    tests = []
    for kind in KINDS:
        asked = _drawn(splits.test(kind), options)
        if not len(asked):
            continue
        if kind == "sources":
            tests += [
                Test(f"sources, {count} known", kind, asked, history.limited(count))
                for count in options.source_context
            ]
        else:
            tests.append(Test(kind, kind, asked, history))
    return EvaluationData(splits.train, tests, check(splits), _fingerprint(splits))


def _part(path: Path, names: tuple[str, ...]) -> Path | None:
    candidates = [path / name for name in names] + [path / f"{name}.parquet" for name in names]
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _drawn(test: Columns, options: EvaluateOptions) -> Columns:
    if not options.queries or len(test) <= options.queries:
        return test
    random = np.random.default_rng(options.seed)
    return test.take(np.sort(random.choice(len(test), options.queries, replace=False)))


def _fingerprint(splits: Splits) -> str:
    digest = hashlib.sha256()
    data = splits.data
    for array in (data.time, data.src, data.dst, data.rtt, splits.is_train, splits.is_visible, splits.kind):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
