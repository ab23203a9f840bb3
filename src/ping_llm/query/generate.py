"""Sampling whole measurements: every token is masked by the grammar, so that what comes out always
decodes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.query.address_tree import draw
from ping_llm.tokens import vocab
from ping_llm.tokens.grammar import Grammar
from ping_llm.tokens.reference import decode
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import Field

if TYPE_CHECKING:
    from ping_llm.query.model import Model

#: Tokens of the longest measurement of the default fields.
_LONGEST = 60
_FIELDS = {"src": Field.SRC, "dst": Field.DST, "time": Field.TIME, "rtt": Field.RESULT, "size": Field.SIZE,
           "errors": Field.ERRORS, "msm_id": Field.MSM_ID}  # fmt: skip


def generate(
    model: "Model",
    beginning: Sequence[int] | np.ndarray,
    histories: int,
    measurements: int,
    temperature: float,
    seed: int,
) -> list[list[Statement]]:
    """Continue `beginning` (tokens, may be empty or end inside a measurement) `histories` times.

    Returns:
      of each history its statements: those of the beginning, then `measurements` more. Fewer where the
      length that the model was trained on is reached.
    """
    if temperature < 0:
        raise UsageError(
            f"the temperature {temperature:g} is negative: 1 is the model's own, 0 the most probable"
        )
    names = model.tokens.get("context", {}).get("fields", "src,dst,rtt,time")
    fields = frozenset(_FIELDS[name.strip()] for name in names.split(","))
    place = Grammar(model.encoding, fields).follow(int(token) for token in beginning)
    room = min(measurements * _LONGEST, model.config.max_length - len(beginning) - 1)
    decoder = model.engine.start(model.engine.prefill([np.asarray(beginning, np.int32)]), histories, room)
    generator = np.random.default_rng(seed)
    told = int((np.asarray(beginning) == vocab.MEASUREMENT).sum())
    # A beginning that ends inside a measurement has it completed; it counts as one of the wanted.
    wanted = told + measurements - (0 if place.may_end else 1)
    places = [place] * histories
    ids = [list(map(int, beginning)) for _ in range(histories)]
    whole = [len(beginning) if place.may_end else _last_measurement(beginning)] * histories
    begun = np.full(histories, told)
    after = decoder.log_probabilities
    done = np.zeros(histories, bool)
    for _ in range(room):
        masks = np.stack([place.allowed() for place in places])
        drawn = draw(np.where(masks, after, -np.inf), temperature, generator)
        for row in np.flatnonzero(~done).tolist():
            token = int(drawn[row])
            if token == vocab.MEASUREMENT:
                whole[row] = len(ids[row])
                if begun[row] == wanted:
                    done[row] = True
                    continue
                begun[row] += 1
            places[row] = places[row].after(token)
            ids[row].append(token)
        if done.all():
            break
        after = decoder.step(drawn)
    return [decode(tokens[:end], model.encoding) for tokens, end in zip(ids, whole, strict=True)]


def _last_measurement(ids: Sequence[int] | np.ndarray) -> int:
    """Where the measurement that is not whole begins."""
    return int(np.flatnonzero(np.asarray(ids) == vocab.MEASUREMENT)[-1])
