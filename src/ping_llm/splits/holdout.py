"""The held-out split: one training set, and four tests that share only permitted properties with it.

The training data are the first part in time, without the held-out sources, destinations and pairs. All tests
are later. So one trained model can be evaluated on all four kinds of question:

- `later`: pairs that were trained on, later in time.
- `pairs`: new pairs of a source and a destination that were both trained on.
- `sources`: new sources. The destinations of such a source are halved: measurements to one half may be in the
  context (k of them, chosen by the evaluation), the other half is queried.
- `destinations`: new destinations.

A hash of the addresses determines what is held out, so it does not depend on the order or size of the data.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.errors import PingError, UsageError
from ping_llm.files import sync_directory, write_json
from ping_llm.hashing import GOLDEN_INT, MASK, mix
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.parquet import read_measurements, write_measurements
from ping_llm.splits.check import among, check_held_out
from ping_llm.splits.novelty import Novelty

KINDS = ("later", "pairs", "sources", "destinations")

#: The report beside the parts of a split.
SPLIT_FILE = "split.json"


@dataclass(frozen=True)
class SplitOptions:
    """Shares that are held out.

    Attributes:
      time: Share of the measurements, oldest first, that may be trained on; with 1.0 there is no cut in time,
        and no `later` test.
    """

    time: float = 0.8
    pairs: float = 0.1
    sources: float = 0.1
    destinations: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Splits:
    """Masks over measurements in time order, and the measurements that they select."""

    options: SplitOptions | None  # None if the user has split the data
    data: Columns
    is_train: np.ndarray  # bool [n]
    is_visible: np.ndarray  # bool [n]: measurements that may be in a context, including the training data
    kind: np.ndarray  # int8 [n]: index in KINDS of the test that a measurement belongs to, -1 for none
    timed: bool  # whether all tests are later than the training data

    @property
    def train(self) -> Columns:
        return self.data.take(self.is_train)

    @property
    def fingerprint(self) -> str:
        """A hash of the measurements and of the part to which each belongs."""
        digest = hashlib.sha256()
        data = self.data
        for array in (data.time, data.src, data.dst, data.rtt, self.is_train, self.is_visible, self.kind):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def visible(self) -> Columns:
        return self.data.take(self.is_visible)

    def test(self, name: str) -> Columns:
        return self.data.take(self.kind == KINDS.index(name))


def split(data: Columns, options: SplitOptions | None = None) -> Splits:
    """Split measurements; the result has passed `check_held_out`."""
    options = options or SplitOptions()
    for name in ("time", "pairs", "sources", "destinations"):
        if not 0 <= getattr(options, name) <= 1:
            raise UsageError(f"the share of {name} must lie between 0 and 1, not {getattr(options, name)}")
    data = data.sorted_by_time()
    if len(data) < 2:
        raise PingError("fewer than two measurements cannot be split")
    pair_bytes = pairs_of(data.src, data.dst)
    new_source = _hashed(data.src, options.seed, b"source") < options.sources
    new_destination = _hashed(data.dst, options.seed, b"destination") < options.destinations
    new_pair = _hashed(pair_bytes, options.seed, b"pair") < options.pairs
    shown = shown_half(data, options.seed)
    if options.time < 1:
        late = data.time >= data.time[min(int(options.time * len(data)), len(data) - 1)]
    else:
        late = np.ones(len(data), bool)
    kept = ~(new_source | new_destination | new_pair)
    train = kept & ~late if options.time < 1 else kept

    known_source = among(data.src, data.src[train])
    known_destination = among(data.dst, data.dst[train])
    known_pair = among(pair_bytes, pair_bytes[train])
    kind = np.full(len(data), -1, np.int8)
    if options.time < 1:
        kind[late & kept & known_pair] = KINDS.index("later")
    held = late & ~new_destination
    kind[held & new_pair & ~new_source & known_source & known_destination] = KINDS.index("pairs")
    # A queried pair of a new source may also be a held-out pair: it is not visible in either case.
    kind[held & new_source & known_destination & ~shown] = KINDS.index("sources")
    kind[late & new_destination & ~new_source & ~new_pair & known_source] = KINDS.index("destinations")
    visible = kept | (new_source & shown & ~new_pair & ~new_destination)
    result = Splits(options, data, train, visible, kind, options.time < 1)
    check_held_out(result)
    return result


def shown_half(data: Columns, seed: int) -> np.ndarray:
    """Mask of the half of the pairs that may be in a context, bool [n]; the other half is queried."""
    return _hashed(pairs_of(data.src, data.dst), seed, b"half") < 0.5


def given(train: Columns, test: Columns) -> Splits:
    """Use a given split: its test measurements go to the tests by their novelty to the training data.

    Earlier test measurements of known pairs are visible, and for new sources those to half of the
    destinations.
    """
    if not len(train) or not len(test):
        raise PingError("a split needs measurements to train on and measurements to test on")
    data = Columns.concatenate([train, test])
    order = np.argsort(data.time, kind="stable")
    is_train = (np.arange(len(data)) < len(train))[order]
    data = data.take(order)
    novelty = Novelty.of(data.take(is_train)).classes(data.src, data.dst)
    shown = shown_half(data, 0)
    kind = np.full(len(data), -1, np.int8)
    new_source = novelty == Novelty.NEW_SOURCE
    kind[~is_train & (novelty == Novelty.KNOWN_PAIR)] = KINDS.index("later")
    kind[~is_train & (novelty == Novelty.NEW_PAIR)] = KINDS.index("pairs")
    kind[~is_train & new_source & ~shown] = KINDS.index("sources")
    kind[~is_train & (novelty == Novelty.NEW_DESTINATION)] = KINDS.index("destinations")
    visible = is_train | (novelty == Novelty.KNOWN_PAIR) | (new_source & shown)
    timed = int(train.time.max()) < int(test.time.min())
    result = Splits(None, data, is_train, visible, kind, timed)
    check_held_out(result)
    return result


#: Smallest share of measurements that repeat a pair with which times are useful for learning.
_LEAST_REPEATS = 0.05


def is_timeless(data: Columns) -> bool:
    """Whether times carry no information: fewer than ten distinct times, or hardly any repeated pair."""
    pairs = len(Ids(pairs_of(data.src, data.dst)))
    return len(np.unique(data.time)) < 10 or len(data) - pairs < _LEAST_REPEATS * len(data)


def fitting(options: SplitOptions, data: Columns) -> SplitOptions:
    """The options, without a cut in time if times carry no information, for both `fit` and `evaluate`."""
    return replace(options, time=1.0) if is_timeless(data) else options


def write_held_out(inputs: Sequence[str | Path], out: Path, options: SplitOptions) -> dict:
    """Split measurements and write every part below `out`, with all columns of the input.

    `train/measurements.parquet` is the training data; `test/` has one file per kind of test; and
    `context/measurements.parquet` has the measurements that questions may use besides the training data. The
    folder gets its name when everything is written.

    Returns:
      The content of `split.json`: the figures of `check_held_out`, and the number of measurements per part.
    """
    measurements = read_measurements(inputs, every_column=True)
    splits = split(measurements, fitting(options, measurements))
    tests = {f"test/{name}": splits.kind == code for code, name in enumerate(KINDS)}
    context = splits.is_visible & ~splits.is_train & (splits.kind < 0)
    parts = {"train/measurements": splits.is_train, **tests, "context/measurements": context}
    counts = {name: int(chosen.sum()) for name, chosen in parts.items()}
    proof = check_held_out(splits) | {
        "parts": {f"{name}.parquet": count for name, count in counts.items() if count},
        "in": len(splits.data),
        "unused": len(splits.data) - sum(counts.values()),
        "fingerprint": splits.fingerprint,
    }
    columns = {
        f"{name}.parquet": partial(splits.data.take, chosen) for name, chosen in parts.items() if counts[name]
    }
    return _write_folder(out, proof, proof["parts"], columns)


def write_training_part(data: str | Path, out: Path, options: SplitOptions) -> dict:
    """Write only the training data, as `measurements.parquet` below `out`; returns its report."""
    measurements = read_measurements(data, every_column=True)
    splits = split(measurements, fitting(options, measurements))
    proof = check_held_out(splits) | {"fingerprint": splits.fingerprint}
    name = "measurements.parquet"
    return _write_folder(out, proof, {name: len(splits.train)}, {name: lambda: splits.train})


def _is_done(out: Path, proof: dict, parts: dict[str, int]) -> bool:
    """Whether the folder holds exactly this split, with all files complete."""
    try:
        same = json.loads((out / SPLIT_FILE).read_text()) == json.loads(json.dumps(proof))
        return same and all(pq.read_metadata(out / name).num_rows == rows for name, rows in parts.items())
    except (OSError, ValueError, pa.ArrowException):
        return False


def _write_folder(
    out: Path, proof: dict, rows: dict[str, int], parts: Mapping[str, Callable[[], Columns]]
) -> dict:
    """Write the parts and the proof into a temporary folder, which is renamed to `out`; returns the proof.

    If `out` already holds this split, it is kept; files of an interrupted run are removed; other files in
    `out` raise a UsageError.
    """
    if _is_done(out, proof, rows):
        return proof
    work = out.with_name(f".{out.name}.part")
    with only_writer(work, "split"):
        if _is_done(out, proof, rows):  # by another process that held the lock until now
            return proof
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} is not empty: name another folder, so that nothing else is trained on")
        for left in work.iterdir():
            if left.name != LOCK_FILE:
                shutil.rmtree(left)
        aside = work / out.name
        try:
            for name, columns in parts.items():
                write_measurements(columns(), aside / name)
            write_json(aside / SPLIT_FILE, proof)
            aside.replace(out)
            sync_directory(out.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        work.rmdir()  # only_writer keeps the folder if a killed run created it
    return proof


#: Inner splits made so far within `inner_splits_kept`, by the id of their data. The data are kept too, so
#: that their ids are not reused.
_kept: ContextVar[dict[tuple[int, int], tuple[Columns, "InnerSplit"]] | None] = ContextVar(
    "kept", default=None
)


@contextmanager
def inner_splits_kept() -> Iterator[None]:
    """Cache inner splits while the block runs: ten methods need the same one, and 300,000 rows take 0.8 s."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def inner_split(train: Columns, seed: int = 1) -> "InnerSplit":
    """The training data, split like the whole data: (training part, queried measurements, history).

    The tests of all kinds are concatenated. Queries of new sources look back on 0 to 30 measurements or on
    all, drawn at random, like the queries of the evaluation.
    """
    kept = _kept.get()
    if kept is None:
        return _inner_split(train, seed)
    if (id(train), seed) not in kept:
        kept[id(train), seed] = (train, _inner_split(train, seed))
    return kept[id(train), seed][1]


