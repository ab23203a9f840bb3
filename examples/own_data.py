"""Use your own measurements: a CSV file becomes a table, a split without leaks, probe rows and batches.

    python examples/own_data.py pings.csv out

The file has the columns event_time (a time, or seconds since 1970), src_addr, dst_addr and rtt (ms; -1 for no
reply). Results of RIPE Atlas and Parquet files are read as well. Needs ping-llm without extras.
"""

import sys
from pathlib import Path

import ping_llm


def main(pings: str, out: str) -> None:
    folder = Path(out)

    # Files of any size: validated, without duplicates, and every record is accounted for.
    report = ping_llm.ingest(pings, folder / "measurements")
    print(f"{report.total.measurements:,} measurements; rejected: {dict(report.total.rejects)}")

    # Data that fit into memory can be viewed with pandas (`.to_arrow().to_pandas()`), polars or pyarrow.
    measurements = ping_llm.read(folder / "measurements")
    print(measurements.to_arrow().slice(0, 3).to_pylist())

    splits = ping_llm.split(measurements)
    for name in ("later", "pairs", "sources", "destinations"):
        print(f"test {name}: {len(splits.test(name)):,} measurements")

    # Input for training a network: the training part by source, then packed batches of tokens.
    manifest = ping_llm.build_rows(splits.train, folder / "rows")
    print(f"{manifest['counts']['rows']:,} probe rows")
    batch = next(ping_llm.Batches(folder / "rows", batch_size=4, length=256))
    print(f"a batch: {batch['inputs'].shape} tokens, {(batch['targets_segmentation'] > 0).mean():.0%} used")


if __name__ == "__main__":
    main(*sys.argv[1:])
