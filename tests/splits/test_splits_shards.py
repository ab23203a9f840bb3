"""Splits and shards end to end, judged by plain Python over what was written."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ping_llm.errors import PingError, UsageError
from ping_llm.measurements import schema
from ping_llm.simulate import WorldOptions, simulate
from ping_llm.splits import run as shards_run
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards") / "world"
    simulate(folder, WorldOptions(measurements=60_000, probes=1_500, targets=40, days=6, seed=2))
    return folder


def rows_of(path: Path) -> list[tuple]:
    return list(zip(*pq.read_table(path).to_pydict().values(), strict=True))


def read_splits(out: Path) -> dict[str, list[tuple]]:
    splits: dict[str, list[tuple]] = {}
    for path in sorted(out.rglob("*.parquet")):
        splits.setdefault(path.parent.name, []).extend(rows_of(path))
    return splits


def shard_sizes(out: Path, split: str) -> list[int]:
    return [pq.read_metadata(path).num_rows for path in sorted((out / split).glob("*.parquet"))]


def checks(content: dict) -> dict[str, dict]:
    assert all(check["holds"] for check in content["checks"])
    return {check["promise"]: check["figures"] for check in content["checks"]}


@pytest.mark.parametrize("by", ["time", "probe", "pair", "row"])
def test_every_row_is_in_one_split_and_nothing_leaks(world, tmp_path, by):
    report = shard(
        [str(world)], tmp_path / "out", ShardOptions(by=by, shards=20, stratify=("time", "msm_id"))
    )
    splits = read_splits(tmp_path / "out")
    original = [row for path in sorted(world.rglob("*.parquet")) for row in rows_of(path)]
    assert Counter(original) == sum((Counter(rows) for rows in splits.values()), Counter())
    for split, share in (("train", 0.8), ("val", 0.1), ("test", 0.1)):
        assert len(splits[split]) / len(original) == pytest.approx(share, abs=0.03 if by == "probe" else 0.01)
    keys = {
        "time": lambda row: row[0],
        "probe": lambda row: row[1],
        "pair": lambda row: frozenset(row[1:3]),
        "row": lambda row: row,
    }[by]
    found = {split: {keys(row) for row in rows} for split, rows in splits.items()}
    if by == "time":
        assert max(found["train"]) < min(found["val"]) <= max(found["val"]) < min(found["test"])
    else:
        assert (
            not found["train"] & found["val"] | found["train"] & found["test"] | found["val"] & found["test"]
        )
    checks(report.content)
    assert report.content["rows"] == {"in": 60_000, "out": 60_000, "in_gaps": 0}
    assert sum(entry["rows"] for entry in report.content["shards"]) == 60_000
    assert len(report.content["shards"]) == 20


def test_shards_are_equal_and_strata_even(world, tmp_path):
    out = tmp_path / "out"
    shard([str(world)], out, ShardOptions(by="pair", shards=30, stratify=("time", "msm_id", "failed")))
    for split in ("train", "val", "test"):
        sizes = shard_sizes(out, split)
        assert max(sizes) - min(sizes) <= 3
        tables = [pq.read_table(path) for path in sorted((out / split).glob("*.parquet"))]
        whole = pa.concat_tables(tables)
        for values in (
            lambda t: t["event_time"].to_numpy().astype("datetime64[D]"),
            lambda t: t["msm_id"].to_numpy(),
        ):
            overall = {
                value: n / len(whole)
                for value, n in zip(*np.unique(values(whole), return_counts=True), strict=True)
            }
            for table in tables:
                counts = dict(zip(*np.unique(values(table), return_counts=True), strict=True))
                for value, share in overall.items():
                    assert abs(counts.get(value, 0) / len(table) - share) < 0.01
                    if share * len(table) > 1_000:
                        assert counts[value] / len(table) == pytest.approx(share, rel=0.01)


def test_row_splits_are_stratified_too(world, tmp_path):
    shard([str(world)], tmp_path / "out", ShardOptions(by="row", shards=10, stratify=("msm_id",)))
    splits = read_splits(tmp_path / "out")
    overall = Counter(row[5] for rows in splits.values() for row in rows)
    for split, fraction in (("train", 0.8), ("val", 0.1), ("test", 0.1)):
        counts = Counter(row[5] for row in splits[split])
        for value, n in overall.items():
            assert abs(counts[value] - fraction * n) <= 1 + np.log2(n)


def test_gap_is_left_out_and_counted(world, tmp_path):
    report = shard([str(world)], tmp_path / "out", ShardOptions(by="time", shards=4, gap_seconds=7_200))
    splits = read_splits(tmp_path / "out")
    pause = (min(row[0] for row in splits["val"]) - max(row[0] for row in splits["train"])).total_seconds()
    assert pause >= 7_200
    rows = report.content["rows"]
    assert rows["in_gaps"] > 0
    assert rows["in"] == rows["out"] + rows["in_gaps"] == 60_000


def test_two_fractions_and_an_empty_one(world, tmp_path):
    shard([str(world)], tmp_path / "two", ShardOptions(by="probe", fractions=(0.5, 0.5), shards=4))
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["shard.json", "test", "train"]
    shard([str(world)], tmp_path / "none", ShardOptions(by="time", fractions=(0.7, 0.0, 0.3), shards=4))
    assert sorted(path.name for path in (tmp_path / "none").iterdir()) == ["shard.json", "test", "train"]


def test_same_bytes_whatever_the_threads_and_the_memory(world, tmp_path):
    options = ShardOptions(by="probe", shards=6, stratify=("time",))
    shard([str(world)], tmp_path / "a", options, memory_mb=1_000, threads=2)
    shard([str(world)], tmp_path / "b", options, memory_mb=300, threads=1)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def write(path: Path, rows: list[tuple], **more) -> None:
    time, src, dst, rtt = zip(*rows, strict=True)
    table = {
        "event_time": pa.array(time, pa.timestamp("us", tz="UTC")),
        "src_addr": pa.array(src),
        "dst_addr": pa.array(dst),
        "rtt": pa.array(rtt, pa.float64()),
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)


def random_rows(count: int, seed: int = 0) -> list[tuple]:
    random = np.random.default_rng(seed)
    return [
        (int(t), f"11.0.{a}.{a + 1}", f"12.0.0.{b}", float(r))
        for t, a, b, r in zip(
            random.integers(0, 10**12, count),
            random.integers(0, 60, count),
            random.integers(0, 60, count),
            random.random(count) * 100,
            strict=True,
        )
    ]


def test_a_source_stays_in_its_split_when_the_data_change(tmp_path):
    """By hash: independent of order, of other sources and of files."""
    rows = random_rows(4_000)
    write(tmp_path / "one" / "a.parquet", rows)
    write(tmp_path / "two" / "z.parquet", rows[::-1][:3_000])
    write(tmp_path / "two" / "b.parquet", random_rows(500, seed=9))
    options = ShardOptions(by="probe", shards=3)
    found = []
    for name in ("one", "two"):
        shard([str(tmp_path / name)], tmp_path / f"{name}-out", options)
        found.append(
            {row[1]: split for split, part in read_splits(tmp_path / f"{name}-out").items() for row in part}
        )
    assert len(found[0].keys() & found[1].keys()) > 50
    assert all(found[0][source] == found[1][source] for source in found[0].keys() & found[1].keys())


def test_there_and_back_are_one_pair(tmp_path):
    rows = random_rows(2_000)
    write(tmp_path / "in.parquet", rows + [(time, dst, src, rtt) for time, src, dst, rtt in rows])
    shard([str(tmp_path / "in.parquet")], tmp_path / "out", ShardOptions(by="pair", shards=3))
    pairs = [{frozenset(row[1:3]) for row in part} for part in read_splits(tmp_path / "out").values()]
    assert not pairs[0] & pairs[1] | pairs[0] & pairs[2] | pairs[1] & pairs[2]


def test_spellings_of_one_address_are_one_source(tmp_path):
    spellings = ["2A00:0:0::1", "2a00::1", "2a00:0000::0001"]
    rows = [(i, spellings[i % 3] if i % 2 else f"2a00::{i + 2:x}", "2a01::5", 1.0) for i in range(600)]
    write(tmp_path / "in.parquet", rows)
    shard([str(tmp_path / "in.parquet")], tmp_path / "out", ShardOptions(by="probe", shards=3))
    holders = [
        split
        for split, part in read_splits(tmp_path / "out").items()
        if any(row[1] == "2a00::1" for row in part)
    ]
    assert len(holders) == 1
    assert len([row for row in read_splits(tmp_path / "out")[holders[0]] if row[1] == "2a00::1"]) == 300


def test_output_has_the_schema_and_keeps_unknown_as_null(tmp_path):
    rows = random_rows(300)
    msm_id = pa.array([None if i % 3 else i for i in range(300)], pa.int32())
    write(tmp_path / "in" / "a.parquet", rows, msm_id=msm_id)
    write(tmp_path / "in" / "b.parquet", random_rows(50, seed=1))  # knows of no msm_id
    shard([str(tmp_path / "in")], tmp_path / "out", ShardOptions(by="row", shards=3))
    for path in (tmp_path / "out").rglob("*.parquet"):
        assert pq.read_schema(path).equals(schema.MEASUREMENTS, check_metadata=True)
    written = [row for part in read_splits(tmp_path / "out").values() for row in part]
    assert sorted(row[5] for row in written if row[5] is not None) == list(range(0, 300, 3))
    assert all(row[6:] == (None, None, None) for row in written)


def test_throughputs_survive(tmp_path):
    rows = random_rows(300)
    mbps = [(94.3, None, 0.0)[i % 3] for i in range(300)]
    write(tmp_path / "in" / "a.parquet", rows, throughput_mbps=pa.array(mbps))
    write(tmp_path / "in" / "b.parquet", random_rows(50, seed=1))  # knows of none
    shard([str(tmp_path / "in")], tmp_path / "out", ShardOptions(by="row", shards=3))
    for path in (tmp_path / "out").rglob("*.parquet"):
        assert pq.read_schema(path).equals(schema.MEASUREMENTS_WITH_THROUGHPUT, check_metadata=True)
    written = [row for part in read_splits(tmp_path / "out").values() for row in part]
    assert Counter(row[10] for row in written) == {94.3: 100, None: 150, 0.0: 100}
    expected = Counter((*row[1:4], one) for row, one in zip(rows, mbps, strict=True))
    assert not expected - Counter((*row[1:3], row[4], row[10]) for row in written)
    write(tmp_path / "wrong.parquet", rows[:2], throughput_mbps=pa.array([1.0, -3.0]))
    with pytest.raises(PingError, match=r"row 2: throughput_mbps -3.0 must be from 0 to 100,000,000, or -1"):
        shard([str(tmp_path / "wrong.parquet")], tmp_path / "no", ShardOptions(by="row", shards=3))
    write(tmp_path / "text.parquet", rows[:1], throughput_mbps=pa.array(["1"]))
    with pytest.raises(PingError, match="column throughput_mbps has type string"):
        shard([str(tmp_path / "text.parquet")], tmp_path / "no", ShardOptions(by="row", shards=3))


def test_kind_survives_and_is_ping_where_it_is_unknown(tmp_path):
    kinds = [("hop", "last", None, "ping")[i % 4] for i in range(300)]
    rows = random_rows(300)
    write(tmp_path / "in" / "a.parquet", rows, kind=pa.array(kinds).dictionary_encode())
    write(tmp_path / "in" / "b.parquet", random_rows(50, seed=1))  # knows of no kind
    write(tmp_path / "in" / "c.parquet", random_rows(20, seed=2), kind=pa.nulls(20))
    shard([str(tmp_path / "in")], tmp_path / "out", ShardOptions(by="row", shards=3))
    for path in (tmp_path / "out").rglob("*.parquet"):
        assert pq.read_schema(path).equals(schema.MEASUREMENTS_WITH_KIND, check_metadata=True)
    written = [row for part in read_splits(tmp_path / "out").values() for row in part]
    assert Counter(row[9] for row in written) == {"ping": 150 + 70, "hop": 75, "last": 75}
    expected = Counter((*row[1:4], kind or "ping") for row, kind in zip(rows, kinds, strict=True))
    assert not expected - Counter((*row[1:3], row[4], row[9]) for row in written)
    write(tmp_path / "wrong.parquet", rows[:4], kind=pa.array(["ping", "hop", "tcp", "ping"]))
    with pytest.raises(PingError, match=r"row 3: kind tcp is not one of ping, hop, last"):
        shard([str(tmp_path / "wrong.parquet")], tmp_path / "no", ShardOptions(by="row", shards=3))
    write(tmp_path / "number.parquet", rows[:1], kind=pa.array([1]))
    with pytest.raises(PingError, match="column kind has type int64"):
        shard([str(tmp_path / "number.parquet")], tmp_path / "no", ShardOptions(by="row", shards=3))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((0, "11.0.0", "12.0.0.1", 1.0), "src_addr 11.0.0 is not an address"),
        ((0, "11.0.0.1", None, 1.0), "dst_addr None is not an address"),
        ((0, "11.0.0.1", "2a00::1", 1.0), "another IP version"),
        ((0, "11.0.0.1", "12.0.0.1", float("nan")), "rtt nan"),
        ((0, "11.0.0.1", "12.0.0.1", None), "rtt None"),
        ((0, "11.0.0.1", "12.0.0.1", -2.0), "rtt -2.0"),
        ((-5, "11.0.0.1", "12.0.0.1", 1.0), "event_time -5"),
        ((None, "11.0.0.1", "12.0.0.1", 1.0), "event_time"),
    ],
)
def test_a_row_that_is_no_measurement_is_named(tmp_path, bad, message):
    write(tmp_path / "in" / "a.parquet", random_rows(50))
    write(tmp_path / "in" / "b.parquet", [*random_rows(7), bad, *random_rows(40)])
    with pytest.raises(PingError, match=message) as raised:
        shard([str(tmp_path / "in")], tmp_path / "out", ShardOptions(by="row", shards=3))
    assert f"{tmp_path / 'in' / 'b.parquet'}, row 8" in str(raised.value)
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_what_cannot_be_split_is_said(tmp_path):
    write(tmp_path / "moment.parquet", [(5, "11.0.0.1", "12.0.0.1", 1.0)] * 100)
    for by in ("time", "probe", "pair"):
        with pytest.raises(PingError, match="would be empty"):
            shard([str(tmp_path / "moment.parquet")], tmp_path / "out", ShardOptions(by=by))
    write(tmp_path / "hour.parquet", [(i * 10**6, "11.0.0.1", "12.0.0.1", 1.0) for i in range(3_600)])
    with pytest.raises(PingError, match="leaves no time"):
        shard([str(tmp_path / "hour.parquet")], tmp_path / "out", ShardOptions(gap_seconds=86_400))
    with pytest.raises(UsageError, match="does not exist"):
        shard([str(tmp_path / "nothing")], tmp_path / "out", ShardOptions())
    (tmp_path / "text.parquet").write_text("not Parquet")
    with pytest.raises(PingError, match="is not a Parquet file"):
        shard([str(tmp_path / "text.parquet")], tmp_path / "out", ShardOptions())


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": "day"},
        {"fractions": (0.5, 0.4)},
        {"fractions": (0.5, 0.6, -0.1)},
        {"fractions": (0.25,) * 4},
        {"stratify": ("colour",)},
        {"stratify": ("time", "time")},
        {"by": "probe", "gap_seconds": 5},
        {"shards": 2},
    ],
)
def test_impossible_options_are_named(wrong):
    with pytest.raises(UsageError):
        ShardOptions(**wrong)


def test_done_work_is_kept_and_other_work_refused(world, tmp_path):
    options = ShardOptions(by="probe", shards=4)
    first = shard([str(world)], tmp_path, options)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    again = shard([str(world)], tmp_path, options)
    assert again.was_done
    assert again.content == first.content
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    with pytest.raises(UsageError, match="other data or options"):
        shard([str(world)], tmp_path, ShardOptions(by="probe", shards=5))
    # Interrupted before the report: the same files again.
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    as_if_killed_while_writing(tmp_path)
    (tmp_path / "val" / "shard-00000.parquet").unlink()
    shard([str(world)], tmp_path, options)
    assert contents == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}


def as_if_killed_while_writing(out):
    shards = [entry["path"] for entry in json.loads((out / "shard.json").read_text())["shards"]]
    (out / ".writing.json").write_text(json.dumps({"shards": shards}))
    (out / "shard.json").unlink()


@pytest.mark.parametrize("damage", ["gone", "cut", "empty"])
def test_a_damaged_shard_is_written_again(world, tmp_path, damage):
    options = ShardOptions(by="probe", shards=4)
    shard([str(world)], tmp_path, options)
    contents = tree(tmp_path)
    victim = tmp_path / "train" / "shard-00000.parquet"
    rest = victim.read_bytes()[:-1] if damage == "cut" else b""
    victim.unlink()
    if damage != "gone":
        victim.write_bytes(rest)
    assert not shard([str(world)], tmp_path, options).was_done
    assert tree(tmp_path) == contents


@pytest.mark.parametrize("written", [True, False])
def test_files_that_shard_did_not_write_are_never_removed(world, tmp_path, written):
    """Neither beside its own shards, nor in a folder that looks like one of its own."""
    options = ShardOptions(by="probe", shards=4)
    if written:
        shard([str(world)], tmp_path, options)
        (tmp_path / "train" / "shard-00000.parquet").unlink()
    for name in ("train/shard-00099.parquet", "val/.shard-00099.parquet.7.part", "test/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
        before = tree(tmp_path)
        with pytest.raises(UsageError, match="was not written by this command"):
            shard([str(world)], tmp_path, options)
        assert tree(tmp_path) == before
        (tmp_path / name).unlink()
    shard([str(world)], tmp_path, options)
    assert len(list(tmp_path.rglob("*.parquet"))) == 4


def test_a_written_mark_does_not_stand_for_shards_that_were_cut(world, tmp_path, monkeypatch):
    options = ShardOptions(by="probe", shards=4)
    shard([str(world)], tmp_path / "whole", options)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards_run, "_report", killed)
    with pytest.raises(KeyboardInterrupt):
        shard([str(world)], tmp_path / "out", options)
    monkeypatch.undo()
    (tmp_path / "out" / "train" / "shard-00000.parquet").write_bytes(b"")
    shard([str(world)], tmp_path / "out", options)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_report_that_is_not_one_is_said(world, tmp_path):
    for text in ("", "[]", '{"shards": [7]}'):
        (tmp_path / "shard.json").write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            shard([str(world)], tmp_path, ShardOptions())


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("moment", ["train/.shard-*.part", ".written.json"])
def test_killed_in_the_middle_and_run_again(world, tmp_path, moment):
    """While writing, and while proving: the same bytes, and nothing left over."""
    options = ShardOptions(by="pair", shards=6, stratify=("time",))
    shard([str(world)], tmp_path / "whole", options)
    out = tmp_path / "out"
    # Killed with other options first, so that its leftovers are more shards than are wanted.
    code = "from ping_llm.cli import main; main()"
    arguments = ["--by", "pair", "--shards", "6" if "written" in moment else "40", "--stratify", "time"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "split", str(world), "--out", str(out), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list(out.glob(moment)) and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (out / "shard.json").exists()
    assert (out / ".shard-spill").exists()
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    shard([str(world)], out, options)
    assert tree(out) == tree(tmp_path / "whole")
    assert not list(out.glob(".*"))
    if "written" in moment:
        assert len(stamps) == 6
        assert stamps == {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}


def test_leftovers_of_another_interrupted_sharding_are_removed(world, tmp_path):
    """A killed run may have named some of its shards already: they must not stay beside others."""
    options = ShardOptions(by="probe", shards=4)
    shard([str(world)], tmp_path / "whole", options)
    shard([str(world)], tmp_path / "out", ShardOptions(by="row", shards=30))
    as_if_killed_while_writing(tmp_path / "out")
    shard([str(world)], tmp_path / "out", options)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_foreign_folder_is_refused(world, tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"letter\.txt"):
        shard([str(world)], tmp_path, ShardOptions())


@pytest.mark.parametrize(("by", "broken"), [("probe", "no source"), ("pair", "no pair"), ("time", "earlier")])
def test_the_proof_notices_a_leak(world, tmp_path, monkeypatch, by, broken):
    from ping_llm.splits import assign

    def leaky(self, batch, values):
        return np.arange(len(batch)) % 3

    monkeypatch.setattr(assign.Assigner, "splits", leaky)
    with pytest.raises(PingError, match=broken):
        shard([str(world)], tmp_path, ShardOptions(by=by, shards=6))
    assert not (tmp_path / "shard.json").exists()
    assert (tmp_path / "broken-shard.json").exists()


def test_the_proof_notices_uneven_shards(world, tmp_path, monkeypatch):
    from ping_llm.splits.deal import Dealer

    deal = Dealer.deal

    def uneven(self, split, values):
        shards = deal(self, split, values)
        shards[::9] = np.where(shards[::9] > 0, 0, shards[::9])
        return shards

    monkeypatch.setattr(Dealer, "deal", uneven)
    with pytest.raises(PingError, match="equal size"):
        shard([str(world)], tmp_path, ShardOptions(by="row", shards=10))


def test_command_from_end_to_end(world, tmp_path):
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()", "split", str(world), "--out"]
    arguments = [
        "--by",
        "time",
        "--fractions",
        "0.8,0.2",
        "--gap",
        "1h",
        "--shards",
        "5",
        "--stratify",
        "time",
    ]
    done = subprocess.run(
        [*program, str(tmp_path / "a"), *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "a" / "shard.json").read_text())
    wrong = subprocess.run(
        [*program, str(tmp_path / "b"), "--gap", "soon"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "'soon' is not a duration" in wrong.stderr
