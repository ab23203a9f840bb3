"""The seam to MaxText 0.2.5: the only place that imports it, with every internal that we rely on.

No file of MaxText is changed. For the time of one training, some of its functions are replaced by ours,
each of which calls the original: the maker of data iterators, the saver of checkpoints, the metric logger,
the loss, and the two steps that carry it out. tests/train/test_seam.py names each internal, so that an
upgrade fails there and says what moved.
"""

from ping_llm.train.maxtext_seam.baseline import bare_decoder, bare_forward, run_untouched
from ping_llm.train.maxtext_seam.config import NetworkConfig, own_keys, read_config, sizes
from ping_llm.train.maxtext_seam.loop import Session, run

__all__ = [
    "NetworkConfig",
    "Session",
    "bare_decoder",
    "bare_forward",
    "own_keys",
    "read_config",
    "run",
    "run_untouched",
    "sizes",
]
