"""A compiled scanner, byte by byte, that finds where JSON values begin and end."""

import numpy as np

from ping_llm.ascii import (
    BACKSLASH,
    BRACE,
    BRACE_END,
    BRACKET,
    BRACKET_END,
    COLON,
    COMMA,
    NEWLINE,
    QUOTE,
    RETURN,
    SPACE,
    TAB,
)
from ping_llm.compiled import kernel


@kernel
def _depth(data):
    level = 0
    deepest = 0
    in_string = False
    escaped = False
    for character in data:
        if in_string:
            if escaped:
                escaped = False
            elif character == BACKSLASH:
                escaped = True
            elif character == QUOTE:
                in_string = False
        elif character == QUOTE:
            in_string = True
        elif character in (BRACKET, BRACE):
            level += 1
            deepest = max(deepest, level)
        elif character in (BRACKET_END, BRACE_END):
            level -= 1
    return deepest, level


def depth(text: bytes) -> int:
    """The nesting depth of brackets and braces in a JSON text, which may be invalid."""
    return int(_depth(np.frombuffer(text, np.uint8))[0])


def is_open(text: bytes) -> bool:
    """Whether the text ends inside brackets or braces."""
    return _depth(np.frombuffer(text, np.uint8))[1] > 0


# State of `split_values` between buffers, as indices of an int64 array.
(
    LEVEL, IN_STRING, ESCAPED, IN_SCALAR, IN_ARRAY, START, BEFORE, BEFORE_THAT,
    KINDS, LAST, HASH, KEY, CANDIDATE,
) = range(13)  # fmt: skip
STATE_SIZE = 13

#: Mask of the kinds of open containers, one bit each, the innermost lowest; at greater depth the outermost
#: are dropped.
_KIND_BITS = 2**62 - 1

#: Initial value of the hash of a key; a hash of 0 means no key.
_HASH_SEED = 7


def new_state() -> np.ndarray:
    state = np.zeros(STATE_SIZE, np.int64)
    state[START] = state[CANDIDATE] = -1
    return state


def split_text(text: bytes) -> tuple[np.ndarray, np.ndarray, bool]:
    """Starts and ends of the records in a whole text, and whether the last one is open."""
    state = new_state()
    starts, ends = np.empty(len(text) + 1, np.int64), np.empty(len(text) + 1, np.int64)
    found = int(split_values(np.frombuffer(text, np.uint8), 0, state, starts, ends))
    still_open = bool(state[START] >= 0)
    if still_open:
        starts[found], ends[found] = state[START], len(text)
        found += 1
    return starts[:found].copy(), ends[:found].copy(), still_open


@kernel
def split_values(data, begin, state, starts, ends):
    """Find the records in data[begin:]: the elements of top-level arrays, and other top-level values.

    Commas are not required. Two things end a broken record, so that it does not include those after it: a
    newline inside a string (never valid JSON), and a line that begins with {" (dumps have one result per
    line). Where the grammar allows an object, as in a list of packets with one packet per line, such a line
    ends the record only if its first key is the first key of the record.

    Args:
      state: State from the previous buffer; state[START] is the start of the open record in data, or -1, and
        state[CANDIDATE] that of a line which may end it.
      starts, ends: int64, with a length of at least len(data) + 1 - begin; filled with the records that end
        in this buffer.

    Returns:
      The number of records that end in this buffer.
    """
    level, start = state[LEVEL], state[START]
    in_string, escaped = state[IN_STRING] != 0, state[ESCAPED] != 0
    in_scalar, in_array = state[IN_SCALAR] != 0, state[IN_ARRAY] != 0
    before, before_that = state[BEFORE], state[BEFORE_THAT]
    kinds, last, hashed, key, candidate = (
        state[KINDS], state[LAST], state[HASH], state[KEY], state[CANDIDATE]
    )  # fmt: skip
    found = 0
    for index in range(begin, len(data)):
        character = data[index]
        if in_string:
            if escaped:
                escaped = False
            elif character == BACKSLASH:
                escaped = True
            elif character == QUOTE:
                in_string = False
                last = QUOTE
                if level == 0:
                    starts[found], ends[found] = start, index + 1
                    found += 1
                    start = -1
                elif key == 0:
                    key = hashed
                elif candidate >= 0:
                    if hashed == key:
                        starts[found], ends[found] = start, candidate - 1
                        found += 1
                        start = candidate
                        level = 1
                        kinds = 0
                    candidate = -1
            if character == NEWLINE:
                in_string = False
                escaped = False
                level = 0
                starts[found], ends[found] = start, index
                found += 1
                start = candidate = -1
            hashed = hashed * 31 + character
        elif level > 0:
            if character == QUOTE:
                in_string = True
                hashed = _HASH_SEED
                if before == BRACE and before_that == NEWLINE and level > 1:
                    # `last` is already the brace; `candidate` holds whether an object was allowed before it.
                    if candidate < 0:
                        starts[found], ends[found] = start, index - 2
                        found += 1
                        start = index - 1
                        level = 1
                        kinds = 0
                        key = 0
                else:
                    candidate = -1
            elif character in (BRACKET, BRACE):
                if kinds & 1 == 1:
                    allowed = last in (COMMA, BRACKET)
                else:
                    allowed = last == COLON
                candidate = index if character == BRACE and before == NEWLINE and allowed else -1
                level += 1
                kinds = ((kinds << 1) | np.int64(character == BRACKET)) & _KIND_BITS
            elif character in (BRACKET_END, BRACE_END):
                level -= 1
                kinds >>= 1
                if level == 0:
                    starts[found], ends[found] = start, index + 1
                    found += 1
                    start = -1
            if character not in (SPACE, TAB, NEWLINE, RETURN):
                last = character
        else:
            space = character in (SPACE, TAB, NEWLINE, RETURN)
            mark = character in (COMMA, BRACKET, BRACKET_END, BRACE, BRACE_END)
            if in_scalar and (space or mark or character == QUOTE):
                in_scalar = False
                starts[found], ends[found] = start, index
                found += 1
                start = -1
            if character == BRACKET and not in_array:
                in_array = True
            elif character == BRACKET_END and in_array:
                in_array = False
            elif character in (BRACKET, BRACE):
                level = 1
                start = index
                kinds = np.int64(character == BRACKET)
                last = character
                key = 0
                candidate = -1
            elif character in (BRACKET_END, BRACE_END):
                starts[found], ends[found] = index, index + 1
                found += 1
            elif character == QUOTE:
                in_string = True
                start = index
            elif not space and not mark and not in_scalar:
                in_scalar = True
                start = index
        before_that = before
        before = character
    state[LEVEL], state[START] = level, start
    state[IN_STRING], state[ESCAPED] = in_string, escaped
    state[IN_SCALAR], state[IN_ARRAY] = in_scalar, in_array
    state[BEFORE], state[BEFORE_THAT] = before, before_that
    state[KINDS], state[LAST], state[HASH] = kinds, last, hashed
    state[KEY], state[CANDIDATE] = key, candidate
    return found
