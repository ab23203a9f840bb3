"""A real server in a process of its own, asked over loopback."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

TOKEN = "a-token-of-the-tests"


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition returns as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


class Server:
    """`ping-llm serve`, started and ready."""

    def __init__(self, folder: Path, *words: str | Path):
        self.log = folder / "log.jsonl"
        self.said = folder / "out.txt"
        command = [sys.executable, "-c", "from ping_llm.cli import main; main()", "serve", *map(str, words)]
        with self.log.open("wb") as log, self.said.open("wb") as said:
            self.process = subprocess.Popen([*command, "--port", "0"], stdout=said, stderr=log)
        until(lambda: self.process.poll() is not None or "serving" in self.said.read_text())
        found = re.search(r"at (https?://\S+)", self.said.read_text())
        assert found, self.log.read_text()
        self.url = found[1]
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120, verify=False
        )
        until(lambda: self.client.get("/readyz").status_code == 200)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        starts = (f"ping_llm_{name}{{", f"ping_llm_{name} ")
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(starts))

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()


@contextlib.contextmanager
def serving(folder: Path, *words: str | Path) -> Iterator[Server]:
    server = Server(folder, *words)
    try:
        yield server
    finally:
        server.end()
