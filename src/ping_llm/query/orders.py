"""The orders in which a question's fields can be stated before its result.

Training shuffles them, so every order is an estimate of the same thing; their average is a better one, at
the price of as many passes.
"""

from itertools import permutations

from ping_llm.query.context import Question
from ping_llm.tokens.vocab import Field

#: The order of a single pass.
ONE_ORDER = (Field.SRC, Field.DST, Field.TIME)


def orders_of(question: Question) -> list[tuple[Field, ...]]:
    """All orders of the fields that the question states itself (a context has already stated the source)."""
    stated = []
    if question.context is None or not len(question.context):
        stated.append(Field.SRC)
    if question.dst is not None:
        stated.append(Field.DST)
    if question.seconds is not None:
        stated.append(Field.TIME)
    return list(permutations(stated))
