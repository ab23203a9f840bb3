"""The keys that say how batches are made reach the loader, and Grain's own summary comes out."""

import shutil
from types import SimpleNamespace

import pytest
from small_training import SMALL, losses

from ping_llm.contexts.batches import Batches
from ping_llm.errors import UsageError
from ping_llm.train import settings, tuning
from ping_llm.train.run import train

_KEYS = {
    "grain_worker_count": 3,
    "grain_worker_count_eval": 1,
    "grain_per_worker_buffer_size": 2,
    "grain_per_worker_buffer_size_eval": 4,
    "grain_ram_budget_mb": 512,
    "network_threads": 5,
    "network_on_bad_row": "skip",
    "network_data_format": "network_parquet",
}


def test_each_key_is_one_of_the_loaders():
    config = SimpleNamespace(**_KEYS)
    common = {"ram_budget_mb": 512, "threads": 5, "on_bad_row": "skip", "data_format": "network_parquet"}
    assert settings.loader_options(config) == {"workers": 3, "per_worker_buffer_size": 2, **common}
    assert settings.loader_options(config, evaluation=True) == {
        "workers": 1,
        "per_worker_buffer_size": 4,
        **common,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("grain_worker_count", -2),
        ("grain_per_worker_buffer_size", 0),
        ("grain_ram_budget_mb", -1),
        ("network_threads", -1),
    ],
)
def test_a_number_that_cannot_be(key, value):
    with pytest.raises(UsageError, match=f"{key}={value}"):
        settings.loader_options(SimpleNamespace(**_KEYS | {key: value}))


def test_threads_are_chosen_by_measuring(rows):
    """The fewest that are nearly as fast as the fastest; and as many units ahead as slow ones take."""
    tuned = tuning.tune(lambda threads: Batches(rows, batch_size=4, length=128, threads=threads), 0.05)
    assert set(tuned.measured) >= {1}
    best = max(tuned.measured.values())
    assert tuned.measured[tuned.threads] >= 0.9 * best > 0
    assert all(tuned.measured[fewer] < 0.9 * best for fewer in tuned.measured if fewer < tuned.threads)
    assert 1 <= tuned.units_ahead - tuned.threads <= 4
    assert f"loader: {tuned.threads} thread" in str(tuned)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_measurements_through_grains_debug_mode(rows, tmp_path, capsys):
    """A table of measurements instead of rows, with Grain's summary and graph."""
    table = tmp_path / "measurements"
    table.mkdir()
    for file in rows.with_name(rows.name + "-measurements").rglob("*.parquet"):
        shutil.copy(file, table / f"{file.parent.name}-{file.name}")
    seen = tmp_path / "seen"
    words = [*SMALL, "steps=2", "network_data_format=network_parquet", f"grain_visualization_dir={seen}"]
    assert train("tiny", [*words, "grain_debug_mode=true"], run=tmp_path / "run", rows=table).step == 1
    assert list(losses(tmp_path / "run")) == [0, 1]
    assert "Grain execution summary" in capsys.readouterr().err
    assert "UnitIterator" in (seen / "grain_summary.txt").read_text()
    assert "int32[64, 4, 128]" in (seen / "grain_graph.txt").read_text()
