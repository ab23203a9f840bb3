"""A run's folder: run.json, and keeping two trainings out of one folder.

runs/NAME/run.json          what it is and how it stands
          config.yml        every key that differs from MaxText's defaults: trains the same again
          checkpoints/STEP  Orbax checkpoints; STEP is the last step in them, counted from 0
          checkpoints.json  their checksums
          metrics.jsonl     one record a step, and one an evaluation
          tensorboard/      the same for TensorBoard
          export/           the model at the end, without MaxText or Orbax
"""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.files import write_json

FORMAT = 1
RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


def read(run: Path) -> dict[str, Any]:
    """run.json, or an empty dict where there is none yet."""
    path = run / "run.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise PingError(f"{path} is not JSON ({error})") from error
    if content.get("format") != FORMAT:
        raise PingError(f"{path} has format {content.get('format')}; this version reads {FORMAT}")
    return content


def update(run: Path, **changes: Any) -> dict[str, Any]:
    """Change run.json, whole, and return it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"format": FORMAT, "name": run.name, "created": now} | read(run) | {"updated": now} | changes
    write_json(run / "run.json", content)
    return content


def here() -> dict[str, Any]:
    """This process, so that a later look can tell a running training from a killed one."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


@contextlib.contextmanager
def only_one(run: Path) -> Iterator[None]:
    """Hold the run's lock, or say who does. A kill releases it."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = read(run).get("process", {})
            raise PingError(
                f"{run} is being trained already, by process {process.get('pid')} on {process.get('host')}; "
                "wait for it, stop it, or give another folder with --run"
            ) from None
        yield
