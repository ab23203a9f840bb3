"""What every test may use."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The libraries that tests import make a million objects, which stay: they are left out of all collections of
# garbage, during their imports and afterwards.
gc.disable()

REPOSITORY = Path(__file__).parents[1]

# No deadline: the first call of a kernel compiles it. Speed is a benchmark's business, never a test's.
settings.register_profile("ping-llm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ping-llm")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # extension modules report what is left at the exit as leaked


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; without it, the test is skipped."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there")
    return folder
