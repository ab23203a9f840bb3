"""Speed of ingest compared with a limit: only unpacking and parsing the same files with the same libraries.

The limit is one process that decompresses each file and calls orjson.loads on each line. Ingest reads the
same files, checks every result, sorts, removes duplicates and writes Parquet: with one process on one core
for the fraction, then with one per core for the scaling. They take turns, each in a process of its own, and
the best of the rounds counts: other work on the machine can only make a round slower. Libraries and kernels
are loaded before the clock starts; `start_s` says how long that takes with workers.

Memory is the peak of all processes together, in two counts. RSS counts a page once per process that has it,
so pages that workers share with the server they are forked from count several times. PSS counts every page
once, and is what the machine must have.
"""

import bz2
import gzip
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
import zstandard

from ping_llm.errors import UsageError
from ping_llm.ingest.options import IngestOptions

ROUNDS = 2


@dataclass(frozen=True)
class IngestBenchmark:
    """Figures of the benchmark; speeds in results per second."""

    results: int
    results_per_s: float
    limit_per_s: float
    peak_rss_mib: float
    peak_pss_mib: float
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
            "peak_rss_mib": round(self.peak_rss_mib, 1),
            "peak_pss_mib": round(self.peak_pss_mib, 1),
            "one_worker_per_s": round(self.results_per_s),
            "workers": self.workers,
            "workers_per_s": round(self.workers_per_s),
            "scaling": round(self.workers_per_s / self.results_per_s, 2),
            "start_s": round(self.start_s, 2),
        }


@dataclass(frozen=True)
class MadeUp:
    """Synthetic results: their number, number of files, compression, and whether they are traceroutes."""

    results: int = 2_000_000
    files: int = 8
    compression: str = "gz"
    traceroutes: bool = False

    def __post_init__(self) -> None:
        if self.compression not in _PACKERS:
            raise UsageError(f"--compression {self.compression} is not one of {', '.join(_PACKERS)}")


def run(inputs: Sequence[str], made_up: MadeUp, workers: int | None) -> IngestBenchmark:
    """Measure ingest of compressed JSON lines; without inputs, of synthetic ones."""
    workers = workers or len(os.sched_getaffinity(0))
    options = IngestOptions(traceroutes="hops" if made_up.traceroutes else "off")
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as folder:
        paths = list(inputs) or write_results(Path(folder), made_up)
        bare, single, many = [], [], []
        for _ in range(ROUNDS):
            bare.append(_apart(_bare, paths))
            single.append(_apart(_ingest, paths, folder, 1, options))
            many.append(_apart(_ingest, paths, folder, workers, options))
    count = bare[0].results
    return IngestBenchmark(
        results=count,
        results_per_s=count / min(run.seconds for run in single),
        limit_per_s=count / min(run.seconds for run in bare),
        peak_rss_mib=max(run.peak_rss_mib for run in (*single, *many)),
        peak_pss_mib=max(run.peak_pss_mib for run in (*single, *many)),
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
    peak_rss_mib: float = 0.0
    peak_pss_mib: float = 0.0
    start_seconds: float = 0.0


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, so that no run inherits the memory or the caches of another."""
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
        carry = b""
        with _open_packed(path) as file:
            while chunk := file.read(1 << 20):
                lines = (carry + chunk).split(b"\n")
                carry = lines.pop()
                for line in lines:
                    orjson.loads(line)
                count += len(lines)
    return _Run(count, time.perf_counter() - started, time.process_time() - cpu_started)


def _open_packed(path: str) -> Any:
    with Path(path).open("rb") as file:
        start = file.read(4)
    if start.startswith(b"BZh"):
        return bz2.open(path)
    if start == b"\x28\xb5\x2f\xfd":
        return zstandard.open(path)
    return gzip.open(path)


def _ingest(paths: Sequence[str], folder: str, workers: int, options: IngestOptions) -> _Run:
    from ping_llm.ingest.run import ingest
    from ping_llm.ingest.workers import Workers

    out = Path(folder) / "out"
    started = time.perf_counter()
    if workers == 1:
        # Bound to one core: its reader thread would take a second one.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        warm = Path(folder) / "warm.json"
        warm.write_bytes(result_line(random.Random(0), 0, 0))
        ingest([str(warm)], out / "warm", workers=1)
    else:
        with Workers(1) as pool:
            pool.warm_up()
    start_seconds = time.perf_counter() - started
    started, cpu_started = time.perf_counter(), time.process_time()
    with _MemoryOfAll() as memory:
        report = ingest(list(paths), out / "table", options, workers)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    shutil.rmtree(out)
    return _Run(
        report.total.results, seconds, cpu_seconds, memory.peak_rss_mib, memory.peak_pss_mib, start_seconds
    )


class _MemoryOfAll:
    """Peak memory of this process and its descendants, MiB, sampled five times per second."""

    def __enter__(self) -> "_MemoryOfAll":
        self.peak_rss_mib = self.peak_pss_mib = 0.0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            each = [_memory_mib(process) for process in [os.getpid(), *_children(os.getpid())]]
            self.peak_rss_mib = max(self.peak_rss_mib, sum(rss for rss, _ in each))
            self.peak_pss_mib = max(self.peak_pss_mib, sum(pss for _, pss in each))


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


def _memory_mib(process: int) -> tuple[float, float]:
    """Return RSS and PSS of a process, MiB; zeros if it has just ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0, 0.0
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return kilobytes["Rss:"] / 1024, kilobytes["Pss:"] / 1024


#: Compressors by file extension; bzip2 and zstd files are as `bzip2` and `pzstd` write them.
_PACKERS: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.compressobj(6, zlib.DEFLATED, 31),
    "bz2": bz2.BZ2Compressor,
    "zst": lambda: _Frames(),
}


