"""The live view of a training: stages, bottleneck, MFU; followed from outside, and as a page."""

import json
import re
import signal
from dataclasses import replace

import pytest
from small_training import command, losses, start, wait_for

from ping_llm.contexts.batches import Batches
from ping_llm.errors import PingError
from ping_llm.train import page, pipeline, runs
from ping_llm.train.follow import follow, text_of
from ping_llm.train.pipeline import View, bottleneck, lines

VIEW = View(60.0, 100, 0.1, 2.0, 6.0, 2, 0.0, 1.0, 59.0, 1.5, 1, "step")


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        ({}, "step"),
        ({"hand_over": 40.0, "step": 20.0}, "hand-over"),
        ({"wait": 20.0, "fill": 90.0}, "fill"),
        ({"wait": 20.0, "read": 90.0}, "read"),
        ({"wait": 20.0, "plan": 50.0}, "plan"),
    ],
)
def test_the_bottleneck_is_named(change, stage):
    view = replace(VIEW, **change)
    assert bottleneck(view) == stage
    text = lines(replace(view, bottleneck=stage).as_dict())
    assert [line.split()[0] for line in text[1:]] == ["plan", "read", "fill", "hand-over", "step"]
    assert [line.split()[0] for line in text if line.endswith("← bottleneck")] == [stage]


@pytest.mark.parametrize("how", [{"threads": 0}, {"threads": 1}, {"threads": 0, "workers": 1}])
def test_the_loader_times_its_stages(few_rows, how):
    """The same stages with threads and with worker processes, whose clocks are the same."""
    with Batches(few_rows, batch_size=4, length=128, **how) as batches:
        for _ in range(200):
            next(batches)
        stages, lanes = batches.stages, batches.lanes
    assert lanes == 1
    assert stages.units > 1
    assert min(stages.plan, stages.read, stages.fill) > 0
    assert 0 <= stages.ready < 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_shows_its_pipeline_on_sigusr1(rows, tmp_path):
    """With a worker process; and what it is about to do comes first."""
    run = tmp_path / "run"
    # So many steps that the signal surely comes before the end.
    words = ("steps=100000", "grain_worker_count=1", "enable_checkpointing=false")
    process = start(command(run, rows, *words))
    wait_for(run, 5, process)
    process.send_signal(signal.SIGUSR1)
    seen = next(record for record in follow(run) if "pipeline" in record)
    process.terminate()
    _, said = process.communicate()
    view = seen["pipeline"]
    assert view["bottleneck"] in ("plan", "read", "fill", "hand-over", "step")
    assert view["steps"] >= 1
    assert view["wait"] + view["hand_over"] + view["step"] == pytest.approx(view["seconds"], abs=1e-3)
    assert set(lines(view)) <= set(said.splitlines())
    assert 0 < seen["mfu"] <= 1
    assert seen["tokens_per_s_per_device"] > 0
    assert re.search(r"^data: probe_chunks, 40 rows, .* 1 host · 4 sequences of 128 tokens", said, re.M)
    assert re.search(r"^warning: 100,000 steps repeat these data 3,\d+ times", said, re.M)


def test_following_prints_what_is_new(tmp_path):
    record = {"kind": "train", "loss": 2.0, "bits": {"total": 3.0}, "seconds": 0.1, "data_wait_s": 0.0}
    runs.update(tmp_path, state=runs.RUNNING, process=runs.here())
    path = tmp_path / "metrics.jsonl"

    def write(mode, *steps, end="\n"):
        with path.open(mode) as file:
            file.write("\n".join(json.dumps({**record, "step": step}) for step in steps) + end)

    write("w", *range(5))
    following = follow(tmp_path, last=2)
    assert [next(following)["step"] for _ in range(2)] == [3, 4]
    write("a", 5, end='\n{"kind": "tr')  # the last line is not whole yet
    assert next(following)["step"] == 5
    write("w", 0, 1)  # resumed from step 1
    assert next(following)["step"] == 0
    runs.update(tmp_path, state=runs.FINISHED)
    assert [seen["step"] for seen in following] == [1]
    assert "train 3 · loss 2.0000 (3.0 bits)" in text_of({**record, "step": 2})
    with pytest.raises(PingError, match="is no run"):
        next(follow(tmp_path / "nowhere"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_of_a_run(undisturbed, tmp_path):
    text = page.write(undisturbed, tmp_path / "report.html").read_text()
    assert text.count("<img ") == 3
    for shown in (
        "finished, 12 of 12 steps",
        "last evaluation",
        "ping-llm train tiny",
        "<td>rtt</td>",
        "maxtext",
    ):
        assert shown in text
    assert f"{losses(undisturbed)[11]:.4f}" in text
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(undisturbed / "tensorboard" / undisturbed.name))
    events.Reload()
    assert all(event.value > 0 for event in events.Scalars("perf/mfu"))
    assert pipeline.EVERY_S == 60
