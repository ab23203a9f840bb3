"""Stored contexts as batches: what was stored is what is trained on, in a stream that resumes exactly."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.pretokenized import DESCRIPTION, FILE, pretokenize
from ping_llm.contexts.stored import StoredBatches, pack, sequences_of
from ping_llm.errors import PingError, UsageError

LENGTH = 192


@pytest.fixture(scope="module")
def stored(tmp_path_factory, small_rows):
    folder = tmp_path_factory.mktemp("stored")
    with Batches(small_rows, batch_size=8, length=LENGTH, epochs=2) as batches:
        pretokenize(batches, folder / "tokens")
    return folder / "tokens"


def records(folder):
    return [tuple(ids) for ids in pq.read_table(folder / FILE)["tokens"].to_pylist()]


def unpacked(batch):
    """The contexts of a batch, and a check that inputs are the targets before them."""
    found = []
    for row in range(len(batch["targets"])):
        segments, targets = batch["targets_segmentation"][row], batch["targets"][row]
        for segment in range(1, segments.max(initial=0) + 1):
            here = segments == segment
            ids = targets[here]
            assert batch["inputs"][row][here].tolist() == [0, *ids[:-1].tolist()]
            assert batch["targets_position"][row][here].tolist() == list(range(len(ids)))
            found.append(tuple(ids.tolist()))
        assert not targets[segments == 0].any()
    return found


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=40),
    st.integers(12, 30),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_contexts_are_packed_in_order(lengths, length, most, seed):
    """Against plain Python: a sequence ends where the next context does not fit."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(seed).integers(1, 272, offsets[-1]).astype(np.uint16)
    sequences: list[list[int]] = [[]]
    for number, size in enumerate(lengths):
        used = sum(lengths[other] for other in sequences[-1])
        if used + size > length or len(sequences[-1]) == most:
            sequences.append([])
        sequences[-1].append(number)
    first = sequences_of(offsets, length, most)
    assert first.tolist() == [0, *itertools.accumulate(map(len, sequences))]
    out = np.full((4, len(sequences), length), -1, np.int32)
    pack(ids, offsets, first, out)
    names = ("targets", "inputs", "targets_position", "targets_segmentation")
    expected = [tuple(ids[a:b].tolist()) for a, b in itertools.pairwise(offsets.tolist())]
    assert unpacked(dict(zip(names, out, strict=True))) == expected


@pytest.mark.parametrize("threads", [0, 2])
def test_an_epoch_has_every_context_once(stored, threads):
    with StoredBatches(stored, batch_size=8, length=LENGTH, epochs=2, threads=threads) as batches:
        seen = [context for batch in batches for context in unpacked(batch)]
    assert sorted(seen) == sorted(2 * records(stored))
    assert batches.stages.units == 2 * batches.stored.groups
    assert batches.stored.groups > 1
    assert (batches.order(0) != batches.order(1)).any()


def test_the_stream_resumes_from_every_batch(stored):
    with StoredBatches(stored, batch_size=6, length=LENGTH, seed=3, threads=0) as straight:
        states, made = [straight.get_state()], []
        for _ in range(30):
            made.append(next(straight))
            states.append(straight.get_state())
    for at in range(0, 30, 7):
        with StoredBatches(stored, batch_size=6, length=LENGTH, seed=3, threads=2) as resumed:
            resumed.set_state(states[at])
            for number in range(at, 30):
                again = next(resumed)
                assert all((again[key] == made[number][key]).all() for key in again)
            assert resumed.get_state() == states[30]
    with pytest.raises(PingError, match="seed 3, this stream has 4"):
        StoredBatches(stored, batch_size=6, length=LENGTH, seed=4).set_state(states[1])


def test_hosts_share_each_batch(stored):
    shape = {"batch_size": 6, "length": LENGTH, "threads": 0}
    whole = StoredBatches(stored, **shape)
    parts = [StoredBatches(stored, **shape, process_index=i, process_count=3) for i in range(3)]
    for _ in range(12):
        batch, shares = next(whole), [next(part) for part in parts]
        assert (np.concatenate([share["targets"] for share in shares]) == batch["targets"]).all()


def test_what_cannot_be_trained_on_is_refused(stored, tmp_path):
    shape = {"batch_size": 8, "length": LENGTH}
    with pytest.raises(PingError, match="no stored contexts"):
        StoredBatches(tmp_path, **shape)
    with pytest.raises(UsageError, match=f"up to {LENGTH} tokens: max_target_length must be at least"):
        StoredBatches(stored, batch_size=8, length=LENGTH - 1)
    with pytest.raises(UsageError, match=r"repeat_source=0.1: give network_repeat_source=0.1"):
        StoredBatches(stored, ContextOptions(repeat_source=0.5), **shape)
    for damage, match in ((0, "outside 1 to 271"), (300, "outside 1 to 271")):
        table = pq.read_table(stored / FILE)
        ids = table["tokens"].combine_chunks()
        values = ids.values.to_numpy().copy()
        values[5] = damage
        tokens = type(ids).from_arrays(ids.offsets, values)
        pq.write_table(table.set_column(0, table.schema.field(0), tokens), tmp_path / FILE)
        (tmp_path / DESCRIPTION).write_bytes((stored / DESCRIPTION).read_bytes())
        with pytest.raises(PingError, match=match):
            list(StoredBatches(tmp_path, **shape, epochs=1))
    about = json.loads((stored / DESCRIPTION).read_bytes())
    (tmp_path / DESCRIPTION).write_text(json.dumps(about | {"version": 4}))
    with pytest.raises(PingError, match="has version 4, this program reads 1 to 3"):
        StoredBatches(tmp_path, **shape)
    (tmp_path / DESCRIPTION).write_bytes((stored / DESCRIPTION).read_bytes())
    with pytest.raises(UsageError, match="threads is -1"):
        StoredBatches(stored, **shape, threads=-1)
    (tmp_path / FILE).write_bytes((stored / FILE).read_bytes()[:-9])
    with pytest.raises(PingError, match="cannot read"):
        StoredBatches(tmp_path, **shape)
