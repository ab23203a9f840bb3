"""Train on Modal: one machine with GPUs, data and runs on a volume; resumes by itself after a timeout.

    modal volume put ping-llm data/rows /rows
    modal run --detach deploy/modal/train.py --config 100m --run-name first --gpu H100:8 --cpu 32 \\
      --memory 128 --words "--rows /volume/rows"

Detached, it continues when the terminal is closed; `modal volume get ping-llm runs/first` fetches the run. A
call lasts at most 24 hours on Modal: ten minutes before, the training is told to save, and the next attempt
resumes it, as after a preemption. `modal app stop` ends a training; the same `modal run` resumes it.

Weights & Biases takes its key from a secret of Modal:

    modal secret create wandb WANDB_API_KEY=…
    modal run --detach deploy/modal/train.py … --wandb-secret wandb --wandb-project latency

None of this has been run with a Modal account.
"""

import re
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
BAD_USAGE = 2
VOLUME = "/volume"
CPUS = 16
MEMORY_GB = 64

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
    """The training was stopped and saved: Modal calls again, which resumes it."""


@app.function(
    image=_image,
    gpu="H100",
    cpu=CPUS,
    memory=MEMORY_GB << 10,
    volumes={VOLUME: _volume},
    timeout=CALL_S,
    retries=modal.Retries(max_retries=ATTEMPTS, initial_delay=1.0, backoff_coefficient=1.0),
    single_use_containers=True,
)
def train(command: list[str]) -> int:
    """Run one attempt; the run is on the volume, so the next attempt finds it."""
    try:
        code = run_until(command, CALL_S - SAVING_S)
    finally:
        _volume.commit()
    return outcome(code)


def outcome(code: int) -> int:
    """Return 0, or 2 for a command that cannot work; raise on other codes, so that Modal tries again."""
    if code == STOPPED:
        raise Unfinished("the training was stopped and saved")
    if code not in (0, BAD_USAGE):
        raise RuntimeError(f"ping-llm train ended with code {code}; its last lines say why")
    return code


def run_until(command: list[str], seconds: float) -> int:
    """Run a command; after `seconds`, ask it to stop and wait for it. Return its exit code."""
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


def training_command(
    config: str, words: str = "", run_name: str = "", wandb_secret: str = "", wandb_project: str = ""
) -> list[str]:
    """Return the command line of `ping-llm train` on the machine."""
    name = run_name or Path(config).stem
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise SystemExit(f"--run-name {name!r} must be letters, digits, dots, dashes and underscores")
    if wandb_project and not wandb_secret:
        raise SystemExit(
            "--wandb-project needs --wandb-secret, the name of a Modal secret with WANDB_API_KEY"
        )
    more = ["enable_wandb=true"] if wandb_secret else []
    more += [f"wandb_project_name={wandb_project}"] if wandb_project else []
    return ["ping-llm", "train", config, *more, *shlex.split(words), "--run", f"{VOLUME}/runs/{name}"]


@app.local_entrypoint()
def main(
    config: str,
    run_name: str = "",
    gpu: str = "H100",
    cpu: float = CPUS,
    memory: float = MEMORY_GB,
    words: str = "",
    wandb_secret: str = "",
    wandb_project: str = "",
) -> None:
    """Start a training on Modal, or resume the run of that name.

    Args:
      config: name of a packaged config, or path of a .yml on the volume.
      run_name: folder of the run, below runs/ on the volume; by default the config's name.
      gpu: type and number of GPUs, in the notation of Modal, such as H100:8.
      cpu: number of cores.
      memory: memory in GiB.
      words: further arguments of `ping-llm train`.
      wandb_secret: name of a Modal secret with WANDB_API_KEY; turns on logging to Weights & Biases.
      wandb_project: project at Weights & Biases; by default ping-llm.
    """
    command = training_command(config, words, run_name, wandb_secret, wandb_project)
    secrets = [modal.Secret.from_name(wandb_secret, required_keys=["WANDB_API_KEY"])] if wandb_secret else []
    options = {"gpu": gpu, "cpu": cpu, "memory": int(memory * 1024), "secrets": secrets}
    if code := train.with_options(**options).remote(command):
        raise SystemExit(code)
