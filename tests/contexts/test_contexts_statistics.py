"""Sampling is as designed: every share, with thresholds that a wrong share fails and chance does not.

Seeds are fixed, so the tests do not flicker; limits are at about 4.5 standard deviations.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from random_rows import random_rows

from ping_llm.contexts import draws
from ping_llm.contexts.batches import Batches
from ping_llm.contexts.context import _mark_sample
from ping_llm.contexts.draws import ALL, FOCUSED, NONE, PART, WHOLE, WIDE, WINDOW
from ping_llm.contexts.fill import NOTE_CONTEXT, NOTE_COUNT, NOTE_FILLER, NOTE_KIND, NOTE_MODE
from ping_llm.contexts.inspect import collect
from ping_llm.contexts.options import ContextOptions
from ping_llm.measurements.addresses import unnamed
from ping_llm.tokens import reference
from ping_llm.tokens.vocab import Field

SIGMAS = 4.5


@pytest.fixture(scope="module")
def rows():
    """500 rows with 25 destinations each: small ones, and one in three that cannot be used whole."""
    random = np.random.default_rng(1)
    counts = np.where(random.random(500) < 0.3, random.integers(31, 300, 500), random.integers(1, 31, 500))
    return random_rows(1, counts, destinations=25, gap=300.0)


@pytest.fixture(scope="module")
def contexts(rows):
    """(row, kind, statements) of an epoch's planned contexts."""
    return contexts_of(rows, ContextOptions())


def contexts_of(rows, options, length=1024, limit=10**9):
    found = []
    with Batches(rows, options, batch_size=64, length=length, seed=2, epochs=1, threads=0) as batches:
        for unit in batches.units():
            for batch, line, segment in np.argwhere(unit.notes[..., NOTE_COUNT] > 0):
                note = unit.notes[batch, line, segment]
                assert note[NOTE_FILLER] == 0
                ids = unit.targets[batch, line][unit.segments[batch, line] == segment + 1]
                row = int(unit.unit.row[note[NOTE_CONTEXT]])
                found.append((row, int(note[NOTE_KIND]), int(note[NOTE_MODE]), reference.decode(ids)))
                if len(found) == limit:
                    return found
    return found


def assert_share(hits, total, probability):
    deviation = np.sqrt(total * probability * (1 - probability))
    assert total > 100
    assert abs(hits - total * probability) <= SIGMAS * deviation + 1e-9, (hits / total, probability, total)


def assert_fits(observed, probabilities):
    """Chi square, by the normal approximation of Wilson and Hilferty."""
    observed, probabilities = np.asarray(observed, float), np.asarray(probabilities, float)
    assert np.isclose(probabilities.sum(), 1)
    expected = observed.sum() * probabilities
    assert expected.min() > 5
    freedom = len(observed) - 1
    chi2 = ((observed - expected) ** 2 / expected).sum()
    z = ((chi2 / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))
    assert z < SIGMAS, (z, observed / observed.sum(), probabilities)


