"""Ingest against the limit: unpacking and parsing the same files with the same libraries, and nothing else.

The limit is one process that decompresses each file and calls orjson.loads on each line. Ingest reads the
same files, judges every result, sorts, removes duplicates and writes Parquet: with one process for the
fraction, then with one per core for the scaling. They take turns, each in a process of its own, and the best
of
the rounds counts: other work on the machine can only make a round slower. Libraries and kernels are loaded
before the clock starts; `start_s` says how long that takes with workers.

Memory is the peak of all processes together, in two counts. RSS counts a page once for each process that has
it, so workers forked from one server seem to need its pages over and over; PSS counts every page once, and
is what the machine has to have.
"""

import multiprocessing
import os
import random
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

ROUNDS = 2


@dataclass(frozen=True)
class IngestBenchmark:
    """The figures; speeds in results per second."""

    results: int
    results_per_s: float
    limit_per_s: float
    peak_rss_mb: float
    peak_pss_mb: float
    cpu_fraction: float
    workers: int
    workers_per_s: float
    start_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "results": self.results,
            "results_per_s": round(self.results_per_s),
            "limit_per_s": round(self.limit_per_s),
            "fraction_of_limit": round(self.results_per_s / self.limit_per_s, 3),
            "cpu_fraction_of_limit": round(self.cpu_fraction, 3),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "peak_pss_mb": round(self.peak_pss_mb, 1),
            "one_worker_per_s": round(self.results_per_s),
            "workers": self.workers,
            "workers_per_s": round(self.workers_per_s),
            "scaling": round(self.workers_per_s / self.results_per_s, 2),
            "start_s": round(self.start_s, 2),
        }


def run(inputs: Sequence[str], results: int, files: int, workers: int | None) -> IngestBenchmark:
    """Measure ingest of gzipped JSON lines; without inputs, `results` made-up ones in `files` files."""
    workers = workers or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as folder:
        paths = list(inputs) or write_results(Path(folder), results, files)
        bare, single, many = [], [], []
        for _ in range(ROUNDS):
            bare.append(_apart(_bare, paths))
            single.append(_apart(_ingest, paths, folder, 1))
            many.append(_apart(_ingest, paths, folder, workers))
    count = bare[0].results
    return IngestBenchmark(
        results=count,
        results_per_s=count / min(run.seconds for run in single),
        limit_per_s=count / min(run.seconds for run in bare),
        peak_rss_mb=max(run.peak_rss_mb for run in (*single, *many)),
        peak_pss_mb=max(run.peak_pss_mb for run in (*single, *many)),
        cpu_fraction=min(run.cpu_seconds for run in bare) / min(run.cpu_seconds for run in single),
        workers=workers,
        workers_per_s=count / min(run.seconds for run in many),
        start_s=min(run.start_seconds for run in many),
    )


@dataclass(frozen=True)
class _Run:
    results: int
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float = 0.0
    peak_pss_mb: float = 0.0
    start_seconds: float = 0.0


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a fresh process, so that no run inherits the memory or the caches of another."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def _send(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(function(*arguments))


def _bare(paths: Sequence[str]) -> _Run:
    started, cpu_started = time.perf_counter(), time.process_time()
    count = 0
    for path in paths:
        unpacker = zlib.decompressobj(31)
        carry = b""
        with Path(path).open("rb") as file:
            while chunk := file.read(256 << 10):
                lines = (carry + unpacker.decompress(chunk)).split(b"\n")
                carry = lines.pop()
                for line in lines:
                    orjson.loads(line)
                count += len(lines)
    return _Run(count, time.perf_counter() - started, time.process_time() - cpu_started)


def _ingest(paths: Sequence[str], folder: str, workers: int) -> _Run:
    from ping_llm.ingest.run import ingest
    from ping_llm.ingest.workers import Workers

    out = Path(folder) / "out"
    started = time.perf_counter()
    if workers == 1:
        warm = Path(folder) / "warm.json"
        warm.write_bytes(result_line(random.Random(0), 0, 0))
        ingest([str(warm)], out / "warm", workers=1)
    else:
        with Workers(1) as pool:
            pool.warm_up()
    start_seconds = time.perf_counter() - started
    started, cpu_started = time.perf_counter(), time.process_time()
    with _MemoryOfAll() as memory:
        report = ingest(list(paths), out / "table", workers=workers)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    shutil.rmtree(out)
    return _Run(
        report.total.results, seconds, cpu_seconds, memory.peak_rss_mb, memory.peak_pss_mb, start_seconds
    )


class _MemoryOfAll:
    """The peak of the memory of this process and all below it, sampled five times per second."""

    def __enter__(self) -> "_MemoryOfAll":
        self.peak_rss_mb = self.peak_pss_mb = 0.0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            each = [_memory_mb(process) for process in [os.getpid(), *_children(os.getpid())]]
            self.peak_rss_mb = max(self.peak_rss_mb, sum(rss for rss, _ in each))
            self.peak_pss_mb = max(self.peak_pss_mb, sum(pss for _, pss in each))


def _children(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found + [grandchild for child in found for grandchild in _children_if_alive(child)]


def _children_if_alive(process: int) -> list[int]:
    try:
        return _children(process)
    except OSError:
        return []


def _memory_mb(process: int) -> tuple[float, float]:
    """RSS and PSS; zeros if it has just ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0, 0.0
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return kilobytes["Rss:"] / 1024, kilobytes["Pss:"] / 1024


def write_results(folder: Path, results: int, files: int) -> list[str]:
    """Files of gzipped JSON lines, about 300 bytes per result, as the API gives them; a day each."""
    paths = []
    for number in range(files):
        noise = random.Random(number)
        path = folder / f"results-{number}.json.gz"
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        share = results // files
        with path.open("wb") as file:
            for index in range(share):
                time_of = 1_600_000_000 + number * 86_400 + index * 86_400 // share
                file.write(packer.compress(result_line(noise, time_of, index)))
            file.write(packer.flush())
        paths.append(str(path))
    return paths


def result_line(noise: random.Random, timestamp: int, index: int) -> bytes:
    """One made-up result; one in twelve is a total loss."""
    probe = noise.randrange(2_000)
    source = f"100.{probe // 250}.{probe % 250}.7"
    target = f"198.51.100.{noise.randrange(1, 250)}"
    base = noise.expovariate(1 / 60) + 1
    rtts = [round(base + noise.expovariate(1), 6) for _ in range(3)]
    lost = index % 12 == 11
    packets = '{"x":"*"},{"x":"*"},{"x":"*"}' if lost else ",".join(f'{{"rtt":{rtt}}}' for rtt in rtts)
    least, most, mean = (-1, -1, -1) if lost else (min(rtts), max(rtts), round(sum(rtts) / 3, 10))
    return (
        f'{{"fw":5080,"mver":"2.6.2","lts":14,"dst_name":"{target}","af":4,"dst_addr":"{target}",'
        f'"src_addr":"192.168.1.{probe % 250}","proto":"ICMP","ttl":57,"size":64,"result":[{packets}],'
        f'"dup":0,"rcvd":{0 if lost else 3},"sent":3,"min":{least},"max":{most},"avg":{mean},'
        f'"msm_id":{1000 + probe % 30},'
        f'"prb_id":{probe},"timestamp":{timestamp},"msm_name":"Ping","from":"{source}","type":"ping",'
        f'"group_id":1000,"step":240,"stored_timestamp":{timestamp + 60}}}\n'
    ).encode()
