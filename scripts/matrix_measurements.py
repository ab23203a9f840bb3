"""A matrix of RTTs as measurements between made-up addresses, for training `base` (docs/base.md).

    python scripts/matrix_measurements.py planetlab-490-slice1.txt.gz measurements.parquet

The matrix holds ms, separated by whitespace, row = from, column = to; plain or gzip. Values that are not
above 0 are left out. Every node gets a random network, and every RTT a random time of one day: neither is
known.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.files import whole_file

DAY_US = 86_400_000_000
START_US = 1_577_836_800_000_000  # 2020-01-01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrix", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rtt = np.loadtxt(options.matrix)
    random = np.random.default_rng(options.seed)
    first, second, third = random.integers((20, 0, 0), (80, 256, 256), (len(rtt), 3)).T
    networks = [f"{a}.{b}.{c}" for a, b, c in zip(first, second, third, strict=True)]
    there = (rtt > 0) & ~np.eye(len(rtt), dtype=bool)
    src, dst = np.nonzero(there)
    time = START_US + random.integers(0, DAY_US, len(src))
    table = pa.table(
        {
            "event_time": pa.array(time, pa.timestamp("us", tz="UTC")),
            "src_addr": [f"{networks[i]}.7" for i in src],
            "dst_addr": [f"{networks[i]}.9" for i in dst],
            "rtt": rtt[there],
        }
    )
    with whole_file(options.out) as aside:
        pq.write_table(table, aside)
    print(f"{len(table):,} measurements between {len(rtt):,} nodes")


if __name__ == "__main__":
    main()
