"""Speed of a watch: lines in, judged results and events out, on a steady simulated stream."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ping_llm.answer.model import Model
from ping_llm.bench.memory import peak_rss_mib
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.columns import Columns
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine, keep_compiled
from ping_llm.model.random import random_tensors
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.watch.inputs import files_of
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.results import Output
from ping_llm.watch.run import Outside, Watch

#: The packaged config `tiny`.
TINY = ModelConfig(layers=4, width=128, heads=2, kv_heads=2, head_dim=64, mlp_width=384, max_length=256)

_START, _MINUTE = 1_700_000_000_000_000, 60_000_000


@dataclass(frozen=True)
class WatchBench:
    """Options of the benchmark.

    Attributes:
      results: number of results of the stream. The first half is not timed: new pairs are queried often.
      pairs: number of pairs, each measured every four minutes.
      refresh: values of the option of `watch` to compare.
    """

    results: int = 60_000
    pairs: int = 1_000
    refresh: tuple[int, ...] = (16,)


def measure(bench: WatchBench, run: Path | None = None) -> dict[str, Any]:
    """Return results per second and bits per result by `refresh`.

    Args:
      run: a run to query. None: random weights of the config `tiny`, whose raw network answers questions.
    """
    keep_compiled()
    figures: dict[str, Any] = {"results": bench.results, "pairs": bench.pairs}
    model = Model.load(run, data=False) if run is not None else _tiny()
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as folder:
        path = Path(folder) / "stream.jsonl"
        _write(path, steady(bench.results, bench.pairs))
        for refresh in bench.refresh:
            figures[f"refresh {refresh}"] = _measure(model, path, Path(folder) / f"{refresh}", refresh, bench)
    figures["peak memory MiB"] = peak_rss_mib()
    return figures


def _tiny() -> Model:
    return Model(Engine(TINY, random_tensors(TINY, seed=5, scale=3.0)), rtt_encoding("compact"), {})


def _measure(model: Model, path: Path, state: Path, refresh: int, bench: WatchBench) -> dict[str, Any]:
    marks: list[tuple[float, int]] = []
    bits: list[float] = []

    def tell(output: Output) -> None:
        marks.append((time.perf_counter(), len(output.seen)))
        bits.extend(seen.judged.bits for seen in output.seen if seen.judged is not None)

    watch = Watch(model, WatchOptions(refresh=refresh), files_of(path, False), state, Outside(tell))
    begin = time.perf_counter()
    counts = watch.run()
    done = np.cumsum([count for _, count in marks])
    half = int(np.searchsorted(done, bench.results // 2))
    seconds = marks[-1][0] - marks[half][0]
    waits = np.diff([begin, *(moment for moment, _ in marks)])[half:].tolist()
    return {
        "results per second": round((done[-1] - done[half]) / seconds),
        "results per second from the start": round(bench.results / (marks[-1][0] - begin)),
        "results per question": round(counts["results"] / max(counts["questions"], 1), 1),
        "longest batch s": round(max(waits), 3),
        "bits per result": round(float(np.mean(bits)), 3),
        "alarms": counts["alarms"],
    }


def steady(results: int, pairs: int, seed: int = 0) -> Columns:
    """Simulate sources with 20 destinations each, every four minutes, log-normal around the pair's level."""
    random = np.random.default_rng(seed)
    number = np.arange(results) % pairs
    src, dst = np.zeros((results, 16), np.uint8), np.zeros((results, 16), np.uint8)
    for packed, first, value in ((src, 10, number // 20), (dst, 172, number % 20)):
        packed[:, 10:12] = 255
        packed[:, 12] = first
        packed[:, 13], packed[:, 14], packed[:, 15] = value >> 16 & 255, value >> 8 & 255, value & 255
    level = random.uniform(5, 250, pairs)[number]
    spread = random.uniform(0.005, 0.08, pairs)[number]
    rtt = np.round(level * np.exp(spread * random.standard_normal(results)), 3)
    rtt = np.where(random.random(results) < 0.02, -1.0, rtt)
    time_us = _START + (np.arange(results) * 4 * _MINUTE / pairs).astype(np.int64)
    return Columns(time_us, src, dst, rtt)


def _write(path: Path, stream: Columns) -> None:
    """Write a stream as RIPE Atlas reports pings."""
    ends = zip(unpack(stream.src).to_pylist(), unpack(stream.dst).to_pylist(), strict=True)
    with path.open("wb") as file:
        for (src, dst), at, rtt in zip(ends, stream.time.tolist(), stream.rtt.tolist(), strict=True):
            values = {
                "type": "ping", "af": 4, "from": src, "src_addr": src, "dst_addr": dst,
                "timestamp": at // 1_000_000, "sent": 1, "rcvd": int(rtt >= 0),
                "result": [{"rtt": rtt} if rtt >= 0 else {"x": "*"}], "msm_id": 1, "prb_id": 1, "size": 48,
            }  # fmt: skip
            file.write(orjson.dumps(values) + b"\n")
