"""Finding where JSON values begin and end, byte by byte, compiled.

Characters are their ASCII codes: 34 is a quote, 44 a comma, 91 and 93 are brackets, 92 a backslash,
123 and 125 braces.
"""

import numpy as np

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
            elif character == 92:
                escaped = True
            elif character == 34:
                in_string = False
        elif character == 34:
            in_string = True
        elif character == 91 or character == 123:
            level += 1
            deepest = max(deepest, level)
        elif character == 93 or character == 125:
            level -= 1
    return deepest, level


def depth(text: bytes) -> int:
    """How deep the brackets and braces of a JSON text go, valid or not."""
    return int(_depth(np.frombuffer(text, np.uint8))[0])


def is_open(text: bytes) -> bool:
    """Does the text end inside brackets or braces?"""
    return _depth(np.frombuffer(text, np.uint8))[1] > 0


# What `split_values` remembers from one buffer to the next, in an int64 array.
LEVEL, IN_STRING, ESCAPED, IN_SCALAR, IN_ARRAY, START, BEFORE, BEFORE_THAT = range(8)
STATE_SIZE = 8


def new_state() -> np.ndarray:
    state = np.zeros(STATE_SIZE, np.int64)
    state[START] = -1
    return state


@kernel
def split_values(data, begin, state, starts, ends):
    """Find the records in data[begin:]: the elements of top-level arrays, and other top-level values.

    Commas are not insisted on. Two things put a broken record to an end, so that it does not swallow those
    after it: a newline inside a string (never valid JSON), and a line that begins with {" (dumps have one
    result a line).

    Args:
      state: carried over; state[START] is the open record's start in data, or -1.
      starts, ends: int64, at least len(data) + 1 - begin long: filled with the records that end here.

    Returns:
      how many records end here.
    """
    level, start = state[LEVEL], state[START]
    in_string, escaped = state[IN_STRING] != 0, state[ESCAPED] != 0
    in_scalar, in_array = state[IN_SCALAR] != 0, state[IN_ARRAY] != 0
    before, before_that = state[BEFORE], state[BEFORE_THAT]
    found = 0
    for index in range(begin, len(data)):
        character = data[index]
        if in_string:
            if escaped:
                escaped = False
            elif character == 92:
                escaped = True
            elif character == 34:
                in_string = False
                if level == 0:
                    starts[found], ends[found] = start, index + 1
                    found += 1
                    start = -1
            if character == 10:
                in_string = False
                escaped = False
                level = 0
                starts[found], ends[found] = start, index
                found += 1
                start = -1
        elif level > 0:
            if character == 34:
                in_string = True
                if before == 123 and before_that == 10 and level > 1:
                    starts[found], ends[found] = start, index - 2
                    found += 1
                    start = index - 1
                    level = 1
            elif character == 91 or character == 123:
                level += 1
            elif character == 93 or character == 125:
                level -= 1
                if level == 0:
                    starts[found], ends[found] = start, index + 1
                    found += 1
                    start = -1
        else:
            space = character == 32 or character == 9 or character == 10 or character == 13
            mark = (
                character == 44 or character == 91 or character == 93 or character == 123 or character == 125
            )
            if in_scalar and (space or mark or character == 34):
                in_scalar = False
                starts[found], ends[found] = start, index
                found += 1
                start = -1
            if character == 91 and not in_array:
                in_array = True
            elif character == 93 and in_array:
                in_array = False
            elif character == 91 or character == 123:
                level = 1
                start = index
            elif character == 93 or character == 125:
                starts[found], ends[found] = index, index + 1
                found += 1
            elif character == 34:
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
    return found