def _inner_split(train: Columns, seed: int) -> "InnerSplit":
    try:
        splits = split(train, SplitOptions(seed=seed))
    except PingError:  # too few measurements: query the same ones that are trained on
        return train, train, History(train, np.full(len(train), NO_LIMIT))
    tests = [splits.test(name) for name in KINDS]
    if not any(map(len, tests)):
        return train, train, History(train, np.full(len(train), NO_LIMIT))
    random = np.random.default_rng(seed)
    limits = [np.full(len(test), NO_LIMIT) for test in tests]
    new = KINDS.index("sources")
    limits[new] = random.choice([0, 1, 2, 5, 10, 30, NO_LIMIT], len(tests[new]))
    return splits.train, Columns.concatenate(tests), History(splits.visible, np.concatenate(limits))


InnerSplit = tuple[Columns, Columns, History]

#: Limit of the context that no source reaches, which means no limit.
NO_LIMIT = 1 << 40


def _hashed(keys: np.ndarray, seed: int, salt: bytes) -> np.ndarray:
    """A number in [0, 1) for each row of bytes, determined by bytes, seed and salt."""
    words = np.ascontiguousarray(keys).view("<u8")
    start = int.from_bytes(salt[:8].ljust(8, b"\0"), "little") ^ (seed * GOLDEN_INT)
    state = np.full(len(words), start & MASK, np.uint64)
    for column in range(words.shape[1]):
        state = mix(state ^ words[:, column])
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
