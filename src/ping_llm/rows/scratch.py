"""Memory that a thread uses again: fresh pages cost as much as filling them."""

import threading

import numpy as np

_local = threading.local()


def reused(name: str, size: int, kind: type[np.generic]) -> np.ndarray:
    """An array of this thread, with what was left in it. Valid until the same name is asked for again."""
    arrays = _local.__dict__
    if name not in arrays or len(arrays[name]) < size or arrays[name].dtype != kind:
        arrays[name] = np.empty(size + size // 4, kind)
    return arrays[name][:size]
