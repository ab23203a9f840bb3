"""Golden bytes: the record, the index, the hash and the order may never change without a new version."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.rows import plan, sortable
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore

GOLDEN = Path(__file__).parents[1] / "golden" / "rows.json"


def table() -> pa.Table:
    return pa.table(
        {
            "event_time": pa.array(
                [1_700_000_300_000_000, 1_700_000_000_000_001, 1_700_000_000_500_000, 0],
                pa.timestamp("us", tz="UTC"),
            ),
            "src_addr": ["192.0.2.1", "192.0.2.1", "2001:db8::1", "192.0.2.9"],
            "dst_addr": ["198.51.100.7", "198.51.100.8", "2001:db8:ffff::53", "198.51.100.7"],
            "rtt": [12.345, -1.0, 302281.66, 0.0],
            "msm_id": pa.array([1001, None, 2**62, 0]),
            "size": pa.array([64, None, 65535, 0]),
            "packet_error_count": pa.array([0, 3, None, 2**31 - 1]),
            "probe_id": pa.array([6000, 6000, 1, None]),
        }
    )


def test_golden_bytes(tmp_path):
    pq.write_table(table(), tmp_path / "in.parquet")
    manifest = build([tmp_path / "in.parquet"], tmp_path / "rows")
    store = RowStore(tmp_path / "rows")
    golden = json.loads(GOLDEN.read_text())
    assert [record.hex() for record in store.read_records(range(3))] == golden["records"]
    assert (tmp_path / "rows" / "index.bin").read_bytes().hex() == golden["index"]
    assert manifest["schema"] == golden["schema"]
    assert manifest["shards"][0]["content"] == golden["content"]
    assert list(manifest) == golden["manifest_keys"]


def test_golden_hashes():
    golden = json.loads(GOLDEN.read_text())["hashes"]
    for text, wanted in golden.items():
        packed = np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64)
        assert f"{int(sortable.hash_source(packed[0], packed[1])):016x}" == wanted


def test_golden_layout():
    """Parts as a function of the input's size."""
    golden = json.loads(GOLDEN.read_text())["parts"]
    assert {str(rows): plan.parts_for(int(rows)) for rows in golden} == golden
