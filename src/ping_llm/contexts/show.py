"""Packed sequences as people read them: measurement by measurement, segment by segment."""

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from ping_llm.contexts.fill import NOTE_FILLER, NOTE_KIND, NOTE_MODE
from ping_llm.contexts.shape import KIND_NAMES, MODE_NAMES
from ping_llm.contexts.units import FilledUnit
from ping_llm.schema import NO_REPLY
from ping_llm.tokens import reference
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import Field

# ANSI colours of the fields.
_COLOURS = {
    Field.SRC: "36",
    Field.DST: "34",
    Field.TIME: "33",
    Field.RESULT: "32",
    Field.SIZE: "35",
    Field.ERRORS: "35",
    Field.MSM_ID: "35",
}
_FAILED, _BOLD = "31", "1"


def show_batch(filled: FilledUnit, batch: int, encoding: RttEncoding, colour: bool) -> Iterator[str]:
    """The lines of one batch of a unit."""
    for line in range(filled.targets.shape[1]):
        targets, segments = filled.targets[batch, line], filled.segments[batch, line]
        used = int(np.count_nonzero(targets))
        yield _paint(
            f"sequence {line}: {segments.max()} contexts, {used} tokens, {len(targets) - used} empty",
            _BOLD,
            colour,
        )
        for segment in range(1, segments.max() + 1):
            ids = targets[segments == segment]
            note = filled.notes[batch, line, segment - 1]
            statements = reference.decode(ids.tolist(), encoding)
            kind = f"{KIND_NAMES[note[NOTE_KIND]]}{', filler' if note[NOTE_FILLER] else ''}"
            head = f"  segment {segment}: {kind}, times {MODE_NAMES[note[NOTE_MODE]]}"
            yield f"{head}, {len(statements)} measurements, {len(ids)} tokens, source {statements[0].src}"
            previous: int | None = None
            for statement in statements:
                yield "    " + "  ".join(
                    _field(statement, field, previous, colour) for field in statement.order
                )
                if Field.TIME in statement.order:
                    previous = statement.seconds


def _field(statement: Statement, field: Field, previous: int | None, colour: bool) -> str:
    shade = _COLOURS[field]
    match field:
        case Field.SRC:
            text = f"from {statement.src}"
        case Field.DST:
            text = f"to {statement.dst}"
        case Field.TIME:
            seconds = statement.seconds or 0
            text = f"+{seconds - previous:,} s" if previous is not None else _time(seconds)
        case Field.RESULT:
            failed = statement.rtt == NO_REPLY
            shade = _FAILED if failed else shade
            text = "no reply" if failed else f"{statement.rtt:,.3f} ms"
        case Field.SIZE:
            text = f"{statement.size} bytes"
        case Field.ERRORS:
            text = f"{statement.errors} errors"
        case _:
            text = f"msm {statement.msm_id}"
    return _paint(text, shade, colour)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
