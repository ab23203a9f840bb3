"""Crossed and scrambled contexts state what they promise."""

from itertools import islice

import numpy as np
import pytest
from random_rows import random_rows

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.crossing import MOST_MEASUREMENTS, MOST_OTHERS, MOST_OWN, MOST_TIES, Crossing
from ping_llm.contexts.draws import CROSSED
from ping_llm.contexts.fill import NOTE_COUNT, NOTE_KIND
from ping_llm.contexts.memory_rows import MemoryRows
from ping_llm.contexts.options import ContextOptions
from ping_llm.errors import PingError
from ping_llm.measurements.addresses import is_ipv4
from ping_llm.measurements.scramble import SHORT
from ping_llm.tokens import reference
from ping_llm.tokens.vocab import Field

LENGTH = 700


@pytest.fixture(scope="module")
def rows():
    return random_rows(3, np.full(60, 40), destinations=20, shared=True)


def _contexts(rows, units=1, **options):
    """The statements of crossed contexts."""
    options = ContextOptions(crossed_probability=1.0, ordered_fields=1.0, **options)
    with Batches(rows, options, batch_size=32, length=LENGTH, seed=5, threads=0) as batches:
        for filled in islice(batches.units(), units):
            notes = filled.notes.reshape(-1, *filled.notes.shape[2:])
            targets = filled.targets.reshape(len(notes), -1)
            segments = filled.segments.reshape(len(notes), -1)
            for line, note in enumerate(notes):
                for segment, (kind, count) in enumerate(note[:, [NOTE_KIND, NOTE_COUNT]], start=1):
                    if kind == CROSSED and count:
                        yield reference.decode(targets[line, segments[line] == segment].tolist())


def test_a_context_is_about_its_last_pair(rows):
    block = rows.block
    src = np.repeat(block.src, np.diff(block.offsets), axis=0)
    measured = {
        (s.tobytes(), d.tobytes()): set(np.round(block.rtt[((src == s) & (block.dst == d)).all(1)], 3))
        for s, d in zip(src, block.dst, strict=True)
    }
    most, tied, versions = 0, 0, set()
    for statements in _contexts(rows):
        groups: list[tuple[bytes, list]] = []
        for statement in statements:
            if Field.SRC in statement.order:
                groups.append((statement.src.packed, []))
            groups[-1][1].append(statement)
            expected = measured[groups[-1][0], statement.dst.packed]
            assert min(abs(statement.rtt - rtt) for rtt in expected) <= max(statement.rtt / 2048, 0.001)
        source, own = groups[-1]
        asked = own[-1].dst
        versions.add(asked.version)
        assert len({packed for packed, _ in groups}) == len(groups) <= MOST_OTHERS + 1
        assert len(own) <= MOST_OWN + 1
        of_source = {statement.dst for statement in own[:-1]} - {asked}
        for packed, results in groups[:-1]:
            stated = [statement.dst for statement in results]
            assert packed != source
            assert stated.count(asked) == 1
            assert set(stated) - {asked} <= of_source
            assert len(stated) == len(set(stated)) <= MOST_TIES + 1
            tied += len(stated) - 1
        most = max(most, len(groups))
    assert versions == {4, 6}
    assert most == MOST_OTHERS + 1
    assert tied > 100


def test_every_number_of_own_results_occurs(rows):
    """A model is to know how sure to be with 0, 1, … results of the source and of the destination."""
    own = np.zeros(MOST_OWN + 1, int)
    for statements in _contexts(rows, units=4):
        last = max(place for place, s in enumerate(statements) if Field.SRC in s.order)
        if statements[-1].dst.version == 4:
            own[len(statements) - last - 1] += 1
    assert (own / own.sum() > 0.02).all()


def test_scrambled_contexts_keep_prefixes_and_hide_addresses(rows):
    ipv4 = MemoryRows(rows.read(np.flatnonzero(rows.index.ipv4)))
    plain, hidden = list(_contexts(ipv4)), list(_contexts(ipv4, scramble_probability=1.0))
    for one, other in zip(plain, hidden, strict=True):
        assert [s.rtt for s in one] == [s.rtt for s in other]
        shared = [[_common(s.dst, context[0].dst) for s in context] for context in (one, other)]
        assert shared[0] == shared[1]
        assert one[0].dst != other[0].dst
    first = {context[0].dst.known_bytes[0] for context in hidden}
    assert len(first) > 200


def test_pseudonyms_of_ipv6_are_short(rows):
    contexts = [c for c in _contexts(rows, scramble_probability=1.0) if c[0].dst.version == 6]
    assert {s.dst.bits for context in contexts for s in context} == {8 * SHORT}
    assert max(map(len, contexts)) > max(len(c) for c in _contexts(rows) if c[0].dst.version == 6)


def _common(one, other):
    return next((i for i in range(16) if one.packed[i] != other.packed[i]), 16)


def _sorted(src, dst, rtt):
    return sorted(zip(map(bytes, src), map(bytes, dst), rtt.tolist(), strict=True))


def test_the_crossing_has_every_measurement_twice(rows):
    crossing = Crossing.of(rows.block)
    block = rows.block
    src = np.repeat(block.src, np.diff(block.offsets), axis=0)
    expected = _sorted(src, block.dst, block.rtt)
    of_source = np.repeat(crossing.sources, np.diff(crossing.by_source), axis=0)
    of_destination = np.repeat(crossing.destinations, np.diff(crossing.by_destination), axis=0)
    assert _sorted(of_source, crossing.destinations[crossing.dst], crossing.rtt) == expected
    assert _sorted(crossing.sources[crossing.src], of_destination, crossing.rtt_of) == expected
    assert is_ipv4(crossing.sources).any()


def test_more_than_memory_holds_is_refused():
    with pytest.raises(PingError, match="at most 50,000,000"):
        Crossing.check(MOST_MEASUREMENTS + 1)
