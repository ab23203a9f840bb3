"""Methods that learn in few steps, for tests whose assertions do not depend on how well they have learned."""

import contextlib
from collections.abc import Iterator

import pytest

from ping_llm.answer.methods import boosted, embeddings, relations_tuned


@contextlib.contextmanager
def short_training() -> Iterator[None]:
    """A tenth of the steps of networks and of the trees of `boosted`; everything else is as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "FEWEST_STEPS", embeddings.FEWEST_STEPS // 10)
        patch.setattr(embeddings, "PASSES", embeddings.PASSES // 10)
        patch.setattr(relations_tuned, "FEWEST_STEPS", relations_tuned.FEWEST_STEPS // 10)
        patch.setattr(relations_tuned, "PAIRS_PER_STEP", relations_tuned.PAIRS_PER_STEP * 10)
        defaults = (boosted.TRAINING_ROWS, boosted.TREES // 10, 0)
        patch.setattr(boosted.Boosted.__init__, "__defaults__", defaults)
        yield


@pytest.fixture(scope="module")
def trained_shortly() -> Iterator[None]:
    """For all tests and fixtures of a module that uses it, by `pytestmark` or by name."""
    with short_training():
        yield
