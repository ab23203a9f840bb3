"""The demo end to end on a small world: real simulator, DuckDB, ArrayRecord, MaxText and queries."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ping_llm.demo.check import choose
from ping_llm.demo.options import DemoOptions
from ping_llm.demo.run import run_demo
from ping_llm.demo.screen import last_screen
from ping_llm.errors import UsageError
from ping_llm.evaluate.columns import read_measurements

SMALL = DemoOptions(measurements=4_000, probes=10, targets=5, days=3, steps=3, questions=20, context=4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("demo")
    return run, run_demo(run, SMALL, print)


@pytest.mark.slow
def test_the_summary_holds_the_figures(finished):
    run, summary = finished
    assert json.loads((run / "summary.json").read_text()) == summary
    assert summary["questions"] == SMALL.questions
    # The truth is the best there is; a model after three steps is not near it.
    assert 0 < summary["true_entropy_bits"] < summary["order0_bits"]
    assert summary["true_entropy_bits"] < summary["bits_per_measurement"]
    assert summary["pair_history_medae_ms"] < summary["global_median_medae_ms"]
    assert (run / "answer.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "export" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_finished_demo_is_not_run_again(finished):
    run, summary = finished
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert run_demo(run, SMALL, print) == summary
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_other_options_are_refused(finished):
    with pytest.raises(UsageError, match="other options"):
        run_demo(finished[0], replace(SMALL, seed=9), print)


@pytest.mark.slow
def test_the_screen_is_honest(finished):
    _, summary = finished
    good = last_screen(summary | {"medae_ms": 1.0, "global_median_medae_ms": 2.0}, "runs/demo")
    bad = last_screen(summary | {"medae_ms": 1.0, "global_median_medae_ms": 1.9}, "runs/demo")
    assert "it has learned" in good
    assert "NOT learned" not in good
    assert "NOT learned" in bad
    assert "it has learned" not in bad


@pytest.mark.slow
def test_questions_know_only_their_source_and_the_past(finished):
    run, _ = finished
    train, held = (read_measurements(run / "split" / f"{name}.parquet") for name in ("train", "holdout"))
    assert len(train) + len(held) == SMALL.measurements
    assert train.time.max() < held.time.min()
    hold_out = choose(train, held, SMALL)
    for index, question in enumerate(hold_out.questions):
        context = question.context
        assert 0 < len(context) <= SMALL.context
        assert (context.seconds < question.seconds).all()
        assert (context.src == hold_out.asked.src[index]).all()
        assert question.dst.packed == hold_out.asked.dst[index].tobytes()
        np.testing.assert_array_equal(context.seconds, np.sort(context.seconds))
