"""The hash that decides splits: 64 bits of addresses or whole rows, the same on every machine and for ever.

Not DuckDB's hash(), which may change with its version: a source must stay in its split when the data grow and
the programs age. The mixing is that of splitmix64; docs/formats.md specifies it.
"""

import numpy as np

from ping_llm.compiled import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR2 = np.uint64(0x94D049BB133111EB)
_SHIFT30, _SHIFT27, _SHIFT31 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel
def mix(x):
    x = x + _GOLDEN
    x = (x ^ (x >> _SHIFT30)) * _FACTOR1
    x = (x ^ (x >> _SHIFT27)) * _FACTOR2
    return x ^ (x >> _SHIFT31)


@kernel
def absorb(state, words, result):
    """result[i] = the hash of words[i, :] with a starting state."""
    for row in range(len(words)):
        value = mix(np.uint64(state))
        for column in range(words.shape[1]):
            value = mix(value ^ words[row, column])
        result[row] = value


def hash_words(seed: int, words: np.ndarray) -> np.ndarray:
    """uint64 [n] of uint64 [n, k]."""
    result = np.empty(len(words), np.uint64)
    absorb(np.uint64(seed), np.ascontiguousarray(words, np.uint64), result)
    return result


def address_words(packed: np.ndarray) -> np.ndarray:
    """uint64 [n, 2], big-endian, of packed addresses."""
    return np.ascontiguousarray(packed).view(">u8").astype(np.uint64).reshape(-1, 2)


def pair_words(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """uint64 [n, 4]: both addresses, the smaller first, so that there and back are one pair."""
    first, second = address_words(one), address_words(other)
    swap = (first[:, 0] > second[:, 0]) | ((first[:, 0] == second[:, 0]) & (first[:, 1] > second[:, 1]))
    return np.where(
        swap[:, None], np.concatenate([second, first], axis=1), np.concatenate([first, second], axis=1)
    )
