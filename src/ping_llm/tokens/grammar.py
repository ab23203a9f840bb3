"""The tokens that may come next: the grammar as an automaton, for constrained decoding.

A sequence that follows the masks can be decoded wherever it may end, and every sequence that can be decoded
follows the masks: the first token that a mask forbids is the position of the decoder's error.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ping_llm.measurements.addresses import MAPPED_PREFIX
from ping_llm.tokens import vocab
from ping_llm.tokens.rtt import RttEncoding, rtt_encoding
from ping_llm.tokens.vocab import BYTE0, FIELD_OF_EXTRA, FIELD_OF_ROLE, LEAST_FIELDS, ROLES, Field

_START = vocab.PAD  # before the first token of the context: only MEASUREMENT may come
_BETWEEN = vocab.MEASUREMENT  # all fields that have begun are complete

_DELTAS = (vocab.TIME_DELTA1, vocab.TIME_DELTA4)
_ADDRESS_BYTES = {vocab.SRC_IPV4: 4, vocab.SRC_IPV6: 16, vocab.DST_IPV4: 4, vocab.DST_IPV6: 16}


@dataclass(frozen=True)
class Grammar:
    """A position in a context: Grammar() is the first, `after` gives the next. Immutable.

    Attributes:
      encoding: The RTT encoding, which determines the number of bytes of an RTT and their possible values.
      fields: Fields that a measurement may state: a model knows only the fields it was trained on.
      previous_seconds: The last time that the context stated; without it, time deltas are not allowed.
    """

    encoding: RttEncoding = field(default_factory=rtt_encoding)
    fields: frozenset[Field] = frozenset(Field)
    previous_seconds: int | None = None
    _stated: frozenset[Field] = frozenset()
    _role: int = _START
    _written: bytes = b""

    def __post_init__(self) -> None:
        if len(self.fields) < LEAST_FIELDS:
            raise ValueError(f"a measurement states at least {LEAST_FIELDS} fields: allow as many")

    @property
    def may_end(self) -> bool:
        """Whether the tokens so far are a complete context (which may be empty)."""
        return self._role == _START or (self._role == _BETWEEN and len(self._stated) >= LEAST_FIELDS)

    @property
    def stated(self) -> frozenset[Field] | None:
        """The fields that the current measurement has begun; None before the first measurement.

        A field of EXTRA is included after the byte that follows EXTRA.
        """
        return None if self._role == _START else self._stated

    def allowed(self) -> np.ndarray:
        """Mask of the ids that may come next, bool [272]. At least one is True."""
        mask = np.zeros(vocab.VOCABULARY_SIZE, bool)
        if self._role == _START:
            mask[vocab.MEASUREMENT] = True
        elif self._role == _BETWEEN:
            for stated, roles in ROLES.items():
                if stated in self.fields and stated not in self._stated:
                    mask[list(roles)] = True
            if self.previous_seconds is None:
                mask[list(_DELTAS)] = False
            mask[vocab.MEASUREMENT] = self.may_end
        elif self._role in _ADDRESS_BYTES:
            mask[BYTE0:] = True
            mask[vocab.PREFIX_END] = len(self._written) > 0
            if self._role in (vocab.SRC_IPV6, vocab.DST_IPV6) and self._written == MAPPED_PREFIX[:-1]:
                mask[BYTE0 + MAPPED_PREFIX[-1]] = False
        elif self._role == vocab.EXTRA and not self._written:
            for byte, stated in FIELD_OF_EXTRA.items():
                mask[BYTE0 + byte] = stated in self.fields and stated not in self._stated
        else:
            count, largest = self._number()
            missing = count - len(self._written) - 1
            room = (largest >> (8 * missing)) - (int.from_bytes(self._written, "big") << 8)
            mask[BYTE0 : BYTE0 + min(room + 1, 256)] = True
        return mask

    def after(self, token: int) -> "Grammar":
        """The position after one more token; raises ValueError if it is not allowed."""
        if not (0 <= token < vocab.VOCABULARY_SIZE and self.allowed()[token]):
            raise ValueError(f"token {token} may not come here")
        if token == vocab.MEASUREMENT:
            return replace(self, _stated=frozenset(), _role=_BETWEEN, _written=b"")
        if token == vocab.PREFIX_END:
            return self._end_field()
        if token < BYTE0:
            stated = self._stated
            if token != vocab.EXTRA:  # the byte after EXTRA determines the field
                stated |= {FIELD_OF_ROLE[token]}
            begun = replace(self, _stated=stated, _role=int(token), _written=b"")
            return begun._end_field() if token == vocab.FAILED else begun
        grown = replace(self, _written=self._written + bytes([token - BYTE0]))
        if self._role == vocab.EXTRA and not self._written:
            return replace(grown, _stated=self._stated | {FIELD_OF_EXTRA[token - BYTE0]})
        return grown._end_field() if len(grown._written) == grown._count() else grown

    def follow(self, ids: Iterable[int]) -> "Grammar":
        """The position after many tokens."""
        place = self
        for token in ids:
            place = place.after(token)
        return place

    def _count(self) -> int:
        """Number of bytes of the current field when it is complete."""
        return _ADDRESS_BYTES[self._role] if self._role in _ADDRESS_BYTES else self._number()[0]

    def _number(self) -> tuple[int, int]:
        """Number of bytes and largest value of the current field, which is a number."""
        if self._role == vocab.RTT:
            return self.encoding.bytes, self.encoding.largest_code
        if self._role in _DELTAS:
            room = vocab.LARGEST_SECONDS - (self.previous_seconds or 0)
            one = self._role == vocab.TIME_DELTA1
            return (1, min(room, vocab.LARGEST_DELTA1)) if one else (4, min(room, vocab.LARGEST_DELTA4))
        if self._role == vocab.EXTRA:
            which = self._written[0]
            if which == vocab.EXTRA_PROBE_ID:
                return 5, (which << 32) + vocab.LARGEST_PROBE_ID
            return 3, (which << 16) + vocab.LARGEST_THROUGHPUT
        return {
            vocab.TIME_ABS: (8, vocab.LARGEST_SECONDS),
            vocab.SIZE: (2, vocab.LARGEST_SIZE),
            vocab.ERRORS: (1, vocab.LARGEST_ERRORS),
            vocab.MSM_ID: (8, vocab.LARGEST_MSM_ID),
        }[self._role]

    def _end_field(self) -> "Grammar":
        seconds = self.previous_seconds
        if self._role == vocab.TIME_ABS:
            seconds = int.from_bytes(self._written, "big")
        elif self._role in _DELTAS:
            seconds = (seconds or 0) + int.from_bytes(self._written, "big")
        return replace(self, previous_seconds=seconds, _role=_BETWEEN, _written=b"")
