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


#: Files of tests that take longest, or wait for other programs, in this order before all others: the workers
#: of a run get whole files (--dist loadfile), and what they get last must be short.
FIRST = (
    "demo/test_demo.py",
    "answer/test_answer_bulk.py",
    "train/test_train_slurm.py",
    "fit/test_fit.py",
    "train/test_train_budget.py",
    "train/test_train_resume.py",
    "ingest/test_ingest_cluster.py",
    "train/test_train_teacher.py",
    "train/test_train_processes.py",
    "rows/test_rows_spark.py",
    "train/test_train_ends.py",
    "fit/test_fit_tune.py",
    "train/test_train_made_with.py",
    "serve/test_serve_load.py",
    "bench/test_bench_encodings.py",
    "answer/test_answer_base.py",
    "answer/test_answer_baselines.py",
    "evaluate/test_evaluate_report.py",
    "model/test_model_parity.py",
)
_FIRST = {REPOSITORY / "tests" / name: place for place, name in enumerate(FIRST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _FIRST.get(item.path, len(_FIRST)))


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
