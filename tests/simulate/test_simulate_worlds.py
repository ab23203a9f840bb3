"""Many worlds: each unlike the others, all of them what one command writes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ping_llm.errors import UsageError
from ping_llm.measurements.parquet import read_measurements
from ping_llm.simulate import World, WorldOptions
from ping_llm.simulate.write import draw_worlds, simulate_worlds


def _read(folders: Sequence[Path]):
    return [read_measurements(folder) for folder in folders]


def test_worlds_are_written_side_by_side_and_differ(tmp_path):
    options = simulate_worlds(tmp_path, 3, 1000, seed=4)
    folders = sorted(tmp_path.iterdir())
    assert [folder.name for folder in folders] == ["world-00000", "world-00001", "world-00002"]
    columns = _read(folders)
    assert sum(map(len, columns)) == 1000
    assert len({one.probes for one in options}) > 1
    sources = [{row.tobytes() for row in one.src} for one in columns]
    assert not sources[0] & sources[1]
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.parquet")}
    simulate_worlds(tmp_path, 3, 1000, seed=4)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*.parquet")}


def test_what_is_drawn_can_be_simulated_and_varies():
    drawn = [options.resolved() for options in draw_worlds(200, 400_000, seed=1)]
    for name, low, high in (("probes", 20, 200), ("targets", 6, 60), ("days", 3, 20)):
        values = [getattr(options, name) for options in drawn]
        assert min(values) < low < high < max(values), name
    shares = {options.ipv6_share for options in drawn}
    assert {0.0, 1.0} < shares


def test_an_anycast_target_is_near_from_everywhere():
    plain = WorldOptions(measurements=4000, probes=100, targets=60, seed=3)
    anycast = WorldOptions(measurements=4000, probes=100, targets=60, seed=3, anycast_share=1.0)
    medians = []
    for options in (plain, anycast):
        world = World.build(options)
        source, target = np.divmod(np.arange(50 * 60), 60)
        truth = world.truth(world.sources[source], world.destinations[2 * target], np.full(3000, 10**15))
        medians.append(truth.quantile(0.5))
    assert (medians[1] <= medians[0] + 1e-9).all()
    assert np.quantile(medians[1], 0.9) < 0.7 * np.quantile(medians[0], 0.9)


@pytest.mark.parametrize(("worlds", "measurements"), [(0, 1000), (11, 1000)])
def test_impossible_numbers_are_refused(tmp_path, worlds, measurements):
    with pytest.raises(UsageError):
        simulate_worlds(tmp_path / "out", worlds, measurements)
    assert not (tmp_path / "out").exists()