def test_k_contexts_a_row_an_epoch_and_every_row_visited(rows, contexts):
    expected = np.minimum(-(-rows.index.counts // 30), 16)
    np.testing.assert_array_equal(
        np.bincount([row for row, *_ in contexts], minlength=len(expected)), expected
    )


def test_small_rows_are_used_whole(rows, contexts):
    for row, kind, _, statements in contexts:
        if kind == WHOLE:
            assert len(statements) == rows.index.counts[row] <= 30
        else:
            assert rows.index.counts[row] > 30 or len(statements) < rows.index.counts[row]


def test_windows_are_log_uniform():
    size = 700
    keys = [np.uint64(draws.combine(np.uint64(9), index)) for index in range(20_000)]
    drawn = np.array([draws.log_uniform(key, size) for key in keys])
    assert drawn.min() == 1
    assert drawn.max() <= size
    weights = 1 / np.arange(1, size + 1)
    edges = [1, 2, 3, 4, 6, 9, 15, 30, 60, 120, 240, 480, size + 1]
    probabilities = [weights[a - 1 : b - 1].sum() / weights.sum() for a, b in pairwise(edges)]
    assert_fits(np.histogram(drawn, edges)[0], probabilities)


def test_windows_of_contexts_are_log_uniform():
    """A window that fits is stated whole, so its size is the context's count."""
    big = random_rows(3, np.full(120, 480), destinations=25)
    options = ContextOptions(focus_probability=0.0, timestamps_all=1.0, timestamps_part=0.0)
    with Batches(big, options, batch_size=64, length=16_384, seed=2, epochs=1, threads=0) as batches:
        counts = np.concatenate([unit.notes[..., NOTE_COUNT].ravel() for unit in batches.units()])
    weights = 1 / np.arange(1, 481)
    edges = [1, 2, 4, 8, 16, 32, 64, 128, 256, 481]
    probabilities = [weights[a - 1 : b - 1].sum() / weights.sum() for a, b in pairwise(edges)]
    assert_fits(np.histogram(counts, edges)[0], probabilities)


def test_windows_lie_anywhere():
    """The first measurement of a window that is stated whole says where it begins."""
    big = random_rows(3, np.full(120, 480), destinations=25)
    options = ContextOptions(focus_probability=0.0, timestamps_all=1.0, timestamps_part=0.0)
    places = []
    for row, kind, _, statements in contexts_of(big, options, length=16_384, limit=1500):
        assert kind == WINDOW
        seconds = big.read([row]).time // 1_000_000
        free = len(seconds) - len(statements)
        if free >= 100:
            places.append(np.searchsorted(seconds, statements[0].seconds) / (free + 1))
    assert_fits(np.histogram(places, 10, (0, 1))[0], np.full(10, 0.1))


def test_samples_of_a_window_are_uniform():
    hits = np.zeros(40, np.int64)
    for index in range(6000):
        marks = np.zeros(40, np.uint8)
        _mark_sample(marks, np.uint64(draws.combine(np.uint64(5), index)), 40, 11)
        assert marks.sum() == 11
        hits += marks
    assert (np.abs(hits - 1650) < SIGMAS * np.sqrt(6000 * 11 / 40 * 29 / 40)).all()


def test_focus_share(contexts):
    large = [kind for _, kind, _, _ in contexts if kind != WHOLE]
    assert_share(sum(kind == FOCUSED for kind in large), len(large), 0.5)


def test_focused_contexts_repeat_one_to_four_destinations():
    """1 to 4 are drawn, with repetition, from ten: a context has the different ones among them, no others."""
    big = random_rows(4, np.full(40, 2000), destinations=10)
    options = ContextOptions(focus_probability=1.0, prefix_probability=0.0)
    different = Counter(
        len({s.dst.packed for s in statements}) for *_, statements in contexts_of(big, options)
    )
    expected = np.zeros(5)
    for drawn in range(1, 5):
        chances = np.zeros(5)
        chances[0] = 1.0
        for _ in range(drawn):
            seen = np.arange(5) / 10
            chances = chances * seen + np.roll(chances * (1 - seen), 1)
        expected += chances / 4
    assert sum(different.values()) == 640
    assert_fits([different[count] for count in range(1, 5)], expected[1:])
    assert set(different) == {1, 2, 3, 4}


def test_focused_destinations_are_consecutive_and_taken_first():
    """With room for few, all are of at most four destinations, and none of theirs is left out."""
    big = random_rows(4, np.full(60, 400), destinations=10)
    options = ContextOptions(
        focus_probability=1.0, timestamps_all=1.0, timestamps_part=0.0, prefix_probability=0.0
    )
    for row, kind, _, statements in contexts_of(big, options, length=256, limit=300):
        assert kind == FOCUSED
        chosen = {s.dst.packed for s in statements}
        assert len(chosen) <= 4
        block = big.read([row])
        seconds = block.time // 1_000_000
        inside = (seconds > statements[0].seconds) & (seconds < statements[-1].seconds)
        of_chosen = [address.tobytes() in chosen for address in block.dst]
        strictly = [s for s in statements if statements[0].seconds < s.seconds < statements[-1].seconds]
        assert sum(inside & of_chosen) == len(strictly)


def test_wide_contexts_have_the_nearest_of_each_destination():
    big = random_rows(4, np.full(60, 400), destinations=60)
    options = ContextOptions(
        focus_probability=0.0,
        wide_probability=1.0,
        timestamps_all=1.0,
        timestamps_part=0.0,
        prefix_probability=0.0,
    )
    for row, kind, _, statements in contexts_of(big, options, length=256, limit=300):
        assert kind == WIDE
        block = big.read([row])
        where = {(s.dst.packed, s.seconds) for s in statements}
        assert len({destination for destination, _ in where}) == len(statements)
        seconds = block.time // 1_000_000
        chosen = [
            index
            for index, (dst, second) in enumerate(zip(block.dst, seconds, strict=True))
            if (dst.tobytes(), second) in where
        ]
        # Nothing between the first and the last is of a destination that was left out.
        between = {dst.tobytes() for dst in block.dst[chosen[0] : chosen[-1] + 1]}
        assert between == {destination for destination, _ in where}


def test_wide_contexts_with_few_destinations_are_filled_up():
    """Three destinations and room for more: all three, and as many measurements as a focused context has."""
    big = random_rows(4, np.full(40, 400), destinations=3)
    plain = ContextOptions(focus_probability=1.0, prefix_probability=0.0)
    wide = replace(plain, focus_probability=0.0, wide_probability=1.0)
    found = contexts_of(big, wide, length=256, limit=300)
    assert {kind for _, kind, *_ in found} == {WIDE}
    assert all(len({s.dst.packed for s in statements}) == 3 for *_, statements in found)
    focused = contexts_of(big, plain, length=256, limit=300)
    assert [len(statements) for *_, statements in found] == [len(statements) for *_, statements in focused]


def test_timestamp_modes(contexts):
    modes = Counter(mode for *_, mode, _ in contexts)
    for mode, share in ((ALL, 0.4), (PART, 0.3), (NONE, 0.3)):
        assert_share(modes[mode], len(contexts), share)


def test_times_are_ordered_where_stated(contexts):
    shares = []
    for _, _, mode, statements in contexts:
        timed = [s.seconds for s in statements if Field.TIME in s.order]
        assert timed == sorted(timed)
        if mode == ALL:
            assert len(timed) == len(statements)
        if mode == NONE:
            assert not timed
        if mode == PART and len(statements) >= 2:
            lost = (len(statements) - len(timed)) / len(statements)
            assert 0.1 <= lost <= 0.9
            if len(statements) >= 30:
                shares.append(lost)
    # Uniform between 10 and 90 %.
    assert abs(np.mean(shares) - 0.5) < SIGMAS * 0.8 / np.sqrt(12 * len(shares))
    assert np.std(shares) == pytest.approx(0.8 / np.sqrt(12), rel=0.15)


def test_untimed_measurements_are_in_no_order_and_between_the_others(rows, contexts):
    ranks = {PART: [], NONE: []}
    places = []
    for row, kind, mode, statements in contexts:
        if kind != WHOLE or mode == ALL or len(statements) < 10:
            continue
        block = rows.read([row])
        position = {}
        for index in range(block.measurements):
            key = (block.dst[index].tobytes(), round(block.rtt[index], 2))
            position[key] = None if key in position else index
        found = [
            position.get((s.dst.packed, round(s.rtt, 2))) if s.dst.is_whole else None
            for s in statements
            if Field.TIME not in s.order
        ]
        known = [index for index in found if index is not None]
        ranks[mode] += [a < b for a, b in pairwise(known)]
        places += [
            place / (len(statements) - 1)
            for place, s in enumerate(statements)
            if mode == PART and Field.TIME not in s.order
        ]
    for mode in (PART, NONE):
        assert_share(sum(ranks[mode]), len(ranks[mode]), 0.5)
    assert abs(np.mean(places) - 0.5) < SIGMAS / np.sqrt(12 * len(places))


def test_repeat_source(contexts):
    later = [Field.SRC in s.order for *_, statements in contexts for s in statements[1:]]
    assert all(Field.SRC in statements[0].order for *_, statements in contexts)
    assert_share(sum(later), len(later), 0.1)


def test_field_orders_are_uniform_over_all_permutations(contexts):
    for fields in (2, 3, 4):
        orders = Counter(s.order for *_, statements in contexts for s in statements if len(s.order) == fields)
        by_set = {}
        for order, count in orders.items():
            by_set.setdefault(frozenset(order), {})[order] = count
        for counts in by_set.values():
            if sum(counts.values()) > 500:
                assert len(counts) == {2: 2, 3: 6, 4: 24}[fields]
                assert_fits(list(counts.values()), np.full(len(counts), 1 / len(counts)))


def test_prefixes_at_their_probability_and_a_cut_source_never_says_more(contexts):
    sources = [{s.src for s in statements} for *_, statements in contexts]
    assert all(len(of_context) == 1 for of_context in sources)
    assert_share(sum(not next(iter(of)).is_whole for of in sources), len(sources), 0.1)
    destinations = [s.dst for *_, statements in contexts for s in statements]
    assert_share(sum(not address.is_whole for address in destinations), len(destinations), 0.1)
    for version, most in ((4, 3), (6, 15)):
        bits = Counter(a.bits // 8 for a in destinations if not a.is_whole and a.version == version)
        assert sorted(bits) == list(range(1, most + 1))
        assert_fits([bits[n] for n in sorted(bits)], np.full(most, 1 / most))


@pytest.mark.parametrize(
    "changed",
    [
        {"repeat_source": 0.7},
        {"prefix_probability": 0.5},
        {"unnamed_source_probability": 0.4},
        {"focus_probability": 0.1},
        {"wide_probability": 0.4},
        {"timestamps_all": 0.1, "timestamps_part": 0.2},
        {"measurements_per_context": 10, "max_contexts_per_row": 3},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_the_config_changes_each_share(rows, changed):
    options = replace(ContextOptions(), **changed)
    found = contexts_of(rows, options, limit=400)
    statements = [s for *_, of in found for s in of]
    modes = Counter(mode for *_, mode, _ in found)
    large = [kind for _, kind, _, _ in found if kind != WHOLE]
    later = [Field.SRC in s.order for *_, of in found for s in of[1:]]
    assert_share(sum(later), len(later), options.repeat_source)
    assert_share(sum(not s.dst.is_whole for s in statements), len(statements), options.prefix_probability)
    unnamed_sources = sum(of[0].src == unnamed(of[0].src.version) for *_, of in found)
    assert_share(unnamed_sources, len(found), options.unnamed_source_probability)
    assert_share(sum(kind == FOCUSED for kind in large), len(large), options.focus_probability)
    assert_share(sum(kind == WIDE for kind in large), len(large), options.wide_probability)
    assert_share(modes[ALL], len(found), options.timestamps_all)
    assert_share(modes[PART], len(found), options.timestamps_part)
    per_row = np.minimum(
        -(-rows.index.counts // options.measurements_per_context), options.max_contexts_per_row
    )
    assert Batches(rows, options, batch_size=1, length=1024).contexts_per_epoch == per_row.sum()


@pytest.mark.parametrize(("length", "most"), [(1024, 0.01), (512, 0.02)])
def test_padding_is_small_and_no_context_pays_for_it(small_rows, length, most):
    with Batches(small_rows, batch_size=32, length=length, seed=4, threads=0) as batches:
        summary = collect(batches, 24).summary()
    assert summary["padding_fraction"] <= most
    assert summary["filler_token_fraction"] < 0.1
    assert summary["segments_per_sequence"]["max"] <= ContextOptions().max_segments
    # Planned contexts are as long in the endless stream as in one that fills nothing.
    with Batches(small_rows, batch_size=32, length=length, seed=4, epochs=5, threads=0) as batches:
        unpacked = collect(batches, 24).summary()
    assert unpacked["contexts_filler"] == 0
    assert summary["context_length_before_packing"] == unpacked["context_length_before_packing"]


def test_segments_are_bounded(small_rows):
    for most in (1, 2, 5):
        with Batches(
            small_rows, ContextOptions(max_segments=most), batch_size=16, length=512, seed=4, threads=0
        ) as batches:
            assert next(batches)["targets_segmentation"].max() <= most
