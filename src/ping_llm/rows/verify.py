"""Checks that all bytes of a folder of rows agree with its manifest."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.measurements import addresses
from ping_llm.measurements.schema import (
    END_TIME_US,
    MAX_PACKET_ERRORS,
    MAX_RTT_MS,
    MAX_SIZE,
    NO_REPLY,
)
from ping_llm.progress import Progress
from ping_llm.rows.block import RowBlock
from ping_llm.rows.codec import record_bytes
from ping_llm.rows.manifest import (
    MANIFEST_FILE,
    file_sha256,
    fingerprint,
    load_manifest,
    manifest_bytes,
    sealed,
)
from ping_llm.rows.plan import RowOptions, layout, layout_table
from ping_llm.rows.sortable import PROBE_ID, SRC_HIGH, SRC_LOW, WORDS, content, hash_key, part_of, rtt_word
from ping_llm.rows.store import RowStore

_BLOCK_BYTES = 32 << 20
_MAX_PROBLEMS = 20  # per shard: the user needs to know the shard, not all its bad rows


@dataclass(frozen=True)
class Verified:
    """The extent of the check, and the problems found."""

    folders: int
    rows: int
    measurements: int
    bytes: int
    problems: list[str]


def verify(folder: str | Path) -> Verified:
    """Check checksums, counts, order, sizes and every value of a folder, or of all its splits."""
    folder = Path(folder)
    inner = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_FILE}"))
    folders = inner if inner and not (folder / MANIFEST_FILE).exists() else [folder]
    problems: list[str] = []
    rows = measurements = size = 0
    for one in folders:
        manifest = load_manifest(one)
        found = list(_problems_of_manifest(one, manifest))
        if not found:
            found = list(_problems_of_files(one, manifest))
        problems += found
        rows += manifest["counts"]["rows"]
        measurements += manifest["counts"]["measurements"]
        size += sum(shard["bytes"] for shard in manifest["shards"])
    return Verified(len(folders), rows, measurements, size, problems)


def _problems_of_manifest(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    path = folder / MANIFEST_FILE
    if manifest_bytes(manifest) != path.read_bytes() or sealed(manifest) != manifest:
        yield f"{path}: it was changed after it was written (its checksum differs)"
        return
    counts, shards = manifest["counts"], manifest["shards"]
    checksums = [shard["sha256"] for shard in shards]
    if fingerprint(manifest["options"], checksums, manifest["index"]["sha256"]) != manifest["fingerprint"]:
        yield f"{path}: the fingerprint is not that of its shards"
    total = counts["measurements"] + counts["other_splits"] + sum(counts["rejected"].values())
    if counts["in"] != total:
        yield f"{path}: {counts['in']:,} rows in, but measurements and rejects add up to {total:,}"
    for name in ("rows", "measurements"):
        if sum(shard[name] for shard in shards) != counts[name]:
            yield f"{path}: the {name} of the shards do not add up to {counts[name]:,}"


def _problems_of_files(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    known = {shard["file"] for shard in manifest["shards"]}
    for stranger in sorted(folder.glob("*.arrayrecord")):
        if stranger.name not in known:
            yield f"{stranger}: it is not in the manifest"
    index = folder / manifest["index"]["file"]
    whole = True
    for entry in [manifest["index"], *manifest["shards"]]:
        path = folder / entry["file"]
        problem = _problem_of_file(path, entry)
        if problem:
            yield problem
            whole = whole and path != index
    if not whole:
        return
    try:
        store = RowStore(folder, check=False)
    except PingError as error:
        yield str(error)
        return
    yield from _problems_of_rows(store)


def _problem_of_file(path: Path, entry: dict[str, Any]) -> str | None:
    if not path.exists():
        return f"{path}: it is missing"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"{path}: it has {size:,} bytes, the manifest says {entry['bytes']:,}"
    if file_sha256(path) != entry["sha256"]:
        return f"{path}: its checksum differs from the manifest's"
    return None


def _problems_of_rows(store: RowStore) -> Iterator[str]:
    options = RowOptions(**store.manifest["options"])
    splits = layout(options, store.manifest["counts"]["in"])
    table = layout_table(splits)
    split = next(split for split in splits if split.name == (store.manifest["split"] or ""))
    first = 0
    with Progress("verify", len(store), "rows") as progress:
        for number, shard in enumerate(store.manifest["shards"]):
            checker = _ShardChecker(options, table, split.first_part + number)
            path = store.path / shard["file"]
            if path.exists():
                for rows in _blocks(store.counts[first : first + shard["rows"]], first):
                    yield from checker.check(store, rows, path)
                    progress.advance(len(rows))
                if not checker.problems and f"{int(checker.content[0]):016x}" != shard["content"]:
                    yield f"{path}: its measurements are not those that were read from the input"
            first += shard["rows"]


def _blocks(counts: np.ndarray, first: int) -> Iterator[range]:
    """Ranges of rows of about 32 MB."""
    start, size = 0, 0
    for row, count in enumerate(counts.tolist()):
        if size and size + record_bytes(count) > _BLOCK_BYTES:
            yield range(first + start, first + row)
            start, size = row, 0
        size += record_bytes(count)
    if start < len(counts):
        yield range(first + start, first + len(counts))


class _ShardChecker:
    """Checks the rows of a shard in order."""

    def __init__(self, options: RowOptions, table: np.ndarray, part: int):
        self._options, self._table, self._part = options, table, part
        self._last = np.zeros((0, WORDS), np.uint64)  # the last measurement of the previous block
        self._last_count = 0
        self.content = np.zeros(1, np.uint64)
        self.problems = 0

    def check(self, store: RowStore, rows: range, path: Path) -> Iterator[str]:
        try:
            block = store.read(rows)
        except PingError as error:
            yield from self._one_by_one(store, rows, error)
            return
        for row, problem in self._faults(store, rows, block):
            self.problems += 1
            if self.problems <= _MAX_PROBLEMS:
                yield f"{path}: row {row}: {problem}"

    def _one_by_one(self, store: RowStore, rows: range, error: PingError) -> Iterator[str]:
        """Report the rows that cannot be read."""
        self._last, self._last_count = self._last[:0], 0
        for row in rows:
            try:
                store.read([row])
            except PingError as single:
                self.problems += 1
                if self.problems <= _MAX_PROBLEMS:
                    yield str(single)
        if not self.problems:
            self.problems += 1
            yield str(error)

    def _faults(self, store: RowStore, rows: range, block: RowBlock) -> Iterator[tuple[int, str]]:
        begin, index, limit = rows.start, store.index, self._options.max_measurements
        stretch = slice(rows.start, rows.stop)
        counts = np.diff(block.offsets)
        first, last = block.time[block.offsets[:-1]], block.time[block.offsets[1:] - 1]
        for wrong, problem in (
            (counts != index.counts[stretch], "its length differs from the index"),
            ((block.src != index.src[stretch]).any(axis=1), "its source differs from the index"),
            (first != index.first_time[stretch], "its first time differs from the index"),
            (last != index.last_time[stretch], "its last time differs from the index"),
            (addresses.is_ipv4(block.src) != index.ipv4[stretch], "its IP version differs from the index"),
            (counts > limit, f"it has more than {limit:,} measurements"),
            (block.has_other_kinds() != index.other_kinds[stretch], "its kinds differ from the index"),
            (
                block.has_throughput() != index.has_throughput[stretch],
                "having a throughput differs from the index",
            ),
        ):
            for row in np.flatnonzero(wrong)[:_MAX_PROBLEMS]:
                yield begin + int(row), problem
        words = _to_words(block)
        by_probe = self._options.by_probe
        bad = _first_invalid(words, block.rtt, block.size)
        if bad >= 0:
            row = int(np.searchsorted(block.offsets, bad, side="right")) - 1
            yield begin + row, f"measurement {bad - block.offsets[row]} breaks the rules of a measurement"
        joined = np.concatenate([self._last, words])
        starts = np.concatenate([block.offsets[:-1] + len(self._last), [len(joined)]])
        row, fault = _first_disorder(
            joined, starts, self._last_count, limit, by_probe, self._table, self._part, self.content
        )
        if row >= 0:
            yield begin + row, _DISORDERS[fault]
        self._last, self._last_count = words[-1:], int(counts[-1])


_DISORDERS = (
    "it belongs to another shard",
    "its measurements are not in order",
    "it is not in order with the row before it",
    "it continues a row that was not full",
    "its measurements have different keys",
)


def _to_words(block: RowBlock) -> np.ndarray:
    words = np.empty((block.measurements, WORDS), np.uint64)
    words[:, 0:2] = np.repeat(block.src.view(">u8").astype(np.uint64), np.diff(block.offsets), axis=0)
    words[:, 2] = block.time.view(np.uint64)
    words[:, 3:5] = block.dst.view(">u8").astype(np.uint64)
    _rtt_words(block.rtt, words)
    words[:, 6] = (block.msm_id + 1).view(np.uint64)
    words[:, 7] = (block.probe_id + 1).view(np.uint64)
    words[:, 8] = (
        ((block.size_and_kind().astype(np.int64) + 1) << 32) | (block.packet_error_count.astype(np.int64) + 1)
    ).view(np.uint64)
    return words


@kernel
def _rtt_words(rtt, words):
    for i in range(len(rtt)):
        words[i, 5] = rtt_word(rtt[i])


@kernel
def _first_invalid(words, rtt, size):
    for i in range(len(rtt)):
        errors = np.int64(words[i, 8] & np.uint64(0xFFFFFFFF)) - 1
        good = (
            words[i, 2] < np.uint64(END_TIME_US)
            and (rtt[i] == NO_REPLY or 0.0 <= rtt[i] <= MAX_RTT_MS)
            and -1 <= size[i] <= MAX_SIZE  # an invalid kind was left in the size
            and -1 <= errors <= MAX_PACKET_ERRORS
        )
        if not good:
            return i
    return -1


@kernel
def _first_disorder(words, starts, before_count, limit, by_probe, table, part, total):
    """The first row that is out of order, and its fault.

    A measurement before starts[0] is the last one of the previous row, which had `before_count` measurements.
    """
    for row in range(len(starts) - 1):
        begin, end = starts[row], starts[row + 1]
        hashed = hash_key(words, begin, by_probe)
        if part_of(hashed, table) != part:
            return row, 0
        if begin > 0:
            previous = begin - 1
            earlier = hash_key(words, previous, by_probe)
            same = earlier == hashed and _same_key(words, previous, begin, by_probe)
            if same:
                full = (begin - starts[row - 1] if row > 0 else before_count) == limit
                if not full:
                    return row, 3
            if earlier > hashed or (earlier == hashed and _greater(words, previous, begin, by_probe)):
                return row, 2
        total[0] += content(words, begin)
        for i in range(begin + 1, end):
            if not _same_key(words, begin, i, by_probe):
                return row, 4
            if _greater(words, i - 1, i, by_probe):
                return row, 1
            total[0] += content(words, i)
    return -1, 0


@kernel
def _same_key(words, one, other, by_probe):
    if by_probe and words[one, PROBE_ID] != words[other, PROBE_ID]:
        return False
    return words[one, SRC_HIGH] == words[other, SRC_HIGH] and words[one, SRC_LOW] == words[other, SRC_LOW]


@kernel
def _greater(words, one, other, by_probe):
    if by_probe and words[one, PROBE_ID] != words[other, PROBE_ID]:
        return words[one, PROBE_ID] > words[other, PROBE_ID]
    for word in range(WORDS):
        if words[one, word] != words[other, word]:
            return words[one, word] > words[other, word]
    return False
