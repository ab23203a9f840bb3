"""Building rows: every engine the same bytes, nothing lost, nothing mixed."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows_data import edge_table, folder_bytes, measurements, write_measurements

from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.rules import RULES
from ping_llm.rows import build as build_module
from ping_llm.rows import plan, sortable, sorting
from ping_llm.rows.build import RowOptions, RunOptions, build, run_step
from ping_llm.rows.sortable import WORDS
from ping_llm.rows.store import RowStore


@pytest.fixture
def small_parts(monkeypatch):
    """Several parts and slices from small data."""
    monkeypatch.setattr(plan, "SMALL_PART_MEASUREMENTS", 1500)
    monkeypatch.setattr(plan, "_MIN_SLICE", 700)
    monkeypatch.setattr(plan, "_BUCKET_MEASUREMENTS", 400)


REFERENCE = RunOptions(engine="reference")


@given(st.integers(0, 2**32), st.integers(0, 60), st.sampled_from(["src_addr", "probe_id"]))
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_edge_cases_as_the_reference_has_them(tmp_path_factory, seed, count, group_by):
    place = tmp_path_factory.mktemp("edges")
    pq.write_table(edge_table(seed, count), place / "in.parquet")
    options = RowOptions(group_by=group_by)
    expected = build([place], place / "reference", options, REFERENCE)
    found = build([place / "in.parquet"], place / "compiled", options)
    assert found == expected
    assert folder_bytes(place / "compiled") == folder_bytes(place / "reference")
    counts = found["counts"]
    assert counts["in"] == count == counts["measurements"] + sum(counts["rejected"].values())


def test_every_rule_rejects(tmp_path):
    pq.write_table(edge_table(3, 4000), tmp_path / "in.parquet")
    counts = build([tmp_path], tmp_path / "out")["counts"]
    assert set(counts["rejected"]) == {str(rule) for rule in RULES}


@pytest.mark.parametrize("group_by", ["src_addr", "probe_id"])
@pytest.mark.parametrize("split", [None, "probe:0.7,0.3"])
def test_the_same_bytes_however_it_runs(tmp_path, small_parts, monkeypatch, group_by, split):
    table = write_measurements(tmp_path / "one" / "all.parquet", 6000, sources=300)
    shuffled = table.take(np.random.default_rng(1).permutation(len(table)))
    options = RowOptions(group_by=group_by, split=split, max_row_mib=1)
    build([tmp_path / "one"], tmp_path / "reference", options, REFERENCE)
    wanted = folder_bytes(tmp_path / "reference")
    assert len(list((tmp_path / "reference").rglob("*.arrayrecord"))) >= 4

    build([tmp_path / "one"], tmp_path / "a", options, RunOptions(workers=1, memory_limit="256MB"))
    assert folder_bytes(tmp_path / "a") == wanted
    with monkeypatch.context() as patch:
        patch.setattr("ping_llm.rows.build.HELD_FRACTION", 0)  # spills on disk
        build([tmp_path / "one"], tmp_path / "b", options, RunOptions(workers=3, temp=tmp_path / "temp"))
    assert folder_bytes(tmp_path / "b") == wanted
    assert not list((tmp_path / "temp").iterdir())

    # The same measurements in other files: another source, but the same rows.
    for number in range(3):
        part = shuffled.slice(2000 * number, 2000)
        target = tmp_path / "many" / f"date=2026-01-0{number + 1}" / f"{9 - number}.parquet"
        target.parent.mkdir(parents=True)
        pq.write_table(part, target)
    build([tmp_path / "many"], tmp_path / "c", options)
    found = folder_bytes(tmp_path / "c")
    names = [name for name in wanted if not name.endswith("manifest.json")]
    assert [found[name] for name in names] == [wanted[name] for name in names]

    # Sorted outside memory, in many runs.
    monkeypatch.setattr(build_module, "block_limit", lambda memory_bytes: 170)
    monkeypatch.setattr(sorting, "_GATHERED", 64)
    build([tmp_path / "one"], tmp_path / "d", options)
    assert folder_bytes(tmp_path / "d") == wanted


def test_long_histories_become_consecutive_rows(tmp_path):
    """One source of 40,000 measurements at 1 MiB a row: full rows, then the rest, in order."""
    table = measurements(40_000, sources=1, span_s=10**6)
    pq.write_table(table, tmp_path / "in.parquet")
    build([tmp_path / "in.parquet"], tmp_path / "out", RowOptions(max_row_mib=1))
    store = RowStore(tmp_path / "out")
    limit = RowOptions(max_row_mib=1).max_measurements
    assert store.counts.tolist() == [limit, limit, 40_000 - 2 * limit]
    block = store.read([0, 1, 2])
    assert (np.diff(block.time) >= 0).all()
    assert all(len(record) <= 2**20 for record in store.read_records([0, 1, 2]))
    assert sorted(block.time.tolist()) == sorted(table["event_time"].cast(pa.int64()).to_pylist())


def test_probe_grouping_keeps_a_probe_together(tmp_path, small_parts):
    write_measurements(tmp_path / "in.parquet", 5000, sources=120)
    options = RowOptions(group_by="probe_id", split="probe:0.5,0.5")
    build([tmp_path / "in.parquet"], tmp_path / "out", options)
    probes = []
    for name in ("train", "val"):
        store = RowStore(tmp_path / "out" / name)
        block = store.read(range(len(store)))
        for row in range(len(block)):
            assert len(set(block.rows(row, row + 1).probe_id.tolist())) == 1
        probes.append(set(block.probe_id.tolist()) - {-1})
    assert all(probes)
    assert not probes[0] & probes[1]


def test_missing_optional_columns_and_other_types(tmp_path):
    table = measurements(500)
    few = table.select(["event_time", "src_addr", "dst_addr", "rtt"])
    other = pa.table(
        {
            "rtt": few["rtt"].cast(pa.float32()),
            "event_time": few["event_time"].cast(pa.timestamp("ns")),
            "src_addr": few["src_addr"].dictionary_encode(),
            "dst_addr": few["dst_addr"].cast(pa.large_string()),
            "size": pa.nulls(500),
            "msm_id": pa.array(np.full(500, 2**64 - 1, np.uint64), mask=np.arange(500) > 0),
        }
    )
    for name, one in (("few", few), ("other", other)):
        pq.write_table(one, tmp_path / f"{name}.parquet")
        inputs = [tmp_path / f"{name}.parquet"]
        found = build(inputs, tmp_path / f"{name}-rows")
        build(inputs, tmp_path / f"{name}-reference", run=REFERENCE)
        assert folder_bytes(tmp_path / f"{name}-rows") == folder_bytes(tmp_path / f"{name}-reference")
    assert found["counts"]["rejected"] == {"bad_field": 1}


def test_wrong_columns_are_named(tmp_path):
    table = measurements(10)
    pq.write_table(table.drop_columns(["rtt"]), tmp_path / "a.parquet")
    with pytest.raises(PingError, match=r"a.parquet has no column rtt"):
        build([tmp_path / "a.parquet"], tmp_path / "out-a")
    pq.write_table(table.set_column(5, "msm_id", pa.array(["x"] * 10)), tmp_path / "b.parquet")
    with pytest.raises(PingError, match=r"b.parquet: column msm_id has type string"):
        build([tmp_path / "b.parquet"], tmp_path / "out-b")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(PingError, match=r"c.parquet as Parquet"):
        build([tmp_path / "c.parquet"], tmp_path / "out-c")
    with pytest.raises(UsageError, match="does not exist"):
        build([tmp_path / "none"], tmp_path / "out-d")


def test_other_input_or_options_are_refused(tmp_path):
    write_measurements(tmp_path / "a.parquet", 300)
    write_measurements(tmp_path / "b.parquet", 300, seed=1)
    first = build([tmp_path / "a.parquet"], tmp_path / "out")
    before = folder_bytes(tmp_path / "out")
    assert build([tmp_path / "a.parquet"], tmp_path / "out") == first
    with pytest.raises(UsageError, match="other input"):
        build([tmp_path / "b.parquet"], tmp_path / "out")
    with pytest.raises(UsageError, match="other options"):
        build([tmp_path / "a.parquet"], tmp_path / "out", RowOptions(max_row_mib=4))
    with pytest.raises(UsageError, match="other options"):
        build([tmp_path / "a.parquet"], tmp_path / "out", RowOptions(split="probe:0.5,0.5"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match=r"holds other files \(thesis.tex"):
        build([tmp_path / "a.parquet"], tmp_path / "full")
    assert folder_bytes(tmp_path / "out") == before


def test_steps_of_a_cluster_give_the_same(tmp_path, small_parts):
    write_measurements(tmp_path / "in.parquet", 6000)
    inputs = [tmp_path / "in.parquet"]
    build(inputs, tmp_path / "local")
    for step, tasks in (("plan", 1), ("scan", 3), ("encode", 3), ("finish", 1)):
        for task in reversed(range(tasks)):
            run_step(step, inputs, tmp_path / "steps", task=task, tasks=tasks)
    assert folder_bytes(tmp_path / "steps") == folder_bytes(tmp_path / "local")


def test_steps_in_the_wrong_order_say_so(tmp_path, small_parts):
    write_measurements(tmp_path / "in.parquet", 6000)
    inputs, out = [tmp_path / "in.parquet"], tmp_path / "out"
    with pytest.raises(PingError, match="start with the step `plan`"):
        run_step("scan", inputs, out)
    run_step("plan", inputs, out)
    run_step("scan", inputs, out, task=0, tasks=2)
    with pytest.raises(PingError, match="slices are not scanned yet"):
        run_step("encode", inputs, out)
    run_step("scan", inputs, out, task=1, tasks=2)
    run_step("encode", inputs, out, task=1, tasks=2)
    with pytest.raises(PingError, match="parts are not encoded yet"):
        run_step("finish", inputs, out)
    assert not (out / "manifest.json").exists()


def test_a_damaged_spill_file_is_found(tmp_path, small_parts):
    write_measurements(tmp_path / "in.parquet", 3000)
    inputs, out = [tmp_path / "in.parquet"], tmp_path / "out"
    run_step("plan", inputs, out)
    run_step("scan", inputs, out)
    spill = sorted((out / ".build").glob("*.spill"))[1]
    data = bytearray(spill.read_bytes())
    data[-100] ^= 4
    spill.write_bytes(data)
    with pytest.raises(PingError, match=f"{spill.name} is damaged"):
        run_step("encode", inputs, out)


def test_a_lost_measurement_is_not_passed_over(tmp_path, small_parts):
    write_measurements(tmp_path / "in.parquet", 3000)
    inputs, out = [tmp_path / "in.parquet"], tmp_path / "out"
    for step in ("plan", "scan", "encode"):
        run_step(step, inputs, out)
    marker = sorted((out / ".build").glob("part-*.json"))[0]
    info = json.loads(marker.read_text())
    marker.write_text(json.dumps(info | {"measurements": info["measurements"] - 1}))
    with pytest.raises(PingError, match="do not add up"):
        run_step("finish", inputs, out)
    assert not (out / "manifest.json").exists()


@given(st.integers(0, 2**32), st.integers(1, 300), st.booleans())
@settings(deadline=None, max_examples=60)
def test_sort_order_is_the_order_of_the_words(seed, count, by_probe):
    """Few distinct values: ties, collisions of probes, runs in order and not."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 3, (count, WORDS)).astype(np.uint64)
    found = words[sorting.sort_order(words, by_probe)]
    hashes = np.array([sortable.hash_key(words, row, by_probe) for row in range(count)], np.uint64)
    columns = [words[:, word] for word in range(WORDS)]
    if by_probe:
        columns.insert(0, words[:, 7])
    expected = words[np.lexsort((*reversed(columns), hashes))]
    assert (found == expected).all()


