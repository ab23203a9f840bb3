"""Scores by day: the values of `query score`, the same bytes by any tasks, resumable."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_answer_score import measurements, write

from ping_llm.answer.bulk import score_days
from ping_llm.answer.files import read_columns
from ping_llm.answer.report import results
from ping_llm.errors import PingError, UsageError


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def path(tmp_path):
    columns = measurements(60)
    columns.time[:] = columns.time[0] + np.arange(60) * 6 * 3_600_000_000  # 15 days
    return write(tmp_path / "pings.parquet", columns)


def test_tasks_in_any_order_give_the_bytes_of_one_machine(model, path, tmp_path):
    run = tmp_path / "run"
    summary = score_days(model, run, path, tmp_path / "one")
    for task in (2, 0):
        assert score_days(model, run, path, tmp_path / "out", "score", task, 3) is None
    with pytest.raises(PingError, match="days are not scored yet"):
        score_days(model, run, path, tmp_path / "out", "finish")
    done = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in tree(tmp_path / "out")}
    for task in (1, 2):
        score_days(model, run, path, tmp_path / "out", "score", task, 3)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == time for name, time in done.items())
    assert score_days(model, run, path, tmp_path / "out", "finish") == summary
    assert tree(tmp_path / "out") == tree(tmp_path / "one")
    assert summary["measurements"] == 60
    assert summary["days"] == len(list((tmp_path / "one").glob("date=*"))) >= 15


def test_the_values_are_those_of_score(model, path, tmp_path):
    score_days(model, tmp_path / "run", path, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("date=*/part-0.parquet"))
    found = {row["row"]: row for file in files for row in pq.ParquetFile(file).read().to_pylist()}
    for part in results(model, read_columns(path, needs=("src_addr", "dst_addr", "rtt"))):
        for place, row in enumerate(part.row.tolist()):
            assert found[row]["bits"] == pytest.approx(part.bits[place], rel=1e-3)
            assert found[row]["tail"] == pytest.approx(part.tail[place], abs=1e-3)
            assert found[row]["rtt"] == part.rtt[place]
            assert found[row]["p5"] <= found[row]["p50"] <= found[row]["p95"]


def test_other_input_is_refused_and_changes_nothing(model, path, tmp_path):
    score_days(model, tmp_path / "run", path, tmp_path / "out")
    before = tree(tmp_path / "out")
    other = write(tmp_path / "other.parquet", measurements(30))
    with pytest.raises(UsageError, match="scores of other measurements"):
        score_days(model, tmp_path / "run", other, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(UsageError, match="something else than scores"):
        score_days(model, tmp_path / "run", path, tmp_path / "full")
    assert tree(tmp_path / "out") == before
