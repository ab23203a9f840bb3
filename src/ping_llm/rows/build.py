"""Measurements → probe rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from numba import njit

from ping_llm.errors import PingError, UsageError
from ping_llm.files import whole_file, write_json
from ping_llm.progress import Progress
from ping_llm.rows import codec, sortable
from ping_llm.rows.block import RowBlock
from ping_llm.rows.index import FLAG_IPV4, RowIndex, write_index
from ping_llm.rows.inputs import find_inputs
from ping_llm.rows.keys import hash_key, parts_for
from ping_llm.rows.manifest import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_FILE,
    MANIFEST_FILE,
    file_sha256,
    fingerprint,
    shard_name,
)

WRITER_OPTIONS = "group_size:1,uncompressed"
BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class RowOptions:
    """What shapes the rows. The same input and options give the same bytes."""

    max_row_mib: int = 8


def build(inputs: Sequence[str | Path], out: str | Path, options: RowOptions | None = None) -> dict[str, Any]:
    """Group measurements by source into probe rows below `out`; return the manifest."""
    options = options or RowOptions()
    out = Path(out)
    if (out / MANIFEST_FILE).exists():
        raise UsageError(f"{out} already holds probe rows; remove it or name another folder")
    source = find_inputs(inputs)
    connection = duckdb.connect()
    total = connection.execute(f"SELECT count(*) FROM ({source.sql()})").fetchall()[0][0]
    words, rejected = [], np.zeros(len(sortable.RULES), np.int64)
    with Progress("rows: reading", total, "measurements") as progress:
        for batch in connection.sql(source.sql()).to_arrow_reader(BATCH_ROWS):
            piece = sortable.from_batch(batch)
            words.append(piece.words)
            rejected += piece.rejected
            progress.advance(batch.num_rows)
    everything = np.concatenate(words) if words else np.empty((0, sortable.WORDS), np.uint64)
    hashes = _hashes(everything)
    order = np.lexsort((*(everything[:, word] for word in reversed(range(sortable.WORDS))), hashes))
    everything, hashes = everything[order], hashes[order]
    if len(everything) + rejected.sum() != total:
        raise PingError("the measurements read and rejected do not add up to those of the input")

    parts = parts_for(total)
    part_of = ((hashes >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)
    limit = codec.max_measurements(options.max_row_mib << 20)
    shards, indexes = [], []
    for part in range(parts):
        begin, end = np.searchsorted(part_of, [part, part + 1])
        block = _rows(everything[begin:end], limit)
        path = out / shard_name(part, parts)
        with whole_file(path) as aside:
            writer = ArrayRecordWriter(str(aside), WRITER_OPTIONS)
            for record in codec.encode(block):
                writer.write(record)
            writer.close()
        shards.append(
            {
                "file": path.name,
                "rows": len(block),
                "measurements": block.measurements,
                "bytes": path.stat().st_size,
                "sha256": file_sha256(path),
            }
        )
        indexes.append(_index(block))
    write_index(out / INDEX_FILE, indexes)
    index_checksum = file_sha256(out / INDEX_FILE)
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fingerprint": fingerprint(asdict(options), [shard["sha256"] for shard in shards], index_checksum),
        "options": asdict(options),
        "schema": codec.ROW_SCHEMA.serialize().to_pybytes().hex(),
        "source": {"files": len(source.files), "fingerprint": hashlib.sha256(b"").hexdigest()},
        "counts": {
            "in": total,
            "measurements": len(everything),
            "rejected": {str(rule): int(n) for rule, n in zip(sortable.RULES, rejected, strict=True) if n},
            "rows": sum(map(len, indexes)),
        },
        "shards": shards,
        "index": {"file": INDEX_FILE, "sha256": index_checksum},
    }
    write_json(out / MANIFEST_FILE, manifest)
    return manifest


@njit(cache=True, nogil=True)
def _hashes(words):
    out = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        out[row] = hash_key(words, row, False)
    return out


def _rows(words: np.ndarray, limit: int) -> RowBlock:
    """Sorted words → rows, a row at most `limit` measurements."""
    changed = (words[1:, :2] != words[:-1, :2]).any(axis=1)
    starts = np.flatnonzero(np.concatenate([[len(words) > 0], changed]))
    ends = np.append(starts[1:], len(words))
    firsts = np.concatenate(
        [np.arange(begin, end, limit) for begin, end in zip(starts, ends, strict=True)]
        or [np.empty(0, np.int64)]
    )
    counts = np.diff(np.append(firsts, len(words)))
    rtt = words[:, sortable.RTT]
    sign = np.uint64(1 << 63)
    return RowBlock.from_columns(
        words[firsts, :2].astype(">u8").view(np.uint8),
        counts,
        words[:, sortable.TIME].astype(np.int64),
        words[:, 3:5].astype(">u8").view(np.uint8),
        np.where(rtt & sign, rtt ^ sign, ~rtt).view(np.float64),
        words[:, sortable.MSM_ID].astype(np.int64) - 1,
        words[:, sortable.PROBE_ID].astype(np.int64) - 1,
        (words[:, 8] >> np.uint64(32)).astype(np.int64) - 1,
        (words[:, 8] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1,
    )


def _index(block: RowBlock) -> RowIndex:
    from ping_llm.addresses import is_ipv4

    return RowIndex(
        block.time[block.offsets[:-1]],
        block.time[block.offsets[1:] - 1],
        block.src,
        np.diff(block.offsets).astype(np.int32),
        np.where(is_ipv4(block.src), FLAG_IPV4, 0).astype(np.uint8),
    )
