"""An accelerator that eats tokens at a given speed, played beside the loader: how long does it wait?"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.contexts.batches import Batches


@dataclass(frozen=True)
class FeedBench:
    tokens_per_s: float = 1_000_000
    seconds: float = 10.0
    batch_size: int = 32
    length: int = 1024
    threads: int = 1
    workers: int = 0


def measure(bench: FeedBench, rows: Path) -> dict[str, Any]:
    """Eat batches for some seconds. A step takes as long as its tokens, PAD included, as on a real
    accelerator.

    The first batch is not counted: that is start-up, which `bench loader` measures.
    """
    step = bench.batch_size * bench.length / bench.tokens_per_s
    with Batches(
        rows,
        batch_size=bench.batch_size,
        length=bench.length,
        seed=1,
        threads=bench.threads,
        workers=bench.workers,
    ) as batches:
        next(batches)
        waits: list[float] = []
        begun = time.perf_counter()
        while time.perf_counter() - begun < bench.seconds:
            asked = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - asked)
            time.sleep(step)
        spent = time.perf_counter() - begun
    waits.sort()
    return {
        "tokens_per_s": bench.tokens_per_s,
        "steps": len(waits),
        "step_s": step,
        "wait_fraction": round(sum(waits) / spent, 6),
        "wait_p50_ms": round(1000 * waits[len(waits) // 2], 4),
        "wait_p99_ms": round(1000 * waits[int(0.99 * (len(waits) - 1))], 4),
        "wait_max_ms": round(1000 * waits[-1], 4),
    }
