"""Sampling of whole measurements. The grammar masks every token, so the result can always be decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.address_tree import check_temperature, draw
from ping_llm.errors import UsageError
from ping_llm.tokens import vocab
from ping_llm.tokens.grammar import Grammar
from ping_llm.tokens.reference import decode
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import Field

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Tokens of the longest measurement: of the default fields, plus those of all optional fields.
_LONGEST = 60 + sum(vocab.OPTIONAL_LENGTHS.values())
#: Tokens of an average measurement, with its time and sometimes a prefix or a source.
ROOM_IPV4, ROOM_IPV6 = 18, 30
_FIELDS = {"src": Field.SRC, "dst": Field.DST, "time": Field.TIME, "rtt": Field.RESULT, **vocab.OPTIONAL}


@dataclass(frozen=True)
class Generated:
    """Sampled measurements.

    Attributes:
      histories: the new measurements of each history.
      notes: sentences about measurements that were left out.
      optional: names of the optional fields that the model was trained on.
    """

    histories: tuple[tuple[Statement, ...], ...]
    notes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def generate(
    model: "Model",
    beginning: Sequence[int] | np.ndarray,
    histories: int,
    measurements: int,
    temperature: float,
    seed: int,
    *,
    goes_on: bool = False,
    prefixes: bool = False,
    stated: Sequence[int] = (),
) -> Generated:
    """Continue `beginning` (tokens, may be empty) `histories` times.

    A history has one source, and every measurement has a destination and a result. Histories have fewer
    measurements than requested if they reach the length that the model was trained on.

    Args:
      goes_on: whether to complete the last measurement of the beginning, which is then the first new one.
      prefixes: whether to allow prefixes; otherwise addresses are whole.
      stated: tokens of the fields that every new measurement states first.
    """
    if histories < 1 or measurements < 1:
        raise UsageError(f"histories and measurements must be at least 1, not {histories} and {measurements}")
    check_temperature(temperature)
    names = model.tokens.get("context", {}).get("fields", "src,dst,rtt,time")
    fields = frozenset(_FIELDS[name.strip()] for name in names.split(","))
    place = Grammar(model.encoding, fields).follow(int(token) for token in beginning)
    room = min(measurements * _LONGEST, model.config.max_length - len(beginning) - 1)
    decoder = model.engine.start(model.engine.prefill([np.asarray(beginning, np.int32)]), histories, room)
    generator = np.random.default_rng(seed)
    told = int((np.asarray(beginning) == vocab.MEASUREMENT).sum())
    old = told - (1 if goes_on else 0)
    wanted = old + measurements
    places = [place] * histories
    ids = [list(map(int, beginning)) for _ in range(histories)]
    whole = [len(beginning) if place.may_end else _last_measurement(beginning)] * histories
    begun = np.full(histories, told)
    sources = [_Source().after_all(beginning)] * histories
    after = decoder.log_probabilities
    done = np.zeros(histories, bool)
    forced: list[list[int]] = [[] for _ in range(histories)]
    for _ in range(room):
        masks = np.stack(
            [source.allowed(place, prefixes) for source, place in zip(sources, places, strict=True)]
        )
        drawn = draw(np.where(masks, after, -np.inf), temperature, generator)
        for row in np.flatnonzero(~done).tolist():
            if forced[row]:
                drawn[row] = forced[row].pop(0)
            token = int(drawn[row])
            if token == vocab.MEASUREMENT:
                whole[row] = len(ids[row])
                if begun[row] == wanted:
                    done[row] = True
                    continue
                begun[row] += 1
                forced[row] = list(stated)
            places[row], sources[row] = places[row].after(token), sources[row].after(token)
            ids[row].append(token)
        if done.all():
            break
        after = decoder.step(drawn)
    made = [decode(tokens[:end], model.encoding)[old:] for tokens, end in zip(ids, whole, strict=True)]
    fewest = min(map(len, made))
    notes: tuple[str, ...] = ()
    if fewest < measurements:
        notes = (
            f"only {fewest} of {measurements} measurements were made: the model was trained on "
            f"{model.config.max_length} tokens, and {len(beginning)} were known",
        )
    return Generated(tuple(map(tuple, made)), notes, model.optional_fields)


_VERSIONS = {
    vocab.SRC_IPV4: 4, vocab.SRC_IPV6: 6, vocab.DST_IPV4: 4, vocab.DST_IPV6: 6,
}  # fmt: skip
_SOURCES = (vocab.SRC_IPV4, vocab.SRC_IPV6)
_NEEDED = frozenset({Field.DST, Field.RESULT})


@dataclass(frozen=True)
class _Source:
    """State of a history's source: whether it was stated, and the IP version."""

    stated: bool = False
    version: int | None = None

    def after(self, token: int) -> "_Source":
        if token not in _VERSIONS:
            return self
        return _Source(self.stated or token in _SOURCES, _VERSIONS[token])

    def after_all(self, tokens: Sequence[int] | np.ndarray) -> "_Source":
        source = self
        for token in tokens:
            source = source.after(int(token))
        return source

    def allowed(self, place: Grammar, prefixes: bool) -> np.ndarray:
        """Mask of the tokens that the grammar allows next for a history of this source."""
        mask = place.allowed()
        mask[vocab.PREFIX_END] &= prefixes
        for role, version in _VERSIONS.items():
            mask[role] &= self.version in (None, version) and not (self.stated and role in _SOURCES)
        if place.stated is not None:
            mask[vocab.MEASUREMENT] &= place.stated >= _NEEDED & place.fields
        return mask


def _last_measurement(ids: Sequence[int] | np.ndarray) -> int:
    """Position at which the last, incomplete measurement begins."""
    return int(np.flatnonzero(np.asarray(ids) == vocab.MEASUREMENT)[-1])
