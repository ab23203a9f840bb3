"""Train on Modal: one machine with GPUs, data and runs on a volume, going on by itself after a timeout.

    modal volume put ping-llm data/rows /rows
    modal run --detach deploy/modal/train.py --config 100m --gpu H100:8 --words "--rows /volume/rows"

Detached, it goes on when the terminal is closed; `modal volume get ping-llm runs/100m` fetches the run. A
call lasts at most 24 hours on Modal: ten minutes before, the training is told to save, and the next attempt
goes on. The same holds for a preemption.
"""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import modal

CALL_S = 24 * 3600
SAVING_S = 600
ATTEMPTS = 10  # the most retries that Modal allows
STOPPED = 75  # ping-llm's exit code for "saved, run me again"
VOLUME = "/volume"

_REPOSITORY = Path(__file__).parents[2] if modal.is_local() else Path("/repository")
_image = (
    modal.Image.debian_slim(python_version="3.12")
    .add_local_dir(
        _REPOSITORY, "/repository", copy=True, ignore=[".venv", ".git", "runs", "data", "**/__pycache__"]
    )
    .run_commands(
        "pip install uv",
        "uv pip install --system -c /repository/constraints.txt '/repository[train,cuda,wandb]'",
    )
)

app = modal.App("ping-llm-train")
_volume = modal.Volume.from_name("ping-llm", create_if_missing=True)


class Unfinished(Exception):
    """The training was stopped and saved: Modal calls again, and it goes on."""


@app.function(
    image=_image,
    gpu="H100",
    volumes={VOLUME: _volume},
    timeout=CALL_S,
    retries=modal.Retries(max_retries=ATTEMPTS, initial_delay=1.0, backoff_coefficient=1.0),
    single_use_containers=True,
)
def train(config: str, words: list[str]) -> None:
    """One attempt; the run lies on the volume, so the next one finds it."""
    command = ["ping-llm", "train", config, *words, "--run", f"{VOLUME}/runs/{config}"]
    try:
        code = run_until(command, CALL_S - SAVING_S)
    finally:
        _volume.commit()
    if code == STOPPED:
        raise Unfinished(f"{config} was stopped and saved")
    if code:
        raise RuntimeError(f"ping-llm train ended with code {code}; its last lines say why")


def run_until(command: list[str], seconds: float) -> int:
    """Run a command; after so many seconds, ask it to stop and wait for it. Returns its exit code."""
    process = subprocess.Popen(command, stdout=sys.stdout, stderr=sys.stderr)

    def pass_on(number: int, frame: object) -> None:
        process.send_signal(signal.SIGTERM)

    # Modal announces a preemption with SIGINT, thirty seconds before the machine goes.
    before = signal.signal(signal.SIGINT, pass_on)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


@app.local_entrypoint()
def main(config: str, gpu: str = "H100", words: str = "") -> None:
    """Start a training on Modal; `words` are more of `ping-llm train`'s."""
    train.with_options(gpu=gpu).remote(config, shlex.split(words))
