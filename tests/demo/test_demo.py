"""The demo end to end on a small world: real simulator, DuckDB, ArrayRecord, MaxText and answers."""

import json

import pytest
from short_training import trained_shortly

from ping_llm.demo.run import DemoOptions, last_screen, run_demo

__all__ = ["trained_shortly"]

SMALL = DemoOptions(
    measurements=4_000, probes=12, targets=8, days=3, minutes=0.001, questions=20, address_questions=1
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, trained_shortly):
    run = tmp_path_factory.mktemp("demo") / "run"
    return run, run_demo(run, SMALL, print)


@pytest.mark.slow
def test_the_summary_holds_the_figures(finished):
    run, summary = finished
    assert json.loads((run / "summary.json").read_text()) == summary
    known = summary["tests"]["later"]
    # The truth is the best there is; a model after a few steps is not near it, the stack is nearer.
    assert 0 < known["truth"]["bits"] < known["stack"]["bits"] < known["global"]["bits"]
    assert known["stack"]["bits"] < known["network"]["bits"]
    assert known["pair last"]["medae_ms"] < known["global"]["medae_ms"]
    assert (run / "answer.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "export" / "model.safetensors").exists()
    assert (run / "export" / "stack" / "stack.json").exists()
    assert (run / "report" / "report.html").exists()


@pytest.mark.slow
def test_a_finished_demo_is_not_run_again(finished):
    run, summary = finished
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert run_demo(run, SMALL, print) == summary
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_the_screen_is_honest(finished):
    _, summary = finished

    def screen(error: float) -> str:
        known = summary["tests"]["later"]
        known = known | {
            "stack": known["stack"] | {"medae_ms": 1.0},
            "global": known["global"] | {"medae_ms": error},
        }
        return last_screen(summary | {"tests": summary["tests"] | {"later": known}}, "runs/demo")

    assert "it has learned" in screen(2.0)
    assert "NOT learned" not in screen(2.0)
    assert "NOT learned" in screen(1.9)
    assert "it has learned" not in screen(1.9)
