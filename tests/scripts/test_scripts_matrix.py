"""Measurements of a matrix: every node has a network of its own."""

import runpy
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).parents[2] / "scripts" / "matrix_measurements.py"


def test_networks_are_distinct_and_only_repeated_ones_change():
    script = runpy.run_path(str(SCRIPT))
    drawn = np.random.default_rng(1).integers((20, 0, 0), (80, 256, 256), (490, 3))
    as_drawn = [".".join(map(str, network)) for network in drawn.tolist()]
    assert script["distinct_networks"](drawn, 1) == as_drawn
    drawn[[7, 300]] = drawn[3]
    networks = script["distinct_networks"](drawn, 1)
    assert len(set(networks)) == 490
    assert [i for i in range(490) if networks[i] != as_drawn[i]] == [7, 300]
    assert networks == script["distinct_networks"](drawn, 1)
