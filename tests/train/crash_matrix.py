"""kill -9 at chosen moments of a training, then the same command again, until it finishes.

    python tests/train/crash_matrix.py 10 5

kills ten times, five of them inside an asynchronous save, and compares with an undisturbed run.
"""

import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from small_training import command, losses, start, what_was_learnt

SAVING = "inside a save"
ANY = "any moment"


def unfinished_saves(run: Path) -> set[str]:
    """What Orbax is writing now, or was when it was killed."""
    return {path.name for path in (run / "checkpoints").glob("*.orbax-checkpoint-tmp*")}


def killed_training(run: Path, words: Sequence[str], moment: str, after: float) -> str | None:
    """Start a training and kill it; says what the kill hit, or None if the training ended before.

    Args:
        moment: SAVING waits for a save that this training began; ANY does not.
        after: seconds from there to the kill.
    """
    before = unfinished_saves(run)
    training = start(words)
    try:
        while moment == SAVING and not unfinished_saves(run) - before:
            if training.poll() is not None:
                break
            time.sleep(0.0005)
        time.sleep(after)
        training.send_signal(signal.SIGKILL)
    finally:
        _, errors = training.communicate()
    if training.returncode != -signal.SIGKILL:
        assert training.returncode == 0, errors[-3000:]
        return None
    step = max(losses(run), default=-1) if (run / "metrics.jsonl").exists() else -1
    hit = sorted(unfinished_saves(run) - before)
    return f"after step {step}, " + (f"with {hit[0]} half-written" if hit else "between saves")


def finish(words: Sequence[str]) -> None:
    training = start(words)
    _, errors = training.communicate()
    assert training.returncode == 0, errors[-3000:]


def _main(kills: int, saving: int, say: Callable[[str], None] = print) -> None:
    from conftest import _simulated_rows

    chance = random.Random(int(time.time()))
    with tempfile.TemporaryDirectory(prefix="ping-llm-crashes-") as name:
        folder = Path(name)
        _simulated_rows(folder / "rows", 4000, 40, 0)
        # A save every other step, of a model large enough that a save takes longer than a step.
        more = ("steps=60", "checkpoint_period=2", "max_num_checkpoints_to_keep=3", "base_emb_dim=128")
        started = time.monotonic()
        finish(command(folder / "undisturbed", folder / "rows", *more))
        seconds = time.monotonic() - started
        done = in_save = 0
        while done < kills:
            moment = SAVING if in_save < saving else ANY
            after = chance.uniform(0, 0.1) if moment == SAVING else chance.uniform(0.3, 0.9) * seconds
            words = command(folder / "run", folder / "rows", *more, f"grain_worker_count={done % 3}")
            hit = killed_training(folder / "run", words, moment, after)
            if hit is None:
                say("finished; from the start again")
                (folder / "run").rename(folder / f"run-before-kill-{done}")
                continue
            done += 1
            in_save += "half-written" in hit
            say(f"kill {done} ({moment}, {after:.2f} s later, {words[-1]}): {hit}")
        finish(command(folder / "run", folder / "rows", *more))
        for run in sorted(folder.glob("run*")):
            same = what_was_learnt(run) == what_was_learnt(folder / "undisturbed")
            say(f"{run.name}: {len(losses(run))} steps, {'equal to the bit' if same else 'DIFFERENT'}")
        say(f"{kills} kills, {in_save} of them inside a save")


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:3]))
