"""The packaged network: trained on other data, it answers about these from what it is shown.

A pair that was measured before is asked with its source's earlier measurements and their times; any other
with a crossed context (`answer.crossed`). All addresses are pseudonyms, so that nothing depends on which
networks the packaged model has been trained on. To fit it is to index the measurements.
"""

from typing import TYPE_CHECKING, Self

import numpy as np

from ping_llm.answer.context import Context, Question
from ping_llm.answer.crossed import (
    Crossed,
    CrossedQuestion,
    crossed_prompts,
    measurements_that_fit,
    own_results,
)
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import GRID, capped
from ping_llm.answer.methods.base import Method
from ping_llm.answer.network import KEYS, LOOK_BACK, averaged, end, keys_of
from ping_llm.answer.past import pair_last, relevance
from ping_llm.answer.prompts import Prompt
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import NO_TIME, Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.model.packaged import NAME

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Measurements of the context of a pair that was measured before.
_TIMED_SIZE = 30


class Pretrained(Method):
    name = NAME
    paper = "the network of this package, trained on other data (docs/base.md)"

    def __init__(self, model: "Model", keys: int = KEYS):
        self._model, self._keys = model, keys

    def fit(self, train: Columns) -> Self:
        self._crossed = Crossed(train)
        replied = train.rtt[train.replied]
        self._most_ms = max(2 * float(replied.max()), 1000.0) if len(replied) else 1000.0
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        prompts = self._prompts(queries, context)
        owner = np.tile(np.arange(len(queries)), self._keys)
        made = averaged(self._model, prompts, owner, len(queries))
        levels = capped(made.levels, self._most_ms)
        return RttDistributions(np.broadcast_to(GRID, levels.shape), levels, made.failure)

    def _prompts(self, queries: Queries, context: History) -> list[Prompt]:
        """The prompts of all queries under the first key, then under the next, …"""
        model = self._model
        past = context.of_source(queries)
        of_pair = context.results_of_pair(queries).count
        room = model.config.max_length - 1 - model.encoding.bytes
        timed: dict[int, Question] = {}
        crossed: dict[int, CrossedQuestion] = {}
        for index, (first, high) in enumerate(zip(past.low.tolist(), past.high.tolist(), strict=True)):
            low = max(first, high - LOOK_BACK)
            src, dst = (
                end(queries.src, queries.src_bits, index),
                end(queries.dst, queries.dst_bits, index),
            )
            known = past.columns.take(slice(low, high))
            if of_pair[index]:
                chosen = relevance(known.dst, dst, _TIMED_SIZE)
                some = known.take(chosen)
                time = int(queries.time[index])
                when = some.time if time != NO_TIME else np.full(len(some), NO_TIME, np.int64)
                shown = Context.of(queries.src[index], some.dst, when, some.rtt, np.arange(len(chosen)))
                asked_at = None if time == NO_TIME else time
                timed[index] = Question(src, dst, asked_at, pair_last(shown, dst))
            else:
                crossed[index] = self._question(src, dst, queries, index, known, room)
        out = []
        for of_key in keys_of(queries, self._keys):
            made: dict[int, Prompt] = {}
            scrambled = [question.scrambled(int(of_key[index])) for index, question in timed.items()]
            made.update(zip(timed, model.prompts(scrambled), strict=True))
            rows = np.array(list(crossed), np.int64)
            made.update(
                zip(
                    crossed,
                    crossed_prompts(list(crossed.values()), of_key[rows], model.encoding, room),
                    strict=True,
                )
            )
            out += [made[index] for index in range(len(queries))]
        return out

    def _question(
        self,
        src: Prefix,
        dst: Prefix,
        queries: Queries,
        index: int,
        known: Columns,
        room: int,
    ) -> CrossedQuestion:
        packed = queries.src[index].tobytes()
        fitting = measurements_that_fit(room, src.version, self._model.encoding)
        own = own_results(known, packed, relevance(known.dst, dst, len(known)))[: fitting // 2]
        groups = self._crossed.groups(queries.src[index], queries.dst[index], own, fitting - len(own))
        results = [result for group in groups for result in group]
        return CrossedQuestion(src, dst, [*results, *own[::-1]], len(own))
