"""`rows build --append`: rows of all the input in the place of rows of a part of it."""

import pytest
from rows_data import folder_bytes, write_measurements

from ping_llm.errors import UsageError
from ping_llm.rows import append as appending
from ping_llm.rows import plan
from ping_llm.rows.append import append
from ping_llm.rows.build import RowOptions, RunOptions, build

RUN = RunOptions()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Another number of parts after the append."""
    monkeypatch.setattr(plan, "SMALL_PART_MEASUREMENTS", 1500)


def write_inputs(folder):
    write_measurements(folder / "1.parquet", 2000)
    write_measurements(folder / "2.parquet", 3000, span_s=9000)
    return [folder / "1.parquet"], [folder]


@pytest.mark.parametrize("split", [None, "probe:0.7,0.3"])
def test_the_same_bytes_as_one_build_over_all(tmp_path, split):
    first, every = write_inputs(tmp_path / "in")
    options = RowOptions(split=split)
    whole = build(every, tmp_path / "all", options)
    append(first, tmp_path / "out", options, RUN)  # there are no rows yet
    assert append(every, tmp_path / "out", options, RUN) == whole
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "all")
    assert append(every, tmp_path / "out", options, RUN) == whole  # nothing is new
    assert build(every, tmp_path / "out", options) == whole
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "all")


def test_what_cannot_be_appended_is_refused_and_changes_nothing(tmp_path):
    first, every = write_inputs(tmp_path / "in")
    build(every, tmp_path / "out")
    before = folder_bytes(tmp_path / "out")
    with pytest.raises(UsageError, match="has measurements that are not in the input"):
        append(first, tmp_path / "out", RowOptions(), RUN)
    with pytest.raises(UsageError, match="other options"):
        append(every, tmp_path / "out", RowOptions(max_row_mib=1), RUN)
    assert folder_bytes(tmp_path / "out") == before


@pytest.mark.parametrize("moment", [None, 0, 1, 3, 4, 5])
def test_interrupted_at_any_moment_it_goes_on(tmp_path, monkeypatch, moment):
    """Before the journal the old rows are whole; after it, whoever comes completes the new ones."""
    first, every = write_inputs(tmp_path / "in")
    build(every, tmp_path / "all")
    build(first, tmp_path / "out")
    before = folder_bytes(tmp_path / "out")
    original, moved = appending._put, []

    def interrupt(*arguments):
        raise KeyboardInterrupt

    def interrupt_later(path, place):
        if len(moved) == moment:
            raise KeyboardInterrupt
        moved.append(path.name)
        original(path, place)

    with monkeypatch.context() as patch:
        patch.setattr(
            appending, *(("write_json", interrupt) if moment is None else ("_put", interrupt_later))
        )
        with pytest.raises(KeyboardInterrupt):
            append(every, tmp_path / "out", RowOptions(), RUN)
    if moment is None:
        now = folder_bytes(tmp_path / "out")
        assert {name: now[name] for name in before} == before
        append(every, tmp_path / "out", RowOptions(), RUN)
    else:
        build(every, tmp_path / "out")  # any build completes it
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "all")
