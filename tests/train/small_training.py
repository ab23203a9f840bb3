"""Helpers of the training tests: a small training's command line, and what it recorded."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STEPS = 12

# Two layers of 32: all that a large model does, in a few seconds. Checkpoints 3, 6, 9 and 11.
SMALL = (
    "network_batch_size=4",
    "max_target_length=128",
    "base_num_decoder_layers=2",
    "base_emb_dim=32",
    "base_mlp_dim=64",
    "base_num_query_heads=2",
    "base_num_kv_heads=2",
    "head_dim=16",
    f"learning_rate_schedule_steps={STEPS}",
    f"steps={STEPS}",
    "checkpoint_period=3",
    "max_num_checkpoints_to_keep=10",
)

NO_TIME = 0.001  # minutes that are over before the first step, so that the steps are the fewest there can be


def in_time_config(path: Path) -> Path:
    """The small training as a file, with a schedule for a time budget: there, steps cannot be a word."""
    from ping_llm.train import settings

    keys = settings.split_overrides(SMALL) | {
        "learning_rate_schedule_steps": "-1",
        "lr_schedule_type": "wsd",
        "wsd_decay_steps_fraction": "0.5",
        "warmup_steps_fraction": "0.34",  # of 12 steps: 4
    }
    tiny = settings.find("tiny").read_text().splitlines()
    lines = [line for line in tiny if line.partition(":")[0] not in keys]
    path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in keys.items())]) + "\n")
    return path


def losses(run: Path, kind: str = "train") -> dict[int, float]:
    """Loss by step; a step that is there twice fails."""
    found: dict[int, float] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            continue
        record = json.loads(line)
        if record["kind"] == kind:
            assert record["step"] not in found, f"step {record['step']} is there twice"
            found[record["step"]] = record["loss"]
    return found


def what_was_learnt(run: Path) -> list[dict]:
    """All that is recorded but the times: equal only where batches and weights are."""
    timed = ("seconds", "data_wait_s", "time", "tokens_per_s_per_device", "mfu", "pipeline")
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in record.items() if key not in timed} for record in records]


def command(run: Path, rows: Path, *more: str) -> list[str]:
    """The command line of a small training."""
    program = str(Path(sys.executable).with_name("ping-llm"))
    return [program, "train", "tiny", *SMALL, "--rows", str(rows), "--run", str(run), *more]


def start(words: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment
    )


def wait_for(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until `step` is recorded."""
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and step in losses(run):
            return
        time.sleep(0.005)
    raise AssertionError(f"the training ended before step {step}: {process.communicate()[1][-2000:]}")
