"""The compiled loader gives the bytes of the plain one."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_rows import random_rows

from ping_llm.contexts import context, draws, plan, reference
from ping_llm.contexts.batches import Batches
from ping_llm.contexts.draws import ALL, WIDE, Shape
from ping_llm.contexts.options import ContextOptions, Parameters
from ping_llm.contexts.reference_batches import ReferenceBatches
from ping_llm.tokens.reference import decode

probability = st.sampled_from([0.0, 0.1, 0.5, 1.0])


@st.composite
def options(draw):
    share, focus = draw(probability), draw(probability)
    extra = draw(st.sets(st.sampled_from(["time", "size", "errors", "msm_id", "probe_id", "throughput"])))
    return ContextOptions(
        repeat_source=draw(probability),
        prefix_probability=draw(probability),
        source_prefix_probability=draw(st.sampled_from([-1.0, 0.0, 0.5])),
        unnamed_source_probability=draw(probability),
        ordered_fields=draw(probability),
        focus_probability=focus,
        wide_probability=min(draw(probability), 1 - focus),
        crossed_probability=draw(probability),
        scramble_probability=draw(probability),
        focus_destinations=draw(st.sampled_from([1, 2, 4])),
        timestamps_all=share,
        timestamps_part=min(draw(probability), 1 - share),
        measurements_per_context=draw(st.sampled_from([1, 7, 30])),
        max_contexts_per_row=draw(st.sampled_from([1, 3, 16])),
        max_context_tokens=draw(st.sampled_from([0, 90, 250])),
        max_segments=draw(st.sampled_from([1, 3, 32])),
        fields=",".join(["src", "dst", "rtt", *sorted(extra)]),
        rtt_encoding=draw(st.sampled_from(["compact", "float64", "clipped"])),
    )


@settings(max_examples=25, deadline=None)
@given(
    options=options(),
    seed=st.integers(0, 2**63 - 1),
    counts=st.lists(st.integers(1, 80), min_size=1, max_size=40),
    length=st.sampled_from([96, 131, 400]),
    batch_size=st.sampled_from([1, 6, 150]),
    epochs=st.sampled_from([None, 1, 2]),
    destinations=st.sampled_from([3, 20]),
    gap=st.sampled_from([30.0, 2000.0]),
    shared=st.booleans(),
)
def test_compiled_and_plain_batches_are_equal(
    options, seed, counts, length, batch_size, epochs, destinations, gap, shared
):
    rows = random_rows(seed % 1000, np.array(counts), destinations=destinations, gap=gap, shared=shared)
    arguments = {"batch_size": batch_size, "length": length, "seed": seed, "epochs": epochs}
    many = 260 // batch_size + 2  # a unit and a bit of the next
    plain = list(islice(ReferenceBatches(rows, options, **arguments), many))
    with Batches(rows, options, threads=0, **arguments) as batches:
        fast = list(islice(batches, many))
    assert len(plain) == len(fast)
    for expected, got in zip(plain, fast, strict=True):
        for name in expected:
            np.testing.assert_array_equal(expected[name], got[name], err_msg=name)


@pytest.mark.parametrize("ordered", [0.0, 1.0])
def test_measurements_of_all_nine_fields_are_equal(ordered):
    fields = "src,dst,rtt,time,size,errors,msm_id,probe_id,throughput"
    options = ContextOptions(
        fields=fields, ordered_fields=ordered, repeat_source=1.0, timestamps_all=1.0, timestamps_part=0.0
    )
    rows = random_rows(3, np.array([40, 40]))
    arguments = {"batch_size": 6, "length": 400, "seed": 5}
    plain = next(iter(ReferenceBatches(rows, options, **arguments)))
    with Batches(rows, options, threads=0, **arguments) as batches:
        fast = next(batches)
    np.testing.assert_array_equal(plain["targets"], fast["targets"])
    stated = decode(fast["targets"][0][fast["targets_segmentation"][0] == 1].tolist())
    assert max(len(one.order) for one in stated) == 9


def test_orders_of_nine_fields_are_all_drawn_alike():
    first, last = Counter(), Counter()
    for seed in range(1800):
        packed = int(context.drawn_order(9, np.uint64(draws.combine(np.uint64(seed), 1)), 0))
        order = [packed >> (4 * place) & 15 for place in range(9)]
        assert sorted(order) == list(range(9))
        first[order[0]] += 1
        last[order[8]] += 1
    for counts in (first, last):  # 200 of each are expected
        assert all(140 < counts[slot] < 260 for slot in range(9))


@given(key=st.integers(0, 2**64 - 1), purpose=st.integers(0, 40), index=st.integers(0, 2**39))
def test_draws_agree(key, purpose, index):
    assert int(draws.draw(np.uint64(key), purpose, index)) == reference.draw(key, purpose, index)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
def test_the_order_of_an_epoch_is_a_permutation_and_the_plain_one(count):
    key = np.uint64(draws.epoch_key(5, 2))
    order = [draws.permuted(place, count, key) for place in range(count)]
    assert sorted(order) == list(range(count))
    assert order == [reference.permuted(place, count, int(key)) for place in range(count)]
    if count > 100:
        other = [draws.permuted(place, count, np.uint64(draws.epoch_key(5, 3))) for place in range(count)]
        assert np.mean(np.array(order) == other) < 0.02


def test_a_wrong_threshold_is_noticed(small_rows):
    """The comparison has teeth: options that differ a little give other bytes."""
    arguments = {"batch_size": 4, "length": 128, "seed": 1}
    plain = next(iter(ReferenceBatches(small_rows, ContextOptions(), **arguments)))
    with Batches(
        small_rows, replace(ContextOptions(), repeat_source=0.11), threads=0, **arguments
    ) as batches:
        assert any((plain[name] != value).any() for name, value in next(batches).items())


def test_rows_are_found_through_the_sums_as_in_a_list(small_rows):
    planner = plan.Planner(small_rows.index, _parameters(), 8, 256, 1)
    pairs = [
        (row, number)
        for row, count in enumerate(small_rows.index.counts.tolist())
        for number in range(min(-(-count // 30), 16))
    ]
    assert planner.contexts == len(pairs)
    found = [
        plan._row_of(place, planner._counts, planner._sums, _parameters()) for place in range(len(pairs))
    ]
    assert found == pairs


def _parameters():
    from ping_llm.contexts.options import Parameters

    return Parameters.of(ContextOptions(), 256)


@pytest.mark.parametrize("seed", range(20))
def test_wide_selections_are_equal_far_from_the_point_too(seed):
    """Long stretches of one destination: the others lie now within the reach and now beyond it."""
    size, count = 1500, 3
    words = np.repeat(np.arange(size // 75, dtype=np.uint64), 75).reshape(-1, 1).repeat(2, axis=1)
    parameters = Parameters.of(ContextOptions(focus_probability=0.0, wide_probability=1.0), 256)
    key = np.uint64(draws.combine(np.uint64(seed), 1))
    shape = Shape(ALL, WIDE, 0, 0, size, count, 99)
    chosen, marks, ranks = np.empty(256, np.int64), np.zeros(size + 1, np.uint8), np.zeros(size + 1, np.uint8)
    context.select(chosen, marks, ranks, np.zeros(256, np.int64), key, shape, words, 0, size, parameters)
    expected = reference.select(int(key), shape, [word.tobytes() for word in words], parameters)
    assert chosen[:count].tolist() == expected
    assert not marks.any()
    assert not ranks.any()
