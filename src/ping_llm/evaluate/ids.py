"""Addresses as small integers: 0, 1, 2 … in order of first appearance."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def _binary(packed: np.ndarray) -> pa.Array:
    """uint8 [n, w] as Arrow's fixed-size binary, without a copy where memory allows."""
    packed = np.ascontiguousarray(packed, np.uint8)
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(packed.shape[1]), len(packed), [None, pa.py_buffer(packed)]
    )


class Ids:
    """The distinct rows of a byte array, numbered. Hashing is Arrow's: exact, and 20 M rows a second."""

    def __init__(self, packed: np.ndarray):
        encoded = _binary(packed).dictionary_encode()
        self._known = encoded.dictionary
        #: int64 [n]: the number of each row that was given.
        self.of_rows = encoded.indices.to_numpy().astype(np.int64)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, packed: np.ndarray) -> np.ndarray:
        """int64 [n]: the number of each row, -1 where it is new."""
        found = pc.index_in(_binary(packed), value_set=self._known)
        return found.fill_null(-1).to_numpy().astype(np.int64)

    def packed(self) -> np.ndarray:
        """The distinct rows, in order of their numbers."""
        width = self._known.type.byte_width
        return np.frombuffer(b"".join(self._known.to_pylist()), np.uint8).reshape(-1, width)


def pairs_of(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """uint8 [n, 32]: source and destination side by side, to number pairs with."""
    return np.concatenate([src, dst], axis=1)
