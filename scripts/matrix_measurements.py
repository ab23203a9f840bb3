"""Convert a matrix of RTTs to measurements between random addresses, for training `base` (docs/base.md).

    python scripts/matrix_measurements.py planetlab-490-slice1.txt.gz measurements.parquet

The matrix holds ms, separated by whitespace, row = from, column = to; plain or gzip. Values that are not
above 0 are left out. Every node gets a random /24 network of its own, and every RTT a random time of one
day, since the file has neither.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.files import whole_file

DAY_US = 86_400_000_000
START_US = 1_577_836_800_000_000  # 2020-01-01

#: First three bytes of the networks, least and one above the largest: 3.9 million networks.
BOUNDS = (20, 0, 0), (80, 256, 256)


def distinct_networks(drawn: np.ndarray, seed: int) -> list[str]:
    """Return a network per node: the drawn one, or another if an earlier node has the same.

    Of 490 nodes, two have the same network with 3 % of the seeds. Others are drawn by a generator of their
    own, so that everything else stays as it was drawn.
    """
    random = np.random.default_rng((seed, 1))
    every = {tuple(network) for network in drawn.tolist()}
    taken: set[tuple[int, ...]] = set()
    networks = []
    for network in map(tuple, drawn.tolist()):
        while network in taken:
            other = tuple(random.integers(*BOUNDS).tolist())
            if other not in every:
                network = other
        taken.add(network)
        networks.append(".".join(map(str, network)))
    return networks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrix", type=Path, help="File of the matrix.")
    parser.add_argument("out", type=Path, help="Parquet file to write.")
    parser.add_argument("--seed", type=int, default=1, help="Random seed. Default: 1.")
    options = parser.parse_args()
    rtt = np.loadtxt(options.matrix)
    random = np.random.default_rng(options.seed)
    networks = distinct_networks(random.integers(*BOUNDS, (len(rtt), 3)), options.seed)
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
