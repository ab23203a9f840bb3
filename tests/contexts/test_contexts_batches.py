"""The stream is right: batches decode to the rows' measurements, inputs are shifted, nothing is lost."""

from collections import Counter

import numpy as np
import pytest

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.stored import StoredBatches
from ping_llm.errors import PingError, UsageError
from ping_llm.tokens import reference
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.vocab import PAD

ALL_FIELDS = "src,dst,rtt,time,size,errors,msm_id"


def segments_of(batch):
    """(targets, inputs, positions) of every segment of every sequence."""
    for line in range(len(batch["targets"])):
        of = batch["targets_segmentation"][line]
        for segment in range(1, of.max() + 1):
            inside = of == segment
            yield (
                batch["targets"][line][inside],
                batch["inputs"][line][inside],
                batch["targets_position"][line][inside],
            )


def facts(statement, with_time=True):
    return (statement.dst, statement.seconds if with_time else None, statement.rtt)


@pytest.mark.parametrize(
    ("length", "fields", "encoding"),
    [(256, "src,dst,rtt,time", "compact"), (1024, ALL_FIELDS, "float64"), (128, "src,dst,rtt", "clipped")],
)
def test_every_context_decodes_to_measurements_of_one_row(small_rows, length, fields, encoding):
    options = ContextOptions(fields=fields, rtt_encoding=encoding, prefix_probability=0.0)
    codec = rtt_encoding(encoding, options.clip_limit_ms)
    block = small_rows.block
    known = {}
    for row in range(len(block)):
        places = range(block.offsets[row], block.offsets[row + 1])
        known[block.src[row].tobytes()] = (
            Counter((block.dst[at].tobytes(), _result(codec, block.rtt[at])) for at in places),
            {
                (block.dst[at].tobytes(), block.time[at] // 1_000_000, _result(codec, block.rtt[at]))
                for at in places
            },
        )
    seen = 0
    with Batches(small_rows, options, batch_size=4, length=length, seed=3, threads=0) as batches:
        for _ in range(20):
            for targets, _, _ in segments_of(next(batches)):
                statements = reference.decode(targets, codec)
                untimed, timed = known[statements[0].src.packed]
                stated = Counter((s.dst.packed, s.rtt) for s in statements)
                assert stated <= untimed
                assert all(
                    (s.dst.packed, s.seconds, s.rtt) in timed for s in statements if s.seconds is not None
                )
                seen += len(statements)
    assert seen > 500


def _result(codec, rtt):
    return rtt if rtt == -1.0 else codec.decode(codec.encode(rtt))


def test_inputs_are_targets_shifted_within_segments_and_padding_is_all_zero(small_rows):
    with Batches(small_rows, batch_size=4, length=256, seed=3, threads=0) as batches:
        for _ in range(10):
            batch = next(batches)
            for targets, inputs, positions in segments_of(batch):
                assert inputs[0] == PAD
                np.testing.assert_array_equal(inputs[1:], targets[:-1])
                np.testing.assert_array_equal(positions, np.arange(len(targets)))
                assert targets.all()
            empty = batch["targets_segmentation"] == 0
            assert all(not batch[name][empty].any() for name in batch)
            assert all(batch[name].dtype == np.int32 and batch[name].shape == (4, 256) for name in batch)
            # Padding is at the end, never between contexts.
            assert (np.diff(empty.astype(int), axis=1) >= 0).all()


def test_an_epoch_states_every_context_once_and_pads_only_its_tail(small_rows):
    expected = np.minimum(-(-small_rows.index.counts // 30), 16)
    seen = Counter()
    with Batches(small_rows, batch_size=8, length=512, seed=5, epochs=1, threads=0) as batches:
        assert batches.contexts_per_epoch == expected.sum()
        contexts = 0
        for batch in batches:
            for targets, _, _ in segments_of(batch):
                contexts += 1
                seen[reference.decode(targets)[0].src] += 1
        assert contexts == expected.sum()
        with pytest.raises(StopIteration):
            next(batches)
    whole = {source: number for source, number in seen.items() if source.is_whole}
    rows = {small_rows.block.src[row].tobytes(): int(expected[row]) for row in range(len(expected))}
    assert all(number <= rows[source.packed] for source, number in whole.items())


def test_a_state_of_another_stream_is_refused_in_a_sentence(small_rows):
    arguments = {"batch_size": 4, "length": 256, "seed": 3, "threads": 0}
    state = Batches(small_rows, **arguments).get_state()
    for other, word in (
        ({"seed": 4}, "seed"),
        ({"length": 512}, "length"),
        ({"batch_size": 8}, "batch_size"),
        ({"epochs": 1}, "epochs"),
        ({"options": ContextOptions(repeat_source=0.2)}, "options"),
    ):
        with pytest.raises(PingError, match=f"taken with {word} .* start a new run"):
            Batches(small_rows, **{**arguments, **other}).set_state(state)
    with pytest.raises(PingError, match="version 99"):
        Batches(small_rows, **arguments).set_state({**state, "version": 99})


def test_what_cannot_work_is_said_before_work_begins(small_rows):
    with pytest.raises(UsageError, match="cannot hold the longest measurement"):
        Batches(small_rows, batch_size=4, length=40)
    for format, match in (
        ("pretokenized", "which only `ping-llm train` reads"),
        ("csv", "network_data_format is 'csv': choose probe_chunks .* network_parquet .* pretokenized"),
    ):
        with pytest.raises(UsageError, match=match):
            Batches("rows", batch_size=4, length=256, data_format=format)


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"batch_size": 5, "process_count": 2}, "batch_size is 5: it must be a multiple of process_count"),
        ({"process_index": 2, "process_count": 2}, "process_index is 2: it must be from 0 to 1"),
        ({"process_index": -1}, "process_index is -1: it must be from 0 to 0"),
        ({"process_count": 0}, "process_count is 0: it must be at least 1"),
        ({"epochs": 0}, "epochs is 0: it must be at least 1, or None"),
        ({"seed": -1}, "seed is -1: it must be a whole number from 0"),
        ({"seed": 2**63}, "it must be a whole number from 0"),
    ],
)
def test_shares_that_no_host_has_are_refused(small_rows, tmp_path, share, sentence):
    """Of drawn contexts and of stored ones, whose files are not even opened."""
    arguments = {"batch_size": 4, "length": 256} | share
    with pytest.raises(UsageError, match=sentence):
        Batches(small_rows, **arguments)
    with pytest.raises(UsageError, match=sentence):
        StoredBatches(tmp_path, **arguments)
