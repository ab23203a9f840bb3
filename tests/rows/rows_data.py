"""Small random measurements for the tests of rows."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.measurements import addresses


def random_addresses(rng: np.random.Generator, count: int, ipv4: np.ndarray) -> list[str]:
    packed = rng.integers(0, 256, (count, 16), np.uint8)
    packed[:, 0] = 0x20
    packed[ipv4, :12] = np.frombuffer(addresses.MAPPED_PREFIX, np.uint8)
    return addresses.unpack(packed).to_pylist()


def measurements(count: int, sources: int = 100, seed: int = 0, span_s: int = 5000) -> pa.Table:
    """Random measurements with a long tail of sources, times that repeat, and all optional columns."""
    rng = np.random.default_rng(seed)
    ipv4 = rng.random(sources) < 0.58
    source_texts = random_addresses(rng, sources, ipv4)
    target_texts = {four: random_addresses(rng, 20, np.full(20, four)) for four in (False, True)}
    weights = rng.pareto(1.2, sources) + 0.3
    chosen = rng.choice(sources, count, p=weights / weights.sum())
    rtt = np.round(rng.lognormal(4, 1, count), 3)
    rtt[rng.random(count) < 0.035] = -1.0
    unknown = rng.random(count) < 0.1
    return pa.table(
        {
            "event_time": pa.array(
                (1_700_000_000 + rng.integers(0, span_s, count)) * 1_000_000, pa.timestamp("us", tz="UTC")
            ),
            "src_addr": [source_texts[index] for index in chosen],
            "dst_addr": [target_texts[bool(ipv4[index])][rng.integers(20)] for index in chosen],
            "ip_version": pa.array(np.where(ipv4[chosen], 4, 6), pa.uint8()),
            "rtt": rtt,
            "msm_id": pa.array(rng.integers(1000, 9000, count), mask=unknown),
            "size": pa.array(np.full(count, 64)),
            "packet_error_count": pa.array(rng.integers(0, 4, count)),
            "probe_id": pa.array(chosen // 2, mask=unknown),
        }
    )


def write_measurements(path: Path, count: int, **options) -> pa.Table:
    table = measurements(count, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=max(1, count // 7))
    return table


EDGES = {
    "event_time": [None, -1, 0, 1, 4_102_444_800_000_000 - 1, 4_102_444_800_000_000, 5_000_000],
    "src_addr": [
        None,
        "",
        "nonsense",
        "1.2.3.4",
        "::ffff:1.2.3.4",
        "2001:DB8::1",
        "2001:db8:0::1",
        "1.2.3.4.5",
    ],
    "dst_addr": [None, "", "fe80::1%eth0", "8.8.8.8", "2001:4860:4860::8888", "::1"],
    "ip_version": [None, 4, 6, 5],
    "rtt": [
        None,
        -1.0,
        0.0,
        -0.0,
        0.001,
        302281.66,
        3_600_000.0,
        3_600_000.1,
        float("nan"),
        float("inf"),
        -2.0,
    ],
    "msm_id": [None, 0, -1, -2, 2**63 - 1],
    "size": [None, 0, 65_535, 65_536],
    "packet_error_count": [None, 0, 2**31 - 1, 2**31],
    "probe_id": [None, 0, 7],
}
KINDS = {
    "event_time": pa.timestamp("us", tz="UTC"),
    "src_addr": pa.string(),
    "dst_addr": pa.string(),
    "ip_version": pa.uint8(),
    "rtt": pa.float64(),
}


def edge_table(seed: int, count: int, columns=tuple(EDGES)) -> pa.Table:
    """Measurements of edge cases, mostly the valid ones so that some survive."""
    rng = np.random.default_rng(seed)
    common = {
        "event_time": 5_000_000,
        "src_addr": "1.2.3.4",
        "dst_addr": "8.8.8.8",
        "ip_version": 4,
        "rtt": 1.5,
    }
    chosen = {
        name: [
            common[name]
            if name in common and rng.random() < 0.8
            else EDGES[name][rng.integers(len(EDGES[name]))]
            for _ in range(count)
        ]
        for name in columns
    }
    return pa.table({name: pa.array(values, KINDS.get(name, pa.int64())) for name, values in chosen.items()})


def folder_bytes(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
