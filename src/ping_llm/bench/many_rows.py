"""Millions of rows that take little to make: one shard, named many times by manifest and index."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.addresses import unpack
from ping_llm.files import write_json
from ping_llm.rows.build import build
from ping_llm.rows.index import open_index, write_index
from ping_llm.rows.manifest import MANIFEST_FILE, load_manifest

#: Rows of the one real shard, 65 MB.
REAL_ROWS = 100_000


def write(folder: Path, rows: int) -> None:
    """Rows of one measurement each. Planning and reading cannot tell that the shards are the same file."""
    real = min(rows, REAL_ROWS)
    addresses = np.zeros((real, 16), np.uint8)
    addresses[:, 10:12] = 255
    addresses[:, 12:] = (np.arange(real, dtype=">u4") + (11 << 24)).view(np.uint8).reshape(-1, 4)
    table = pa.table(
        {
            "event_time": pa.array(1_700_000_000_000_000 + np.arange(real), pa.timestamp("us", tz="UTC")),
            "src_addr": unpack(addresses),
            "dst_addr": pa.array(["192.0.2.1"] * real),
            "rtt": pa.array(np.linspace(1.0, 300.0, real)),
        }
    )
    measurements = folder.with_name(folder.name + "-measurements.parquet")
    pq.write_table(table, measurements)
    build([measurements], folder)
    measurements.unlink()
    manifest = load_manifest(folder)
    copies = -(-rows // real)
    index = folder / manifest["index"]["file"]
    write_index(index, [open_index(index)] * copies)
    manifest["shards"] *= copies
    write_json(folder / MANIFEST_FILE, manifest)