def test_options_that_cannot_work():
    for wrong in ({"split": "probe:0.5,0.6"}, {"split": "time:1"}, {"group_by": "dst"}, {"max_row_mib": 0}):
        with pytest.raises(UsageError):
            RowOptions(**wrong)
    for wrong in ({"memory_limit": "lots"}, {"memory_limit": "1MB"}, {"engine": "abacus"}, {"workers": -1}):
        with pytest.raises(UsageError):
            RunOptions(**wrong)


def cut_one_byte(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE = {
    "all shards are gone": lambda out: [path.unlink() for path in out.rglob("*.arrayrecord")],
    "one shard is gone": lambda out: next(out.rglob("*.arrayrecord")).unlink(),
    "a shard is cut": lambda out: cut_one_byte(next(out.rglob("*.arrayrecord"))),
    "a shard is empty": lambda out: next(out.rglob("*.arrayrecord")).write_bytes(b""),
    "the index is gone": lambda out: next(out.rglob("index.bin")).unlink(),
    "the index is cut": lambda out: cut_one_byte(next(out.rglob("index.bin"))),
    "a manifest is gone": lambda out: max(out.rglob("manifest.json")).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_done_means_that_the_files_are_there(damage, tmp_path):
    write_measurements(tmp_path / "in.parquet", 300)
    options, out = RowOptions(split="probe:0.7,0.3"), tmp_path / "out"
    build([tmp_path / "in.parquet"], out, options)
    wanted = folder_bytes(out)
    DAMAGE[damage](out)
    build([tmp_path / "in.parquet"], out, options)
    assert folder_bytes(out) == wanted


def test_damaged_rows_without_splits_are_built_again_beside_nothing_else(tmp_path):
    write_measurements(tmp_path / "in.parquet", 300)
    out = tmp_path / "out"
    build([tmp_path / "in.parquet"], out)
    wanted = folder_bytes(out)
    next(out.glob("*.arrayrecord")).unlink()
    (out / "rows-00077-of-00099.arrayrecord").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        build([tmp_path / "in.parquet"], out)
    assert (out / "rows-00077-of-00099.arrayrecord").read_text() == "mine"
    (out / "rows-00077-of-00099.arrayrecord").unlink()
    build([tmp_path / "in.parquet"], out)
    assert folder_bytes(out) == wanted


def test_a_manifest_that_is_not_one_is_said(tmp_path):
    write_measurements(tmp_path / "in.parquet", 10)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match=r"manifest\.json cannot be read"):
        build([tmp_path / "in.parquet"], tmp_path / "out")
