"""A crossed context in plain Python: the specification of `crossing`, and the reference for its tests."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from math import factorial

from ping_llm.contexts import draws
from ping_llm.contexts.crossing import (
    LOOKED_AT,
    MOST_OTHERS,
    MOST_OWN,
    MOST_TIES,
    NEIGHBOUR_SHARE,
    PAIR_SHARE,
)
from ping_llm.contexts.options import Parameters
from ping_llm.contexts.reference import (
    address_length,
    below,
    chance,
    draw,
    is_scrambled,
    nth_permutation,
    pseudonym,
)
from ping_llm.tokens import reference as tokens
from ping_llm.tokens.rtt import RttEncoding
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import Field


def _tried(key: int, purpose: int, turn: int, values: list[int], near: int) -> int | None:
    """The index of a sorted list that is tried at a turn: first the two neighbours of `near`, then any."""
    bits = draw(key, purpose, turn + 1)
    if turn >= 2:
        return below(bits, len(values))
    place = bisect_left(values, near) - 1 if turn == 0 else bisect_right(values, near)
    return place if chance(bits) < NEIGHBOUR_SHARE and 0 <= place < len(values) else None


def crossed_pairs(
    key: int,
    bound: int,
    source: int,
    measured: Mapping[tuple[int, int], list[float]],
    p: Parameters,
    ipv4: bool,
) -> list[tuple[int, int, float]]:
    """Source, destination and RTT of each measurement of a crossed context.

    Args:
      measured: the RTTs of each (source, destination), in the order of the rows.
    """
    own_results = sorted(
        (to, number, rtt)
        for (who, to), rtts in measured.items()
        if who == source
        for number, rtt in enumerate(rtts)
    )
    anchor = below(draw(key, draws.CROSSED_ANCHOR, 0), len(own_results))
    asked = own_results[anchor][0]
    address = address_length(ipv4, is_scrambled(key, p))
    measurement = 1 + address + p.result_length
    room = bound - address - measurement

    wanted = below(draw(key, draws.CROSSED_OWN, 0), MOST_OWN + 1)
    pair = chance(draw(key, draws.CROSSED_PAIR, 0)) < PAIR_SHARE
    own: list[int] = []
    for turn in range(2 * wanted + 2):
        if len(own) == wanted or 2 * (len(own) + 1) * measurement > room:
            break
        at = _tried(key, draws.CROSSED_OWN, turn, [to for to, _, _ in own_results], asked)
        if at is None or at == anchor or at in own:
            continue
        to = own_results[at][0]
        if (to == asked and pair) or (to != asked and to not in [own_results[place][0] for place in own]):
            own.append(at)
    room -= len(own) * measurement

    wanted = below(draw(key, draws.CROSSED_OTHERS, 0), MOST_OTHERS + 1)
    others = sorted(
        (who, number, rtt)
        for (who, to), rtts in measured.items()
        if to == asked
        for number, rtt in enumerate(rtts)
    )
    looked_at: dict[int, list[tuple[int, float]]] = {}
    for turn in range(LOOKED_AT * wanted + 2 if wanted else 0):
        at = _tried(key, draws.CROSSED_OTHERS, turn, [who for who, _, _ in others], source)
        if at is None or others[at][0] in (source, *looked_at):
            continue
        who = others[at][0]
        results = [(asked, others[at][2])]
        for index, place in enumerate(own):
            to = own_results[place][0]
            if to != asked and (who, to) in measured and len(results) <= MOST_TIES:
                rtts = measured[who, to]
                bits = draw(key, draws.CROSSED_TIE, (len(looked_at) << 16) + index)
                results.append((to, rtts[below(bits, len(rtts))]))
        looked_at[who] = results
    groups: list[tuple[int, list[tuple[int, float]]]] = []
    for who, results in sorted(looked_at.items(), key=lambda item: -len(item[1])):
        cost = address + len(results) * measurement
        if len(groups) < wanted and cost <= room:
            groups.append((who, results))
            room -= cost

    def mixed(values: list, group: int) -> list:
        values = list(values)
        for last in range(len(values) - 1, 0, -1):
            other = below(draw(key, draws.CROSSED_GROUP, (group << 16) + last), last + 1)
            values[last], values[other] = values[other], values[last]
        return values

    out = []
    for group, (who, results) in enumerate(mixed(groups, 0), start=1):
        out += [(who, to, rtt) for to, rtt in mixed(results, group)]
    last = mixed([(own_results[place][0], own_results[place][2]) for place in own], len(groups) + 1)
    last.append((asked, own_results[anchor][2]))
    return out + [(source, to, rtt) for to, rtt in last]


def crossed_tokens(
    key: int, pairs: list[tuple[bytes, bytes, float]], p: Parameters, encoding: RttEncoding
) -> list[int]:
    """The tokens of a crossed context; a source is stated where it changes."""
    stated_as = pseudonym(key, p)
    ordered = chance(draw(key, draws.ORDERED, 0)) < p.ordered
    statements = []
    for place, (source, destination, rtt) in enumerate(pairs):
        fields = [Field.DST, Field.RESULT]
        if place == 0 or source != pairs[place - 1][0]:
            fields.insert(0, Field.SRC)
        which = 0 if ordered else below(draw(key, draws.FIELD_ORDER, place), factorial(len(fields)))
        statements.append(
            Statement(
                order=nth_permutation(fields, which),
                src=stated_as(source),
                dst=stated_as(destination),
                rtt=rtt,
            )
        )
    return tokens.encode(statements, encoding)
