"""The questions of a split: new destinations that a few other sources have measured."""

import numpy as np
import pytest

from ping_llm.measurements.parquet import read_measurements
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import SplitOptions, split
from ping_llm.splits.questions import questions_of


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=20_000, probes=60, targets=40, days=4, seed=4))
    return read_measurements(folder)


def rows(addresses) -> list[bytes]:
    return [address.tobytes() for address in addresses]


@pytest.mark.parametrize("time", [0.7, 1.0])
def test_results_of_other_sources_to_a_new_destination_are_few_early_and_not_asked(data, time):
    splits = split(data, SplitOptions(time=time, destinations=0.3))
    tests = {test.name: test for test in questions_of(splits, 0, 0, (0,), (1, 5, 1000))}
    assert [name for name in tests if name.startswith("destinations")] == [
        "destinations", "destinations, 1 known", "destinations, 5 known"
    ]  # fmt: skip
    trained = set(rows(splits.train.src))
    held = set(rows(tests["destinations"].asked.dst))
    few = {}
    for count in (1, 5):
        test = tests[f"destinations, {count} known"]
        asked = set(zip(rows(test.asked.src), rows(test.asked.dst), strict=True))
        learned = list(zip(rows(test.learned.src), rows(test.learned.dst), strict=True))
        assert len(learned) == len(set(learned))
        assert not asked & set(learned)
        assert {source for source, _ in learned} <= trained
        assert {destination for _, destination in asked} <= held
        _, counts = np.unique([destination for _, destination in learned], return_counts=True)
        assert counts.max() == count
        of_asked = [sum(dst == destination for _, dst in learned) for _, destination in asked]
        assert set(of_asked) == {count}
        # What is learned from lies before every question, and is a real result.
        if splits.timed:
            assert test.learned.time.max() < tests["destinations"].asked.time.min()
        real = {*zip(data.time.tolist(), rows(data.src), rows(data.dst), data.rtt.tolist(), strict=True)}
        given = zip(test.learned.time.tolist(), rows(test.learned.src), rows(test.learned.dst),
                    test.learned.rtt.tolist(), strict=True)  # fmt: skip
        few[count] = set(given)
        assert few[count] <= real
    assert few[1] < few[5]  # more is known, and nothing else
