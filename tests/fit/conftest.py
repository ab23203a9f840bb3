"""A small simulated world as a CSV file."""

import pyarrow.csv as pa_csv
import pytest
from short_training import trained_shortly

from ping_llm.measurements.parquet import read_measurements
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate

__all__ = ["trained_shortly"]


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=4000, probes=16, targets=10, days=4, seed=5))
    path = folder / "pings.csv"
    pa_csv.write_csv(read_measurements(folder).to_arrow(), path)
    return path
