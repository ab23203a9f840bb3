"""The context loader: tokens per second, compared with plain Python and pre-tokenized data through Grain.

Everything is measured in one run on one machine, in turns, so that noise affects all alike. Tokens are real
ones, in final batches as the trainer receives them; PAD is not counted.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.bench.memory import peak_rss_mib
from ping_llm.contexts.batches import Batches
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.pretokenized import PretokenizedBatches, pretokenize
from ping_llm.contexts.reference_batches import ReferenceBatches
from ping_llm.files import write_json
from ping_llm.measurements.addresses import unpack
from ping_llm.progress import Progress
from ping_llm.rows.build import build
from ping_llm.rows.manifest import MANIFEST_FILE, file_sha256, load_manifest, open_index, sealed, write_index
from ping_llm.rows.store import RowStore

#: Number of rows of the one real shard, 65 MB.
REAL_ROWS = 100_000


def write_many_rows(folder: Path, rows: int) -> None:
    """Write rows of one measurement each. All shards are one file, which planning and reading cannot tell."""
    real = min(rows, REAL_ROWS)
    addresses = np.zeros((real, 16), np.uint8)
    addresses[:, 10:12] = 255
    addresses[:, 12:] = (np.arange(real, dtype=">u4") + (11 << 24)).view(np.uint8).reshape(-1, 4)
    table = pa.table(
        {
            "event_time": pa.array(1_700_000_000_000_000 + np.arange(real), pa.timestamp("us", tz="UTC")),
            "src_addr": unpack(addresses),
            "dst_addr": pa.array(["192.0.2.1"] * real),
            "rtt": pa.array(np.linspace(1.0, 300.0, real)),
        }
    )
    measurements = folder.with_name(folder.name + "-measurements.parquet")
    pq.write_table(table, measurements)
    build([measurements], folder)
    measurements.unlink()
    manifest = load_manifest(folder)
    copies = -(-rows // real)
    index = folder / manifest["index"]["file"]
    write_index(index, [open_index(index)] * copies)
    manifest["shards"] *= copies
    manifest["index"] |= {"bytes": index.stat().st_size, "sha256": file_sha256(index)}
    write_json(folder / MANIFEST_FILE, sealed(manifest))


#: Number of rows for the start-up time: one measurement each, an index of 259 MB.
STARTUP_ROWS = 7_000_000


@dataclass(frozen=True)
class LoaderBench:
    """Options of the benchmark.

    Attributes:
        measurements: number of simulated measurements (28 per row).
        length, batch_size: shape of a batch.
        seconds: length of a turn.
        turns: number of turns per contestant; the fastest counts, since noise only slows down.
        startup_rows: number of rows of the dataset whose first batch is timed; 0: not timed.
    """

    measurements: int = 1_000_000
    length: int = 1024
    batch_size: int = 32
    seconds: float = 3.0
    turns: int = 3
    startup_rows: int = STARTUP_ROWS


def measure(bench: LoaderBench, rows: Path | None = None) -> dict[str, Any]:
    """Measure on `rows`, or on simulated rows."""
    folder = Path(tempfile.mkdtemp(prefix="ping-llm-bench-"))
    try:
        return _measure(bench, rows or simulated_rows(folder, bench.measurements), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(bench: LoaderBench, rows: Path, folder: Path) -> dict[str, Any]:
    shape: dict[str, Any] = {"batch_size": bench.batch_size, "length": bench.length}
    with Batches(rows, **shape, epochs=1, threads=2) as batches:
        pretokenize(batches, folder / "pretokenized")
    padding: list[float] = []

    def ours(threads: int) -> Callable[[], Iterable[dict[str, np.ndarray]]]:
        return lambda: Batches(rows, **shape, seed=1, threads=threads)

    def plain() -> Iterable[dict[str, np.ndarray]]:
        return ReferenceBatches(RowStore(rows), ContextOptions(), **shape, seed=1)

    def usual() -> Iterable[dict[str, np.ndarray]]:
        return PretokenizedBatches(folder / "pretokenized", **shape)

    contestants = {"two": ours(2), "one": ours(0), "usual": usual, "plain": plain}
    best = dict.fromkeys(contestants, 0.0)
    with Progress("bench loader", bench.turns * len(contestants), "turns") as progress:
        for _ in range(bench.turns):
            for name, start in contestants.items():
                best[name] = max(best[name], _rate(start, bench.seconds, padding if name == "two" else None))
                progress.advance()
    figures: dict[str, Any] = {
        "tokens_per_s": round(best["two"]),
        "tokens_per_s_one_thread": round(best["one"]),
        "two_threads_over_one": round(best["two"] / best["one"], 3),
        "reference_tokens_per_s": round(best["plain"]),
        "speedup_over_reference": round(best["one"] / best["plain"], 1),
        "pretokenized_tokens_per_s": round(best["usual"]),
        "speedup_over_pretokenized": round(best["two"] / best["usual"], 2),
        "padding_fraction": round(float(np.mean(padding)), 5),
    }
    if bench.startup_rows:
        figures |= startup(bench, folder)
    else:
        figures |= {"peak_rss_mib": peak_rss_mib()}
    return figures


def _rate(
    start: Callable[[], Iterable[dict[str, np.ndarray]]], seconds: float, padding: list[float] | None
) -> float:
    """Return real tokens per second from the second batch on; a finite set is repeated."""
    stream = start()
    batches = iter(stream)
    next(batches)
    tokens = places = 0
    begun = time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        batch = next(batches, None)
        if batch is None:
            batches = iter(start())
            continue
        tokens += int(np.count_nonzero(batch["targets"]))
        places += batch["targets"].size
    if isinstance(stream, Batches):
        stream.close()
    if padding is not None:
        padding.append(1 - tokens / max(places, 1))
    return tokens / spent


def simulated_rows(folder: Path, measurements: int) -> Path:
    from ping_llm.simulate import WorldOptions, simulate

    simulate(folder / "world", WorldOptions(measurements=measurements, seed=0))
    build([folder / "world"], folder / "rows")
    shutil.rmtree(folder / "world")
    return folder / "rows"


# Run in a process of its own, whose memory is measured.
_STARTUP = """
import json, sys, time
began = time.perf_counter()
from ping_llm.bench.memory import peak_rss_mib
from ping_llm.contexts.batches import Batches
imported = time.perf_counter()
batches = Batches(sys.argv[1], batch_size=int(sys.argv[2]), length=int(sys.argv[3]), seed=1, threads=1)
next(batches)
first = time.perf_counter()
for _ in range(200):
    next(batches)
print(json.dumps({
    "imports_s": round(imported - began, 3),
    "time_to_first_batch_s": round(first - imported, 3),
    "peak_rss_mib": peak_rss_mib(),
}))
"""


def startup(bench: LoaderBench, folder: Path) -> dict[str, Any]:
    """Return the time from opening a large dataset to its first batch, and the memory of the process."""
    rows = folder / "many"
    write_many_rows(rows, bench.startup_rows)
    command = [sys.executable, "-c", _STARTUP, str(rows), str(bench.batch_size), str(bench.length)]
    # The second start counts: the first one compiles kernels and bytecode, as after an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    for _ in range(2):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout) | {"startup_rows": bench.startup_rows}


@dataclass(frozen=True)
class FeedBench:
    tokens_per_s: float = 1_000_000
    seconds: float = 10.0
    batch_size: int = 32
    length: int = 1024
    threads: int = 1
    workers: int = 0


def measure_feed(bench: FeedBench, rows: Path) -> dict[str, Any]:
    """Consume batches at a given rate, and return how long the steps waited for them.

    A step takes the time of all its tokens, PAD included, as on a real accelerator. The first batch is not
    counted: that is start-up, which `bench loader` measures.
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
