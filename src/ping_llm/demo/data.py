"""The demo's data: a simulated world, cut in two by time."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ping_llm.demo.options import DemoOptions
from ping_llm.files import whole_file
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate


def make_world(out: Path, options: DemoOptions) -> None:
    simulate(
        out,
        WorldOptions(
            measurements=options.measurements,
            probes=options.probes,
            targets=options.targets,
            days=options.days,
            seed=options.seed,
        ),
    )


def split_by_time(world: Path, out: Path, share: float) -> None:
    """Write out/train.parquet and out/holdout.parquet: all that is held out is later than the rest."""
    held, train = out / "holdout.parquet", out / "train.parquet"
    if held.exists() and train.exists():
        return
    table = ds.dataset(world, format="parquet", exclude_invalid_files=True).to_table()
    time = table["event_time"].cast("int64").to_numpy()
    cut = np.quantile(time, 1 - share)
    for path, mask in ((train, time < cut), (held, time >= cut)):
        with whole_file(path) as aside:
            pq.write_table(table.filter(pc.equal(mask, True)), aside)
