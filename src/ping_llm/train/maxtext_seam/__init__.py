"""The interface to MaxText 0.2.5: the only module that imports it, with all of its internals that are used.

No file of MaxText is changed. During a training, some of its functions are replaced: those for data
iterators, shapes of a batch, the TensorBoard writer, the metric logger, saving of checkpoints, the loss, and
the two steps that return it. Most replacements call or extend the original. The TensorBoard writer never
does, the data iterators do not for our own dataset type, and the saving of checkpoints does only where
MaxText itself would save at that step. tests/train/test_seam.py names each internal, so that after an
incompatible upgrade it fails and shows what has changed.
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
