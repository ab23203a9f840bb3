"""One training set, four tests that share nothing with it but what they may.

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

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ping_llm.addresses import is_ipv4
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate.columns import Columns
from ping_llm.evaluate.history import History
from ping_llm.evaluate.ids import Ids, pairs_of

KINDS = ("later", "pairs", "sources", "destinations")


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
    def visible(self) -> Columns:
        return self.data.take(self.is_visible)

    def test(self, name: str) -> Columns:
        return self.data.take(self.kind == KINDS.index(name))


def split(data: Columns, options: SplitOptions | None = None) -> Splits:
    """Divide measurements; the result has passed `check`."""
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
    shown_half = _hashed(pair_bytes, options.seed, b"half") < 0.5
    if options.time < 1:
        late = data.time >= data.time[min(int(options.time * len(data)), len(data) - 1)]
    else:
        late = np.ones(len(data), bool)
    kept = ~(new_source | new_destination | new_pair)
    train = kept & ~late if options.time < 1 else kept

    known_source = _among(data.src, data.src[train])
    known_destination = _among(data.dst, data.dst[train])
    known_pair = _among(pair_bytes, pair_bytes[train])
    kind = np.full(len(data), -1, np.int8)
    if options.time < 1:
        kind[late & kept & known_pair] = KINDS.index("later")
    held = late & ~new_destination
    kind[held & new_pair & ~new_source & known_source & known_destination] = KINDS.index("pairs")
    # An asked pair of a new source may be a held-out pair as well: nothing of it is visible either way.
    kind[held & new_source & known_destination & ~shown_half] = KINDS.index("sources")
    kind[late & new_destination & ~new_source & ~new_pair & known_source] = KINDS.index("destinations")
    visible = kept | (new_source & shown_half & ~new_pair & ~new_destination)
    result = Splits(options, data, train, visible, kind, options.time < 1)
    check(result)
    return result


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
    shown_half = _hashed(pairs_of(data.src, data.dst), 0, b"half") < 0.5
    kind = np.full(len(data), -1, np.int8)
    new_source = novelty == Novelty.NEW_SOURCE
    kind[~is_train & (novelty == Novelty.KNOWN_PAIR)] = KINDS.index("later")
    kind[~is_train & (novelty == Novelty.NEW_PAIR)] = KINDS.index("pairs")
    kind[~is_train & new_source & ~shown_half] = KINDS.index("sources")
    kind[~is_train & (novelty == Novelty.NEW_DESTINATION)] = KINDS.index("destinations")
    visible = is_train | (novelty == Novelty.KNOWN_PAIR) | (new_source & shown_half)
    timed = int(train.time.max()) < int(test.time.min())
    result = Splits(None, data, is_train, visible, kind, timed)
    check(result)
    return result


#: What the measurements of a test must have in common with the training data: all of them (1) or none (0).
_RULES = {
    "later": {"earlier_than_train": 0, "pair_in_train": 1},
    "pairs": {"earlier_than_train": 0, "pair_visible": 0, "source_in_train": 1, "destination_in_train": 1},
    "sources": {"earlier_than_train": 0, "pair_visible": 0, "source_in_train": 0, "destination_in_train": 1},
    "destinations": {
        "earlier_than_train": 0,
        "pair_visible": 0,
        "source_in_train": 1,
        "destination_in_train": 0,
    },
}


def check(splits: Splits) -> dict:
    """Prove that nothing leaks, from the data alone; the figures go into the report.

    Raises:
      PingError: something does, with the rule that it broke.
    """
    train, visible = splits.train, splits.visible
    options = asdict(splits.options) if splits.options else None
    report: dict = {"options": options, "timed": splits.timed, "train": len(train), "tests": {}}
    if not len(train):
        raise PingError("nothing is left to train on: hold out less, or bring more measurements")
    last = int(train.time.max())
    train_pairs, visible_pairs = pairs_of(train.src, train.dst), pairs_of(visible.src, visible.dst)
    for name in KINDS:
        test = splits.test(name)
        pairs = pairs_of(test.src, test.dst)
        seen = {
            "earlier_than_train": int((test.time <= last).sum()) if splits.timed else 0,
            "pair_in_train": int(_among(pairs, train_pairs).sum()),
            "pair_visible": int(_among(pairs, visible_pairs).sum()),
            "source_in_train": int(_among(test.src, train.src).sum()),
            "destination_in_train": int(_among(test.dst, train.dst).sum()),
        }
        all_of = len(test)
        for rule, share in _RULES[name].items():
            count = share * all_of
            if seen[rule] != count:
                raise PingError(
                    f"split {name!r} leaks: {rule.replace('_', ' ')} for {seen[rule]:,} of {all_of:,} "
                    f"measurements, where {count:,} are right"
                )
        report["tests"][name] = {
            "measurements": all_of,
            "sources": len(Ids(test.src)),
            "destinations": len(Ids(test.dst)),
            "pairs": len(Ids(pairs)),
            **seen,
        }
    return report


@dataclass(frozen=True)
class Novelty:
    """How new a query is to the training data: the classes in which methods are about equally good."""

    sources: Ids
    destinations: Ids
    pairs: Ids

    KNOWN_PAIR, NEW_PAIR, NEW_SOURCE, NEW_DESTINATION, NEW_ENDS = range(5)
    COUNT = 5

    #: Of a packed address, the bytes that tell its network: two of IPv4, six of IPv6.
    NETWORK_END: ClassVar = {True: 14, False: 6}

    @cached_property
    def networks(self) -> dict[bool, Ids]:
        """The networks of the IPv4 sources (True) and of the others, made once: a run is asked in chunks."""
        sources = self.sources.packed()
        version = is_ipv4(sources)
        return {ipv4: Ids(sources[version == ipv4, :end]) for ipv4, end in self.NETWORK_END.items()}

    @classmethod
    def of(cls, train: Columns) -> "Novelty":
        return cls(Ids(train.src), Ids(train.dst), Ids(pairs_of(train.src, train.dst)))

    def classes(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """int64 [n], one of the five."""
        new_source = self.sources.find(src) < 0
        new_destination = self.destinations.find(dst) < 0
        new_pair = self.pairs.find(pairs_of(src, dst)) < 0
        out = np.where(new_pair, self.NEW_PAIR, self.KNOWN_PAIR)
        out = np.where(new_destination, self.NEW_DESTINATION, out)
        return np.where(new_source, np.where(new_destination, self.NEW_ENDS, self.NEW_SOURCE), out)


def inner_split(train: Columns, seed: int = 1) -> tuple[Columns, Columns, History]:
    """The training data, divided as the whole was: (to learn from, asked about, what may be looked back on).

    The tests of all kinds come together. Queries of new sources look back on 0 to 30 measurements or on
    all, drawn at random, because that is what they will be asked with.
    """
    try:
        splits = split(train, SplitOptions(seed=seed))
    except PingError:  # a handful of measurements: ask about the same that were learned from
        return train, train, History(train, np.full(len(train), _ALL))
    tests = [splits.test(name) for name in KINDS]
    if not any(map(len, tests)):
        return train, train, History(train, np.full(len(train), _ALL))
    random = np.random.default_rng(seed)
    limits = [np.full(len(test), _ALL) for test in tests]
    new = KINDS.index("sources")
    limits[new] = random.choice([0, 1, 2, 5, 10, 30, _ALL], len(tests[new]))
    return splits.train, Columns.concatenate(tests), History(splits.visible, np.concatenate(limits))


#: More than any source has: as good as no limit.
_ALL = 1 << 40


def _among(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    return Ids(known).find(keys) >= 0


def _hashed(keys: np.ndarray, seed: int, salt: bytes) -> np.ndarray:
    """A number in [0, 1) for each row of bytes: the same for the same bytes, seed and salt."""
    words = np.ascontiguousarray(keys).view("<u8")
    start = int.from_bytes(salt[:8].ljust(8, b"\0"), "little") ^ (seed * 0x9E3779B97F4A7C15)
    state = np.full(len(words), start & 0xFFFFFFFFFFFFFFFF, np.uint64)
    for column in range(words.shape[1]):
        state = _mixed(state ^ words[:, column])
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
