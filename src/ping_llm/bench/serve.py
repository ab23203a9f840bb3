"""Load on a server: closed loop, repeated questions, and twice as many requests as it can answer.

The server is `ping-llm serve` in a process of its own, queried by an asyncio client in this one (loopback).
Without a run it serves random weights of 0.7 M parameters with a stack that was fitted to a simulated world,
since the time does not depend on the weights. `rtt_many` answers the same kind of questions in batches before
the server is started, so that both have the machine to themselves.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.bench.memory import rss_mib
from ping_llm.errors import PingError
from ping_llm.hosts import IDLE_SECONDS
from ping_llm.model.config import ModelConfig

#: The sizes of the `menog` config: 0.7 million parameters.
CONFIG = ModelConfig(layers=4, width=128, heads=4, kv_heads=4, head_dim=32, mlp_width=384, max_length=512)
_METHODS = ("by destination", "prefixes", "neighbours", "pair recent", "pair last")


@dataclass(frozen=True)
class ServeBench:
    """Options of the benchmark.

    Attributes:
      run: a run with rows; None: random weights on a simulated world.
      clients: number of concurrent requests of the closed loop.
      seconds: length of each phase.
      soak_minutes: length of a phase at 80 % of the measured capacity; 0: none.
    """

    run: Path | None = None
    clients: int = 64
    seconds: float = 20.0
    soak_minutes: float = 0.0


@dataclass
class Outcome:
    """Outcomes of the requests of a phase; `in_time` were answered before its end."""

    accepted_ms: list[float] = field(default_factory=list)
    refused: int = 0
    other: int = 0
    in_time: int = 0

    @property
    def requests(self) -> int:
        return len(self.accepted_ms) + self.refused + self.other

    def quantile(self, level: float) -> float:
        return float(np.quantile(self.accepted_ms, level)) if self.accepted_ms else float("nan")


def measure(bench: ServeBench) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as folder:
        run, data = (bench.run, None) if bench.run is not None else random_run(Path(folder))
        batched, bodies = _batched(run, data, bench)
        with _server(run, data) as (url, process):
            figures = asyncio.run(_load(url, process.pid, bench, bodies, batched))
    return figures


def random_run(folder: Path) -> tuple[Path, Path]:
    """Write a run of random weights in a stack fitted to a simulated world; return it and its rows."""
    from dataclasses import replace

    from ping_llm.answer.stack import FOLDER, NETWORK
    from ping_llm.answer.stacking import fit_stack
    from ping_llm.fit.held_out import held_out
    from ping_llm.measurements.parquet import read_measurements
    from ping_llm.model import export
    from ping_llm.model.random import random_tensors
    from ping_llm.rows.build import build
    from ping_llm.simulate.options import WorldOptions
    from ping_llm.simulate.write import simulate
    from ping_llm.splits.holdout import SplitOptions

    world = folder / "world"
    simulate(world, WorldOptions(measurements=20_000, probes=60, targets=20, days=6, seed=3))
    train = read_measurements(world)
    learned, tests = held_out(train, SplitOptions(0.8, 0.1, 0.1, 0.1, 2), 40)
    simple = fit_stack(None, learned, tests, train, _METHODS)
    # Held-out questions would give the random network no weight in the stack. A trained network gets half.
    half = np.full((len(simple.weights), 1), 0.5)
    stack = replace(
        simple,
        components=(NETWORK, *simple.components),
        weights=np.concatenate([half, simple.weights / 2], axis=1),
    )
    run = folder / "run"
    tokens = {"context": {"unnamed_source_probability": 0.5}}
    export.write(CONFIG, random_tensors(CONFIG, scale=3.0), tokens, run / "export")
    stack.save(run / FOLDER)
    build([world], folder / "rows")
    return run, folder / "rows"


def _batched(run: Path, data: Path | None, bench: ServeBench) -> tuple[float, list[dict[str, Any]]]:
    """Return questions per second of `rtt_many` in batches of 64, and different questions for all phases."""
    from ping_llm.answer.context import Question
    from ping_llm.answer.model import Model

    model = Model.load(run, data=data if data is not None else True)
    if model.data is None:
        raise PingError(f"{run} has no rows to ask about: name a run that `ping-llm fit` made")
    bodies = _bodies(model.data.columns(), 20_000)
    questions = [Question.of(**body) for body in bodies[-128:]]
    model.rtt_many(questions[:64])
    start = time.perf_counter()
    model.rtt_many(questions[64:])
    return 64 / (time.perf_counter() - start), bodies


def _bodies(known: Any, count: int) -> list[dict[str, Any]]:
    """Make different questions about pairs and times of the data."""
    from ping_llm.measurements.addresses import unpack_one

    random = np.random.default_rng(0)
    rows = random.integers(0, len(known), count)
    others = random.integers(0, len(known), count)
    made: list[dict[str, Any]] = []
    for row, other in zip(rows.tolist(), others.tolist(), strict=True):
        src = unpack_one(known.src[row].tobytes())
        dst = unpack_one(known.dst[other].tobytes())
        if (":" in src) != (":" in dst):
            dst = unpack_one(known.dst[row].tobytes())
        # Different microseconds make different questions.
        made.append({"src": src, "dst": dst, "at": known.time[row] / 1e6 + 1 + len(made) * 1e-6})
    return made


@contextlib.contextmanager
def _server(run: Path, data: Path | None) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    words = ["serve", str(run), "--port", "0", *(() if data is None else ("--data", str(data)))]
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()", *words]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r" at (http://\S+)", line):
                    yield found[1], process
                    return
            log.seek(0)
            raise PingError(f"the server did not start: {log.read()[-500:]}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


async def _load(
    url: str, pid: int, bench: ServeBench, bodies: Sequence[dict[str, Any]], batched: float
) -> dict[str, Any]:
    import httpx

    most = 4 * bench.clients + 256
    limits = httpx.Limits(
        max_connections=most, max_keepalive_connections=most, keepalive_expiry=IDLE_SECONDS / 2
    )
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        start = time.perf_counter()
        while (answer := await client.get("/readyz")).status_code != 200:
            if "failed" in answer.text:
                raise PingError(f"the server cannot be measured: {answer.json()['error']}")
            await asyncio.sleep(0.02)
        ready = time.perf_counter() - start
        asker = _Asker(client, bodies)
        await asker.closed(bench.clients, min(bench.seconds, 5.0))  # compiles what is left
        before = rss_mib(pid)
        closed = await asker.closed(bench.clients, bench.seconds)
        rate = closed.in_time / bench.seconds
        new, again, other = await asker.one_by_one(20)
        over = await asker.open(2 * rate, bench.seconds)
        figures = {
            "requests_per_s": rate,
            "p50_ms": closed.quantile(0.5),
            "p99_ms": closed.quantile(0.99),
            "batched_per_s": batched,
            "fraction_of_batched": rate / batched,
            "refused_in_closed_loop": closed.refused,
            "new_source_ms": new,
            "same_source_ms": other,
            "same_question_ms": again,
            "same_source_speedup": new / other,
            "same_question_speedup": new / again,
            "overload_requests": over.requests,
            "shed_fraction": over.refused / max(over.requests, 1),
            "overload_p99_ms": over.quantile(0.99),
            "neither_answered_nor_shed": over.other,
            "ready_after_listening_s": ready,
            "rss_mib_before": before,
            "rss_mib_after": rss_mib(pid),
            "clients": bench.clients,
            "cores": len(os.sched_getaffinity(0)),
        }
        if bench.soak_minutes:
            figures |= await _soak(asker, pid, 0.8 * rate, bench.soak_minutes)
    return figures


async def _soak(asker: "_Asker", pid: int, rate: float, minutes: float) -> dict[str, Any]:
    """Run five parts of a long phase at a steady rate: latency, processor time and memory must be flat.

    At 80 % load the p99 depends on the other work of the machine. The processor time per answer does not: it
    shows whether the server itself has become slower.
    """
    parts = []
    for _ in range(5):
        own, all_ = _cpu_s(pid), _machine_s()
        start = time.perf_counter()
        outcome = await asker.open(rate, 12 * minutes)
        own, seconds = _cpu_s(pid) - own, time.perf_counter() - start
        others = _machine_s() - all_ - own
        parts.append(
            {
                "p50_ms": outcome.quantile(0.5),
                "p99_ms": outcome.quantile(0.99),
                "cpu_ms_per_answer": 1000 * own / max(len(outcome.accepted_ms), 1),
                "cores_of_others": others / seconds,
                "rss_mib": rss_mib(pid),
                "requests": outcome.requests,
                "refused": outcome.refused,
                "neither": outcome.other,
            }
        )
    sums = {f"soak_{name}": sum(part[name] for part in parts) for name in ("requests", "refused", "neither")}
    flat = ("p50_ms", "p99_ms", "cpu_ms_per_answer", "cores_of_others", "rss_mib")
    return sums | {f"soak_{name}_by_fifth": [part[name] for part in parts] for name in flat}


class _Asker:
    """Client that sends a different question each time."""

    def __init__(self, client: Any, bodies: Sequence[dict[str, Any]]):
        self._client, self._bodies, self._next = client, bodies, 0

    def _body(self) -> dict[str, Any]:
        self._next += 1
        round_, place = divmod(self._next, len(self._bodies))
        body = self._bodies[place]
        return body | {"at": body["at"] + 0.1 * round_}

    async def _ask(self, body: dict[str, Any], outcome: Outcome) -> bool:
        """Send a question; return whether it was answered (a refusal is no answer)."""
        import httpx

        start = time.perf_counter()
        try:
            response = await self._client.post("/v1/rtt", content=json.dumps(body), headers=_JSON)
        except httpx.HTTPError:
            outcome.other += 1
            return False
        if response.status_code == 200:
            outcome.accepted_ms.append(1000 * (time.perf_counter() - start))
        elif response.status_code == 503 and "retry-after" in response.headers:
            outcome.refused += 1
        else:
            outcome.other += 1
        return response.status_code == 200

    async def closed(self, clients: int, seconds: float) -> Outcome:
        """Run a closed loop of clients, each of which asks again as soon as it has its answer."""
        outcome, end = Outcome(), time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < end:
                answered = await self._ask(self._body(), outcome)
                # With 64 clients and 2.4 s per answer, later answers would add 12 % to a rate over 20 s.
                outcome.in_time += answered and time.perf_counter() < end

        await asyncio.gather(*(client() for _ in range(clients)))
        return outcome

    async def open(self, rate: float, seconds: float) -> Outcome:
        """Send `rate` requests per second, whether the earlier ones are answered or not."""
        outcome, start, tasks = Outcome(), time.perf_counter(), set()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            task = asyncio.create_task(self._ask(self._body(), outcome))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return outcome

    async def one_by_one(self, count: int) -> tuple[float, float, float]:
        """Return median ms of new questions, of the same repeated, and of others about the same sources."""
        bodies = [self._body() for _ in range(count)]
        moved = bodies[1:] + bodies[:1]
        others = [
            body | {"dst": other["dst"]}
            if (":" in body["src"]) == (":" in other["dst"])
            else body | {"at": body["at"] + 0.01}
            for body, other in zip(bodies, moved, strict=True)
        ]
        medians = []
        for asked in (bodies, bodies, others):
            outcome = Outcome()
            for body in asked:
                await self._ask(body, outcome)
            medians.append(outcome.quantile(0.5))
        return medians[0], medians[1], medians[2]


_JSON = {"Content-Type": "application/json"}


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of a process so far, all threads."""
    # The name, in parentheses, may hold spaces; user and system time are the 12th and 13th after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine_s() -> float:
    """Return the busy processor seconds of the machine, with stolen time, without idle and I/O wait time."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")
