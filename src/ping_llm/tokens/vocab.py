"""The vocabulary: 16 role tokens, then one token for each byte value.

The ids are plain integers, because compiled kernels use them as constants. Only this module defines the field
to which a token belongs: `ROLES`, `FIELD_OF_ROLE`, `starts_field` and `roles_of`.
"""

from collections.abc import Collection
from enum import IntEnum
from typing import Any

import numpy as np

from ping_llm.measurements.throughput import LARGEST_CODE

#: Versions of vocabulary, grammar and encodings together, specified in docs/formats.md: version 2 adds EXTRA
#: with the probe id, version 3 with the throughput. A version is used only if a field needs it.
TOKENS_FORMATS = TOKENS_FORMAT, EXTRA_FORMAT, THROUGHPUT_FORMAT = 1, 2, 3

PAD = 0
MEASUREMENT = 1
SRC_IPV4 = 2
SRC_IPV6 = 3
DST_IPV4 = 4
DST_IPV6 = 5
TIME_ABS = 6
TIME_DELTA1 = 7
TIME_DELTA4 = 8
RTT = 9
FAILED = 10
PREFIX_END = 11
SIZE = 12
ERRORS = 13
MSM_ID = 14
EXTRA = 15  # the next byte determines which further field follows

BYTE0 = 16
VOCABULARY_SIZE = BYTE0 + 256

ROLE_NAMES = (
    "PAD",
    "MEASUREMENT",
    "SRC_IPV4",
    "SRC_IPV6",
    "DST_IPV4",
    "DST_IPV6",
    "TIME_ABS",
    "TIME_DELTA1",
    "TIME_DELTA4",
    "RTT",
    "FAILED",
    "PREFIX_END",
    "SIZE",
    "ERRORS",
    "MSM_ID",
    "EXTRA",
)

#: Largest values of fields. TIME_ABS has eight bytes, but times must be within Arrow's timestamp[us], of
#: which this is the last whole second.
LARGEST_SECONDS = (2**63 - 1) // 1_000_000
LARGEST_DELTA1 = 255
LARGEST_DELTA4 = 2**32 - 1
LARGEST_SIZE = 65_535
LARGEST_ERRORS = 255
LARGEST_MSM_ID = 2**63 - 1
LARGEST_PROBE_ID = 2**32 - 1
LARGEST_THROUGHPUT = LARGEST_CODE

#: Values of the byte after EXTRA; all others are reserved.
EXTRA_PROBE_ID, EXTRA_THROUGHPUT = 1, 2


class Field(IntEnum):
    """The fields of a measurement, each stated at most once. The numbers are codes in compiled kernels."""

    SRC = 0
    DST = 1
    TIME = 2
    RESULT = 3
    SIZE = 4
    ERRORS = 5
    MSM_ID = 6
    PROBE_ID = 7
    THROUGHPUT = 8


#: The role tokens that can begin each field; exactly one of them does.
ROLES: dict[Field, tuple[int, ...]] = {
    Field.SRC: (SRC_IPV4, SRC_IPV6),
    Field.DST: (DST_IPV4, DST_IPV6),
    Field.TIME: (TIME_ABS, TIME_DELTA1, TIME_DELTA4),
    Field.RESULT: (RTT, FAILED),
    Field.SIZE: (SIZE,),
    Field.ERRORS: (ERRORS,),
    Field.MSM_ID: (MSM_ID,),
    Field.PROBE_ID: (EXTRA,),
    Field.THROUGHPUT: (EXTRA,),
}

#: The field that EXTRA begins, by the byte after it.
FIELD_OF_EXTRA = {EXTRA_PROBE_ID: Field.PROBE_ID, EXTRA_THROUGHPUT: Field.THROUGHPUT}


#: Optional fields by the names of `ContextOptions.fields`, in the order in which they are stated, and their
#: numbers of tokens.
OPTIONAL = {
    "size": Field.SIZE,
    "errors": Field.ERRORS,
    "msm_id": Field.MSM_ID,
    "probe_id": Field.PROBE_ID,
    "throughput": Field.THROUGHPUT,
}
OPTIONAL_LENGTHS = {"size": 3, "errors": 2, "msm_id": 9, "probe_id": 6, "throughput": 4}

#: The field that each role token begins. PAD, MEASUREMENT and PREFIX_END begin none; for EXTRA the next byte
#: determines the field.
FIELD_OF_ROLE: dict[int, Field] = {
    role: field for field, roles in ROLES.items() for role in roles if role != EXTRA
}

#: Default fields of a context.
DEFAULT_FIELDS = (Field.SRC, Field.DST, Field.TIME, Field.RESULT)

#: Smallest number of fields per measurement; a single field would not relate values to each other.
LEAST_FIELDS = 2


def starts_field(ids: Any) -> Any:
    """Mask of the tokens in a NumPy or JAX array that begin a measurement or a field.

    PREFIX_END is also a role token, but it ends an address, so it belongs to the role before it.
    """
    return (ids < BYTE0) & (ids != PREFIX_END)


def roles_of(ids: np.ndarray) -> np.ndarray:
    """The role to which each token belongs, along the last axis; before the first role, the first token."""
    at = np.where(starts_field(ids), np.arange(ids.shape[-1]), 0)
    return np.take_along_axis(ids, np.maximum.accumulate(at, axis=-1), axis=-1)


#: Value in the result of `fields_of` for a token that belongs to no field.
NO_FIELD = -1

_FIELD_OF_ROLE = np.array([FIELD_OF_ROLE.get(role, NO_FIELD) for role in range(BYTE0)])
_FIELD_OF_EXTRA = np.array([FIELD_OF_EXTRA.get(byte, NO_FIELD) for byte in range(256)])


def fields_of(ids: np.ndarray) -> np.ndarray:
    """The Field to which each token belongs, along the last axis; NO_FIELD for MEASUREMENT, PAD and similar.

    For EXTRA, the next byte determines the field; an EXTRA at the very end belongs to no field.
    """
    last = ids.shape[-1] - 1
    start = np.maximum.accumulate(np.where(starts_field(ids), np.arange(last + 1), 0), axis=-1)
    role = np.take_along_axis(ids, start, axis=-1)
    which = np.take_along_axis(ids, np.minimum(start + 1, last), axis=-1) - BYTE0
    of_extra = np.where(which >= 0, _FIELD_OF_EXTRA[np.maximum(which, 0)], NO_FIELD)
    of_role = np.where(role < BYTE0, _FIELD_OF_ROLE[np.minimum(role, BYTE0 - 1)], NO_FIELD)
    return np.where(role == EXTRA, of_extra, of_role)


def tokens_format(fields: Collection[str]) -> int:
    """The version of the tokens that these optional fields need."""
    if "throughput" in fields:
        return THROUGHPUT_FORMAT
    return EXTRA_FORMAT if "probe_id" in fields else TOKENS_FORMAT


def token_name(token: int) -> str:
    """The name of a role, or a byte in hexadecimal."""
    if 0 <= token < BYTE0:
        return ROLE_NAMES[token]
    if token < VOCABULARY_SIZE:
        return f"{token - BYTE0:02x}"
    raise ValueError(f"{token} is not a token id: ids are 0 to {VOCABULARY_SIZE - 1}")
