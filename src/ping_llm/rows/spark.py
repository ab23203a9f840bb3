"""The engine that builds the same rows on Apache Spark, for data too large for one machine.

    slices ─mapInArrow: scan─▶ (part, key) ─repartition, sort within partitions, mapInArrow: encode─▶ shards

The scan and the shard writer are those of the other engines, so the bytes are the same. Between them, Spark
moves and sorts the measurements, out of core, and passes each partition as a stream: neither a source nor a
part is ever held completely in memory. A measurement is moved as one binary key, whose bytes are in the sort
order of rows. Executors read the input and write the shards themselves, so both must be on a file system that
all executors share.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from ping_llm.compiled import kernel
from ping_llm.errors import PingError
from ping_llm.measurements.rules import RULES
from ping_llm.rows.build import is_encoded, mark_encoded, write_totals
from ping_llm.rows.inputs import Scanner
from ping_llm.rows.plan import Plan, RunOptions, layout_table, load_plan
from ping_llm.rows.shard import ShardWriter
from ping_llm.rows.sortable import PROBE_ID, WORDS, Sortable, from_batch, hash_key, part_of
from ping_llm.rows.spill import add_content
from ping_llm.spark_session import cause_of, spark_session

_KEY_WORDS = WORDS + 2  # hash, probe (or 0), then the measurement
#: Part number of the rows that carry counts of rejected measurements.
_TALLY = -1

_MOVED = pa.schema([("part", pa.int32()), ("key", pa.binary())])
_MOVED_DDL = "part int, key binary"
_DONE_DDL = "measurements bigint, content binary, rejected binary"


def encode_all(plan: Plan, run: RunOptions) -> None:
    """Build every shard of a plan on Spark."""
    session, own = spark_session("ping-llm rows", run.spark_master)
    try:
        out, memory = str(plan.out.resolve()), run.memory_bytes
        slices = session.createDataFrame([(number,) for number in range(len(plan.slices))], "slice int")
        slices = slices.repartition(max(1, len(plan.slices)), "slice")
        moved = slices.mapInArrow(lambda batches: _scan(batches, out, memory), _MOVED_DDL)
        # A partition gets whole parts, sometimes several; the sort separates them.
        moved = moved.repartition(plan.parts, "part").sortWithinPartitions("part", "key")
        done = moved.mapInArrow(lambda batches: _encode(batches, out), _DONE_DDL).collect()
    except Exception as error:
        raise PingError(f"Spark failed: {cause_of(error)}") from error
    finally:
        if own:
            session.stop()
    content = sum(int.from_bytes(row.content, "little") for row in done) % 2**64
    rejected = sum((np.frombuffer(row.rejected, np.int64) for row in done), np.zeros(len(RULES), np.int64))
    _write_empty_shards(plan)
    write_totals(plan, rejected, sum(row.measurements for row in done), content)


def _scan(batches: Iterable[pa.RecordBatch], out: str, memory_bytes: int) -> Iterator[pa.RecordBatch]:
    """Convert slice numbers to measurements as (part, key), with one row of counts per batch with rejects."""
    plan = load_plan(Path(out))
    table, by_probe = layout_table(plan.splits), plan.options.by_probe
    scanner = Scanner(memory_bytes // 4)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for piece in scanner.batches(plan.slices[number]):
                yield _to_moved(from_batch(piece), table, by_probe)


def _to_moved(piece: Sortable, table: np.ndarray, by_probe: bool) -> pa.RecordBatch:
    count = len(piece.words)
    tally = piece.rejected.tobytes() if piece.rejected.any() else b""
    parts = np.empty(count + bool(tally), np.int32)
    key_words = np.empty((count, _KEY_WORDS), np.uint64)
    _fill_keys(piece.words, table, by_probe, parts, key_words)
    data = key_words.astype(">u8").tobytes() + tally
    offsets = np.arange(len(parts) + 1, dtype=np.int32) * (8 * _KEY_WORDS)
    if tally:
        parts[-1], offsets[-1] = _TALLY, len(data)
    keys = pa.Array.from_buffers(pa.binary(), len(parts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([pa.array(parts), keys], schema=_MOVED)


@kernel
def _fill_keys(words, table, by_probe, parts, keys):
    for row in range(len(words)):
        hashed = hash_key(words, row, by_probe)
        parts[row] = part_of(hashed, table)
        keys[row, 0] = hashed
        keys[row, 1] = words[row, PROBE_ID] if by_probe else np.uint64(0)
        for word in range(WORDS):
            keys[row, 2 + word] = words[row, word]


def _encode(batches: Iterable[pa.RecordBatch], out: str) -> Iterator[pa.RecordBatch]:
    """Write a sorted stream of (part, key) to the shards of its parts; yield the totals."""
    plan = load_plan(Path(out))
    rejected, total, count = np.zeros(len(RULES), np.int64), np.zeros(1, np.uint64), 0
    writer: ShardWriter | None = None
    current = _TALLY
    try:
        for part, keys in _stretches(batches):
            if part == _TALLY:
                for one in keys.to_pylist():
                    rejected += np.frombuffer(one, np.int64)
                continue
            if part != current:
                if writer is not None:
                    _publish(plan, current, writer)
                writer, current = _open(plan, part), part
            words = _to_words(keys)
            assert writer is not None
            writer.add(words, np.arange(len(words)))
            add_content(words, total)
            count += len(words)
        if writer is not None:
            _publish(plan, current, writer)
            writer = None
    finally:
        if writer is not None:
            writer.__exit__(RuntimeError, None, None)
    columns = [pa.array([count]), pa.array([total.tobytes()]), pa.array([rejected.tobytes()])]
    yield pa.RecordBatch.from_arrays(columns, names=["measurements", "content", "rejected"])


def _stretches(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Array]]:
    """The keys of each batch, split where the part changes."""
    for batch in batches:
        parts = batch.column(0).to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        for begin, end in pairwise(edges):
            if end > begin:
                yield int(parts[begin]), batch.column(1).slice(begin, end - begin)


def _to_words(keys: pa.Array) -> np.ndarray:
    """Convert keys, all of 88 bytes, to words."""
    width = 8 * _KEY_WORDS
    fixed = keys.cast(pa.binary(width))
    data = np.frombuffer(fixed.buffers()[1], np.uint8)[fixed.offset * width :][: len(fixed) * width]
    return data.view(">u8").reshape(-1, _KEY_WORDS)[:, 2:].astype(np.uint64)


def _open(plan: Plan, part: int) -> ShardWriter:
    return ShardWriter(
        plan.shard_path(part), plan.options.max_measurements, plan.options.by_probe
    ).__enter__()


def _publish(plan: Plan, part: int, writer: ShardWriter) -> None:
    info, index = writer.finish()
    writer.__exit__(None, None, None)
    mark_encoded(plan, part, info, index)


def _write_empty_shards(plan: Plan) -> None:
    """Write empty shards for parts without measurements."""
    for part in range(plan.parts):
        if not is_encoded(plan, part):
            _publish(plan, part, _open(plan, part))
