"""Small random rows, with what is rare in real data made common."""

import numpy as np

from ping_llm.contexts.memory_rows import MemoryRows
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.rows.block import RowBlock

_MAPPED = np.array([0] * 10 + [255] * 2, np.uint8)


def random_rows(
    seed: int, counts: np.ndarray, destinations: int = 6, gap: float = 200.0, shared: bool = False
) -> MemoryRows:
    """Rows of these many measurements, 42 % IPv6, few destinations, gaps of about `gap` seconds.

    Each row has destinations of its own, unless they are `shared`.
    """
    random = np.random.default_rng(seed)
    rows, total = len(counts), int(np.sum(counts))
    src = random.integers(0, 256, (rows, 16), np.uint8)
    src[:, 0] = 0x20  # no IPv6 address may look like a mapped one
    ipv4 = random.random(rows) < 0.58
    src[ipv4, :12] = _MAPPED
    pools = random.integers(0, 256, (rows, destinations, 16), np.uint8)
    if shared:
        pools[:] = pools[0]
        pools[:, ::2, :14] = pools[:, :1, :14]  # some with a common prefix
    pools[:, :, 0] = 0x2A
    pools[ipv4, :, :12] = _MAPPED
    of_row = np.repeat(np.arange(rows), counts)
    dst = pools[of_row, random.integers(0, destinations, total)]
    gaps = random.exponential(gap, total) * 1e6
    clock = np.cumsum(gaps).astype(np.int64)
    begins = np.cumsum(counts) - counts
    time = 1_700_000_000_000_000 + clock - np.repeat(clock[begins], counts)
    rtt = np.where(random.random(total) < 0.05, NO_REPLY, np.round(random.lognormal(3.5, 1.2, total), 3))
    # Drawn apart: the rest is as it was before there were probe ids. Those of five bytes are not stated.
    probes = np.random.default_rng(seed + 1).choice([-1, 0, 6012, 2**32 - 1, 2**32], total)
    throughputs = np.random.default_rng(seed + 2).choice([0, 0, 1, 129, 1337, 4095], total)
    return MemoryRows(
        RowBlock.from_columns(
            src,
            counts,
            time,
            dst,
            rtt,
            msm_id=random.integers(-1, 3, total),
            probe_id=probes,
            size=random.integers(-1, 1500, total),
            packet_error_count=random.integers(-1, 300, total),
            throughput=throughputs,
        )
    )
