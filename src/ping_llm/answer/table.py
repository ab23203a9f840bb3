"""Answers to a table of questions, as a table."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ping_llm.answer.conditions import LARGEST, Given
from ping_llm.answer.context import Context, Question
from ping_llm.answer.files import conditions_in, questions_of, to_columns
from ping_llm.errors import UsageError
from ping_llm.interchange import like, to_arrow

if TYPE_CHECKING:
    from ping_llm.answer.answering import RttAnswer
    from ping_llm.answer.model import Model

#: Default levels of the quantiles in an answer.
LEVELS = (0.05, 0.5, 0.95)

_ORIGIN = "the table"


def rtt_table(
    model: "Model", table: Any, context: Any = None, levels: Sequence[float] = LEVELS,
    conditions: Given = None, **how: Any,
) -> Any:  # fmt: skip
    """Return the table with the answers as further columns; `how` is passed to `Model.rtt_stream`."""
    if conditions:
        raise UsageError(
            "conditions must not be given with a table of questions: put them into columns of the table"
        )
    if not all(0 < level < 1 for level in levels):
        raise UsageError(f"quantiles must be between 0 and 1, not {', '.join(map(str, levels))}")
    asked = to_arrow(table)
    # Only with conditions: for a remote model, reading `optional_fields` is a request to the server.
    questions, _ = questions_of(asked, _ORIGIN, model.optional_fields if conditions_in(asked) else ())
    if context is not None:
        questions = list(_with_context(questions, context))
    failure, point = np.empty(len(questions)), np.empty(len(questions))
    quantiles = np.empty((len(levels), len(questions)))
    kinds = [""] * len(questions)
    for index, answer in model.rtt_stream(questions, **how):
        failure[index], point[index] = answer.failure, answer.distribution.point
        quantiles[:, index] = answer.distribution.quantile(levels)
        kinds[index] = _kind(answer)
    answers = {
        "failure": pa.array(failure),
        "point": pa.array(point),
        **{f"q{level:g}": pa.array(row) for level, row in zip(levels, quantiles, strict=True)},
        "kind": pa.array(kinds, pa.string()),
    }
    for name, column in answers.items():
        place = asked.schema.get_field_index(name)
        asked = asked.append_column(name, column) if place < 0 else asked.set_column(place, name, column)
    return like(asked, table)


def _kind(answer: "RttAnswer") -> str:
    return str(answer.rests_on.get("kind", ""))


def context_of_table(table: Any) -> Context:
    """Make a context from a table of src_addr, dst_addr, rtt and, if known, event_time."""
    needs = ("src_addr", "dst_addr", "rtt")
    columns = to_columns(to_arrow(table), "the context", needs=needs, optional=LARGEST)
    return Context.of_columns(columns)


def _with_context(questions: Sequence[Question], known: Any) -> Iterator[Question]:
    """Give each question the measurements of its source; for a prefix, of its most measured source."""
    context = known if isinstance(known, Context) else Context.from_measurements(known)
    sources, member = np.unique(context.src, axis=0, return_inverse=True)
    counts = np.bincount(member, minlength=len(sources))
    packed = [source.tobytes() for source in sources]
    found: dict[Any, Context] = {}
    for question in questions:
        if question.src not in found:
            covered = [number for number, source in enumerate(packed) if question.src.covers(source)]
            chosen = max(covered, key=lambda number: counts[number], default=-1)
            found[question.src] = context.take(np.flatnonzero(member == chosen))
        yield replace(question, context=found[question.src])
