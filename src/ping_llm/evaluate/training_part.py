"""The part of the data that a run may be trained on, as a table of its own.

The split lives in this room, a training begins from files: this is the bridge. Whoever trains on what it
writes has seen nothing of the tests.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm import addresses
from ping_llm.errors import UsageError
from ping_llm.evaluate.columns import Columns, read_measurements
from ping_llm.evaluate.splits import SplitOptions, check, split
from ping_llm.files import write_json

FILE = "measurements.parquet"


def write_training_part(data: Path, out: Path, options: SplitOptions) -> dict:
    """Split measurements and write the training part below `out`; returns the split's counts."""
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: name another folder, so that nothing else is trained on")
    splits = split(read_measurements(data), options)
    out.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(splits.train), out / FILE)
    proof = check(splits)
    write_json(out / "split.json", proof)
    return proof


def table_of(columns: Columns) -> pa.Table:
    """A measurements table with the required columns and the IP version."""
    version = np.where(addresses.is_ipv4(columns.src), 4, 6).astype(np.uint8)
    return pa.table(
        {
            "event_time": pa.array(columns.time, pa.timestamp("us", tz="UTC")),
            "src_addr": addresses.unpack(columns.src),
            "dst_addr": addresses.unpack(columns.dst),
            "ip_version": version,
            "rtt": columns.rtt,
        }
    )
