"""Rows that the tests of contexts share."""

import numpy as np
import pytest
from random_rows import random_rows

from ping_llm.contexts.memory_rows import MemoryRows


@pytest.fixture(scope="session")
def small_rows() -> MemoryRows:
    """400 rows that average about 28 measurements, with a long tail."""
    random = np.random.default_rng(7)
    return random_rows(7, np.clip(random.lognormal(2.6, 1.2, 400).astype(np.int64), 1, 1500))
