"""A short run of the fuzzers; `make fuzz` runs a million inputs."""

import random

import fuzz
import pytest


def test_every_target_is_run(tmp_path):
    tried = fuzz.fuzz(inputs=6_000, seconds=60, seed=0, finds=tmp_path / "finds")
    assert all(tried.values())
    assert sum(tried.values()) >= 6_000
    assert not (tmp_path / "finds").exists()


def test_a_find_is_kept_by_its_seed(tmp_path, monkeypatch):
    def broken(noise: random.Random, folder) -> int:
        raise AssertionError(noise.random())

    monkeypatch.setattr(fuzz, "TARGETS", {broken: 1.0})
    with pytest.raises(AssertionError):
        fuzz.fuzz(inputs=1, seconds=60, seed=3, finds=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["3-broken-1.txt"]