class _Frames:
    """Compressor to zstd in frames of 8 MiB of text, as written by pzstd and many programs."""

    def __init__(self) -> None:
        self._held = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._held += data
        return self.flush() if len(self._held) >= 8 << 20 else b""

    def flush(self) -> bytes:
        frame = zstandard.ZstdCompressor().compress(bytes(self._held))
        self._held.clear()
        return frame


def write_results(folder: Path, made_up: MadeUp) -> list[str]:
    """Write files of compressed JSON lines as from the API, about 300 bytes per ping, one day per file."""
    paths = []
    line = traceroute_line if made_up.traceroutes else result_line
    for number in range(made_up.files):
        noise = random.Random(number)
        path = folder / f"results-{number}.json.{made_up.compression}"
        packer = _PACKERS[made_up.compression]()
        share = made_up.results // made_up.files
        with path.open("wb") as file:
            for index in range(share):
                time_of = 1_600_000_000 + number * 86_400 + index * 86_400 // share
                file.write(packer.compress(line(noise, time_of, index)))
            file.write(packer.flush())
        paths.append(str(path))
    return paths


def traceroute_line(noise: random.Random, timestamp: int, index: int) -> bytes:
    """Make a synthetic traceroute of 8 hops with three replies each, about 1,200 bytes; some do not reply."""
    probe = noise.randrange(2_000)
    target = f"198.51.100.{noise.randrange(1, 250)}"
    hops, base = [], noise.expovariate(1 / 10)
    for hop in range(1, 9):
        base += noise.expovariate(1 / 5)
        address = target if hop == 8 else f"193.{hop}.{probe % 250}.{noise.randrange(8)}"
        replies = [f'{{"from":"{address}","ttl":{64 - hop},"size":28,"rtt":{base + noise.random():.3f}}}']
        silent = (index + hop) % 11 == 0
        hops.append(f'{{"hop":{hop},"result":[{",".join(['{"x":"*"}'] * 3 if silent else replies * 3)}]}}')
    return (
        f'{{"fw":5080,"mver":"2.6.2","lts":14,"endtime":{timestamp + 2},"dst_name":"{target}",'
        f'"dst_addr":"{target}","src_addr":"192.168.1.{probe % 250}","proto":"ICMP","af":4,"size":48,'
        f'"paris_id":1,"result":[{",".join(hops)}],"msm_id":{5000 + probe % 30},"prb_id":{probe},'
        f'"timestamp":{timestamp},"msm_name":"Traceroute","from":"100.{probe // 250}.{probe % 250}.7",'
        f'"type":"traceroute","group_id":5000,"stored_timestamp":{timestamp + 60}}}\n'
    ).encode()


def result_line(noise: random.Random, timestamp: int, index: int) -> bytes:
    """Make a synthetic ping result; one in twelve is a total loss."""
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
