"""`ingest --append`: the bytes of one run over all files, nothing lost when it is interrupted."""

import random
import shutil

import pytest
from atlas_results import ping, reply, traceroute, write_lines
from ingest_program import program, tree

from ping_llm.errors import UsageError
from ping_llm.ingest import append as appending
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest


def write_inputs(folder, files=4, results=300, traces_from=99):
    """Files that overlap in days and in results, with rejects, and traceroutes in the last of them."""
    folder.mkdir()
    draw = random.Random(1)
    before = []
    for number in range(files):
        own = [
            ping(timestamp=1_600_000_000 + 400 * draw.randrange(2_000) + 200_000 * number,
                 prb_id=draw.randrange(5), size=draw.choice([64, None]), result=[{"rtt": draw.random() * 90}])
            for _ in range(results)
        ]  # fmt: skip
        if number >= traces_from:
            own += [traceroute([reply(3.0), reply(4.0)], [{"x": "*"}])]
        lines = write_lines([*own, *draw.sample(before, min(len(before), 40)), ping(timestamp=None)])
        (folder / f"{number}.json").write_bytes(lines + b"rubbish\n")
        before += own
    return sorted(str(path) for path in folder.iterdir())


@pytest.mark.parametrize("traces_from", [99, 0, 2])
def test_the_same_bytes_as_one_run_over_all(tmp_path, traces_from):
    paths = write_inputs(tmp_path / "in", traces_from=traces_from)
    options = IngestOptions(traceroutes="off" if traces_from == 99 else "hops")
    ingest(paths, tmp_path / "all", options, workers=1)
    ingest(paths[:2], tmp_path / "out", options, workers=1, append=True)  # there is no table yet
    untouched = {name: data for name, data in tree(tmp_path / "out").items() if name.startswith("date=")}
    ingest(paths[2:3], tmp_path / "out", options, workers=1, append=True)
    report = ingest(paths, tmp_path / "out", options, workers=2, append=True)  # the first three are known
    assert tree(tmp_path / "out") == tree(tmp_path / "all")
    assert report.total.duplicates > 40
    if traces_from != 2:
        first = min(untouched)  # no new measurement is of that day
        assert tree(tmp_path / "out")[first] == untouched[first]
    # And a plain run over all finds it done.
    assert ingest(paths, tmp_path / "out", options, workers=1).as_json() == report.as_json()


def test_files_in_another_order_give_the_same_table_and_totals(tmp_path):
    paths = write_inputs(tmp_path / "in")
    whole = ingest(paths, tmp_path / "all", workers=1)
    ingest(paths[2:], tmp_path / "out", workers=1)
    report = ingest(paths[:2], tmp_path / "out", workers=1, append=True)
    assert report.total.as_json(False) == whole.total.as_json(False)
    days = [{name: data for name, data in tree(tmp_path / folder).items() if name.startswith("date=")}
            for folder in ("all", "out")]  # fmt: skip
    assert days[0] == days[1]


def refuse(tmp_path, paths, match, options=IngestOptions()):
    before = tree(tmp_path / "out")
    with pytest.raises(UsageError, match=match):
        ingest(paths, tmp_path / "out", options, workers=1, append=True)
    assert tree(tmp_path / "out") == before


def test_what_cannot_be_appended_is_refused_and_changes_nothing(tmp_path):
    paths = write_inputs(tmp_path / "in", files=3)
    ingest(paths[:2], tmp_path / "out", workers=1)
    refuse(tmp_path, paths, "made with other options", IngestOptions(rtt="min"))
    refuse(tmp_path, ["-"], "standard input")
    data = (tmp_path / "in" / "1.json").read_bytes()
    (tmp_path / "in" / "1.json").write_bytes(data + write_lines([ping()]))
    refuse(tmp_path, paths, r"1\.json has changed since it was ingested")
    (tmp_path / "in" / "1.json").write_bytes(data)
    shutil.rmtree(min((tmp_path / "out").glob("date=*")))
    refuse(tmp_path, paths, "is damaged or not complete")
    ingest(paths[:2], tmp_path / "out", IngestOptions(rtt="each"), workers=1, overwrite=True)
    refuse(tmp_path, paths, "--rtt each", IngestOptions(rtt="each"))
    assert program("ingest", *paths, "--out", tmp_path / "out", "--append", "--overwrite").returncode == 2


@pytest.mark.parametrize("moment", ["while it stages", "before its journal", *range(4)])
def test_interrupted_at_any_moment_it_goes_on(tmp_path, monkeypatch, moment):
    """Before the journal is written the old table is whole; after it, whoever comes completes the new one."""
    paths = write_inputs(tmp_path / "in", files=3)
    ingest(paths, tmp_path / "all", workers=1)
    ingest(paths[:2], tmp_path / "out", workers=1)
    before = tree(tmp_path / "out")

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    original, seen = appending.sync_directory, []

    def interrupt_later(folder):
        if len(seen) == moment:
            raise KeyboardInterrupt
        seen.append(folder)
        original(folder)

    with monkeypatch.context() as patch:
        if moment == "while it stages":
            patch.setattr(appending, "_sort", interrupt)
        elif moment == "before its journal":
            patch.setattr(appending, "write_json", interrupt)
        else:
            patch.setattr(appending, "sync_directory", interrupt_later)
        with pytest.raises(KeyboardInterrupt):
            ingest(paths, tmp_path / "out", workers=1, append=True)
    if isinstance(moment, str):
        now = tree(tmp_path / "out")
        assert {name: now[name] for name in before} == before
    elif moment % 2:
        # Another command on the folder completes it first, and then refuses what it refuses.
        with pytest.raises(UsageError, match="made from other inputs"):
            ingest(paths[:2], tmp_path / "out", workers=1)
        assert tree(tmp_path / "out") == tree(tmp_path / "all")
    ingest(paths, tmp_path / "out", workers=1, append=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "all")
