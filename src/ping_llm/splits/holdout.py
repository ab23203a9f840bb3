"""The held-out split: one training set, four tests that share nothing with it but what they may.

The training data are the first part of time, without the sources, destinations and pairs that are held
out. All tests lie after it. So one trained model answers for all four questions:

- `later`: pairs that were trained on, later in time.
- `pairs`: pairs that were not, of a source and a destination that were.
- `sources`: sources that were not. The destinations of such a source are halved: measurements to one half
  may be looked back on (k of them, as the evaluation decides), the other half is asked about.
- `destinations`: destinations that were not.

What is held out is decided by a hash of the addresses, so it does not depend on the order or the size of
the data.
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
    """Shares of what is held out.

    Attributes:
      time: share of the measurements, oldest first, that may be trained on; 1.0 does without a cut in
        time, and then there is no `later` test.
    """

    time: float = 0.8
    pairs: float = 0.1
    sources: float = 0.1
    destinations: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Splits:
    """Masks over time-ordered measurements, and what they select."""

    options: SplitOptions | None  # None where somebody else has split
    data: Columns
    is_train: np.ndarray  # bool [n]
    is_visible: np.ndarray  # bool [n]: what a query may look back on, the training data included
    kind: np.ndarray  # int8 [n]: index into KINDS of the test that a measurement belongs to, -1 for none
    timed: bool  # whether all tests lie after the training data

    @property
    def train(self) -> Columns:
        return self.data.take(self.is_train)

    @property
    def fingerprint(self) -> str:
        """Names the measurements and what became of each."""
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
    """Divide measurements; the result has passed `check_held_out`."""
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
    # An asked pair of a new source may be a held-out pair as well: nothing of it is visible either way.
    kind[held & new_source & known_destination & ~shown] = KINDS.index("sources")
    kind[late & new_destination & ~new_source & ~new_pair & known_source] = KINDS.index("destinations")
    visible = kept | (new_source & shown & ~new_pair & ~new_destination)
    result = Splits(options, data, train, visible, kind, options.time < 1)
    check_held_out(result)
    return result


def shown_half(data: Columns, seed: int) -> np.ndarray:
    """bool [n]: the half of the pairs that may be looked at, where the other half is asked about."""
    return _hashed(pairs_of(data.src, data.dst), seed, b"half") < 0.5


def given(train: Columns, test: Columns) -> Splits:
    """Somebody else's split: its test measurements go to the tests by how new they are to the training data.

    Known pairs may be looked back on up to each query; of new sources, half of the destinations.
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


#: Where fewer measurements than this share repeat a pair, there is no earlier and later to learn from.
_LEAST_REPEATS = 0.05


def is_timeless(data: Columns) -> bool:
    """Whether times say nothing: fewer than ten different ones, or hardly a pair measured twice."""
    pairs = len(Ids(pairs_of(data.src, data.dst)))
    return len(np.unique(data.time)) < 10 or len(data) - pairs < _LEAST_REPEATS * len(data)


def fitting(options: SplitOptions, data: Columns) -> SplitOptions:
    """The options without a cut in time where times say nothing; `fit` and `evaluate` split alike."""
    return replace(options, time=1.0) if is_timeless(data) else options


def write_held_out(inputs: Sequence[str | Path], out: Path, options: SplitOptions) -> dict:
    """Split measurements and write every part below `out`, with all columns of the input.

    `train/measurements.parquet` is what may be trained on; `test/` has one file per kind of test; and
    `context/measurements.parquet` is what questions may look back on besides the training data. The folder
    appears when all of it is written.

    Returns:
      what `split.json` holds: the figures of `check_held_out`, and the measurements of each part.
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
    """Write only what may be trained on, as `measurements.parquet` below `out`; returns the counts."""
    measurements = read_measurements(data, every_column=True)
    splits = split(measurements, fitting(options, measurements))
    proof = check_held_out(splits) | {"fingerprint": splits.fingerprint}
    name = "measurements.parquet"
    return _write_folder(out, proof, {name: len(splits.train)}, {name: lambda: splits.train})


def _is_done(out: Path, proof: dict, parts: dict[str, int]) -> bool:
    """Whether the folder holds this very split, with every file whole."""
    try:
        same = json.loads((out / SPLIT_FILE).read_text()) == json.loads(json.dumps(proof))
        return same and all(pq.read_metadata(out / name).num_rows == rows for name, rows in parts.items())
    except (OSError, ValueError, pa.ArrowException):
        return False


def _write_folder(
    out: Path, proof: dict, rows: dict[str, int], parts: Mapping[str, Callable[[], Columns]]
) -> dict:
    """Write the parts and the proof into a folder aside, which becomes `out` at the end; returns the proof.

    What is there already is kept, what an interrupted run left is removed, and anything else is refused.
    """
    if _is_done(out, proof, rows):
        return proof
    work = out.with_name(f".{out.name}.part")
    with only_writer(work, "split"):
        if _is_done(out, proof, rows):  # by whoever held it until now
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
        work.rmdir()  # if a killed run had made it
    return proof


#: Inner splits made so far, within `inner_splits_kept`. Each is kept with its data, so that ids stay theirs.
_kept: ContextVar[dict[tuple[int, int], tuple[Columns, "InnerSplit"]] | None] = ContextVar(
    "kept", default=None
)


@contextmanager
def inner_splits_kept() -> Iterator[None]:
    """Within, the inner split of the same object is made once: ten methods need it, 0.8 s for 300,000."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def inner_split(train: Columns, seed: int = 1) -> "InnerSplit":
    """The training data, divided as the whole was: (to learn from, asked about, what may be looked back on).

    The tests of all kinds come together. Queries of new sources look back on 0 to 30 measurements or on
    all, drawn at random, because that is what they will be asked with.
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
    except PingError:  # a handful of measurements: ask about the same that were learned from
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

#: More than any source has: as good as no limit.
NO_LIMIT = 1 << 40


def _hashed(keys: np.ndarray, seed: int, salt: bytes) -> np.ndarray:
    """A number in [0, 1) for each row of bytes: the same for the same bytes, seed and salt."""
    words = np.ascontiguousarray(keys).view("<u8")
    start = int.from_bytes(salt[:8].ljust(8, b"\0"), "little") ^ (seed * GOLDEN_INT)
    state = np.full(len(words), start & MASK, np.uint64)
    for column in range(words.shape[1]):
        state = mix(state ^ words[:, column])
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
