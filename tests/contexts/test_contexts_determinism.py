"""The same global batches, byte for byte: any threads, workers, hosts and restarts."""

import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ping_llm.contexts import units
from ping_llm.contexts.batches import Batches
from ping_llm.contexts.plan import unit_sequences

SHAPE = {"batch_size": 24, "length": 192, "seed": 11}
COUNT = 30  # batches: units have 11 of them


def take(rows, count=COUNT, state=None, **how):
    with Batches(rows, **{**SHAPE, **how}) as batches:
        if state is not None:
            batches.set_state(state)
        return list(islice(batches, count))


def assert_equal(expected, got):
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def expected(small_rows):
    return take(small_rows, threads=0)


def test_units_hold_whole_batches():
    for batch_size in (1, 7, 24, 256, 257, 4096):
        assert unit_sequences(batch_size) % batch_size == 0
        assert unit_sequences(batch_size) >= 256


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_do_not_matter(small_rows, expected, threads):
    assert_equal(expected, take(small_rows, threads=threads, ram_budget_mb=1 if threads == 2 else 0))


@pytest.mark.slow
@pytest.mark.timeout(900)  # each worker imports JAX, and compiles kernels if they changed
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_do_not_matter(small_rows, expected, workers):
    """Begun with so many workers, stopped in the middle of a unit, taken up again by a thread."""
    with Batches(small_rows, workers=workers, **SHAPE) as batches:
        first = list(islice(batches, 16))
        state = batches.get_state()
    assert_equal(expected, first + take(small_rows, COUNT - 16, state, threads=1))


@pytest.mark.slow
@pytest.mark.timeout(900)  # each worker imports JAX, and compiles kernels if they changed
def test_workers_go_on_where_threads_stopped(small_rows, expected):
    with Batches(small_rows, threads=1, **SHAPE) as batches:
        list(islice(batches, 13))
        state = batches.get_state()
    assert_equal(expected[13:], take(small_rows, COUNT - 13, state, workers=1))


@pytest.mark.parametrize("stop", [0, 1, 10, 11, 12, 29])
def test_a_stream_resumes_at_any_batch_with_other_threads(small_rows, expected, stop):
    with Batches(small_rows, threads=2, **SHAPE) as batches:
        assert_equal(expected[:stop], list(islice(batches, stop)))
        state = batches.get_state()
    assert len(str(state)) < 400
    assert_equal(expected[stop:], take(small_rows, COUNT - stop, state, threads=1))


@pytest.mark.parametrize("hosts", [2, 3, 24])
def test_hosts_make_shares_of_the_same_batches(small_rows, expected, hosts):
    shares = [take(small_rows, threads=0, process_index=host, process_count=hosts) for host in range(hosts)]
    joined = [
        {name: np.concatenate([share[index][name] for share in shares]) for name in expected[index]}
        for index in range(COUNT)
    ]
    assert_equal(expected, joined)


def test_one_host_goes_on_where_two_stopped(small_rows, expected):
    with Batches(small_rows, threads=1, process_index=1, process_count=2, **SHAPE) as batches:
        list(islice(batches, 5))
        state = batches.get_state()
    assert_equal(expected[5:], take(small_rows, COUNT - 5, state, threads=2))


def test_a_finite_set_is_the_same_on_two_hosts_and_ends_alike(small_rows):
    whole = take(small_rows, 10**6, threads=1, epochs=1)
    shares = [
        take(small_rows, 10**6, threads=0, epochs=1, process_index=host, process_count=2) for host in (0, 1)
    ]
    assert len(whole) == len(shares[0]) == len(shares[1])
    for index, batch in enumerate(whole):
        for name, value in batch.items():
            np.testing.assert_array_equal(value, np.concatenate([share[index][name] for share in shares]))


def test_rows_read_in_portions_give_the_same(small_rows, expected, monkeypatch):
    portions = []
    fill = units.UnitFiller._fill
    monkeypatch.setattr(units, "READ_MEASUREMENTS", 3000)
    monkeypatch.setattr(units.UnitFiller, "_fill", lambda *a: portions.append(len(a[2])) or fill(*a))
    assert_equal(expected, take(small_rows, threads=0))
    assert len(portions) > 3 * len(expected) / 11
    shares = [take(small_rows, threads=0, process_index=host, process_count=2) for host in (0, 1)]
    for index, batch in enumerate(expected):
        both = np.concatenate([share[index]["targets"] for share in shares])
        np.testing.assert_array_equal(both, batch["targets"])


def test_another_seed_is_another_stream(small_rows, expected):
    other = take(small_rows, 1, threads=0, seed=12)[0]
    assert (other["targets"] != expected[0]["targets"]).mean() > 0.5


def test_closing_in_the_middle_loses_nothing(small_rows, expected):
    with Batches(small_rows, threads=2, **SHAPE) as batches:
        first = list(islice(batches, 7))
        batches.close()
        assert_equal(expected[:20], first + list(islice(batches, 13)))


@pytest.mark.slow
@pytest.mark.timeout(900)  # each worker imports JAX, and compiles kernels if they changed
def test_no_worker_outlives_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from random_rows import random_rows
from ping_llm.contexts import units
from ping_llm.contexts.batches import Batches

if __name__ == "__main__":
    import multiprocessing
    batches = Batches(random_rows(1, np.full(50, 20)), batch_size=8, length=256, seed=1, workers=1)
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    while True:
        next(batches)
"""
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 1
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 30
        while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(_alive(pid) for pid in workers)
    finally:
        parent.kill()
        parent.stdout.close()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_grains_own_summary_and_graph_on_demand(small_rows, expected, tmp_path, capfd):
    with Batches(small_rows, grain_visualization_dir=str(tmp_path), **SHAPE) as batches:
        assert_equal(expected[:12], list(islice(batches, 12)))
    assert "UnitIterator" in capfd.readouterr().err
    assert "UnitIterator" in (tmp_path / "grain_summary.txt").read_text()
    assert "targets" in (tmp_path / "grain_graph.txt").read_text()
