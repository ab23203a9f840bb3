"""Following the records of a run from another process."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.train import pipeline, runs

_POLL_S = 0.5


def follow(run: Path, *, last: int = 10, once: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the last records of a run, then each new one, until the training ends.

    A training that resumes removes the records of steps that it repeats; these come again.

    Raises:
        PingError: there is no such run.
    """
    if not (run / "run.json").is_file():
        raise PingError(f"{run} is no run: `ping-llm runs` lists those in runs/")
    path, at = run / "metrics.jsonl", 0
    while True:
        # Checked before the records are read, so that none is missed if the training ends meanwhile.
        over = once or runs.state_of(run) != runs.RUNNING
        begun = at > 0
        found, at = _from(path, at)
        yield from found if begun else found[max(len(found) - last, 0) :]
        if over:
            return
        time.sleep(_POLL_S)


def _from(path: Path, at: int) -> tuple[list[dict[str, Any]], int]:
    """The records of the complete lines from an offset on, and the offset after them."""
    if not path.exists():
        return [], at
    with path.open("rb") as file:
        if file.seek(0, 2) < at:  # truncated by a resume
            at = 0
        file.seek(at)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        return [json.loads(line) for line in whole.splitlines()], at + len(whole)
    except ValueError:  # rewritten by a resume: begin again
        return [], 0


def text_of(record: dict[str, Any]) -> str:
    """A record as one line of text, followed by its view of the pipeline if it has one."""
    bits = record.get("bits", {}).get("total")
    parts = [
        f"{record['kind']} {record['step'] + 1:,}",
        f"loss {record['loss']:.4f}" + ("" if bits is None else f" ({bits:.1f} bits)"),
    ]
    if record["kind"] == "train":
        parts.append(f"{record['seconds']:.3f} s, data wait {record['data_wait_s']:.3f} s")
        if record.get("tokens_per_s_per_device"):
            parts.append(f"{record['tokens_per_s_per_device']:,.0f} tokens/s per device")
        if record.get("mfu"):
            parts.append(f"MFU {100 * record['mfu']:.0f} %")
    lines = [" · ".join(parts)]
    if "pipeline" in record:
        lines += pipeline.lines(record["pipeline"])
    return "\n".join(lines)
