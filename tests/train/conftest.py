"""Small data and small models for trainings that take seconds; what is long is shared by all workers."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from small_training import NO_TIME, command, in_time_config, start


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of one test run share."""
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    (folder / "train").mkdir(exist_ok=True)
    return folder / "train"


def _once(common: Path, name: str, make: Callable[[Path], Any]) -> Path:
    out = common / name
    with FileLock(f"{out}.lock"):
        if not (common / f"{name}.done").exists():
            shutil.rmtree(out, ignore_errors=True)
            make(out)
            (common / f"{name}.done").touch()
    return out


def _simulated_rows(out: Path, measurements: int, probes: int, seed: int) -> None:
    from ping_llm.rows.build import RowOptions, build
    from ping_llm.simulate import WorldOptions, simulate

    measured = out.with_name(out.name + "-measurements")
    simulate(measured, WorldOptions(measurements=measurements, probes=probes, targets=20, days=2, seed=seed))
    build([str(measured)], out, RowOptions())


@pytest.fixture(scope="session")
def rows(common: Path) -> Path:
    """Probe rows of a small simulated Internet."""
    return _once(common, "rows", lambda out: _simulated_rows(out, 4000, 40, 0))


@pytest.fixture(scope="session")
def few_rows(common: Path) -> Path:
    """So few that an epoch is a handful of small batches."""
    return _once(common, "few-rows", lambda out: _simulated_rows(out, 100, 10, 1))


@pytest.fixture(scope="session")
def undisturbed(common: Path, rows: Path, few_rows: Path) -> Path:
    """A finished run with evaluations, TensorBoard and W&B (offline); not to be changed."""

    def make(run: Path) -> None:
        words = command(run, rows, "--eval-rows", str(few_rows), "eval_interval=5", "enable_wandb=true")
        done = start(words, WANDB_MODE="offline")
        _, errors = done.communicate()
        assert done.returncode == 0, errors[-3000:]

    return _once(common, "undisturbed", make)


@pytest.fixture(scope="session")
def in_time(common: Path, rows: Path) -> Path:
    """A finished training whose time was over at once; not to be changed."""

    def make(run: Path) -> None:
        from ping_llm.train.run import train

        config = in_time_config(run.with_name("in-time.yml"))
        assert train(str(config), run=run, rows=rows, minutes=NO_TIME).state == "finished"

    return _once(common, "in-time", make)


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """The finished run, to be damaged at will."""
    return Path(shutil.copytree(undisturbed, tmp_path / undisturbed.name))
