"""Malformed requests by the hundred thousand: no failure, no hang, no growth.

pytest -m long tests/serve/test_serve_fuzz.py
"""

import http.client
import json
import os
import random
import re
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from serve_server import TOKEN, Server

REQUESTS = int(os.environ.get("PING_LLM_FUZZ_REQUESTS", "100000"))
THREADS = 4
#: Seconds after which a request hangs.
LONGEST = 60

PLACE = {"src": "192.0.2.1", "dst": "198.51.100.7"}
KNOWN = [{"dst_addr": "192.0.2.9", "rtt": 5.0, "event_time": "2024-01-01T00:00:00Z"}]
SIMPLE = {"method": "global"}
GOOD: list[tuple[str, Any]] = [
    ("/v1/rtt", PLACE | SIMPLE | {"at": 1_704_100_000, "context": KNOWN, "below": 5.0, "curve": 9}),
    ("/v1/rtt", [PLACE | SIMPLE, PLACE | SIMPLE]),
    ("/v1/rank", {"src": "192.0.2.1", "dst": ["192.0.2.9"], "timeout_ms": 10.0} | SIMPLE),
    ("/v1/inverse", {"src": "192.0.2.1", "low": 5.0, "high": 4.0, "bits": 8, "top": 1}),
    ("/v1/complete", {"src": "192.0.2.1", "dst": "198.?", "bits": 12, "top": 1}),
    ("/v1/score", {"src_addr": "192.0.2.1", "dst_addr": "2001:db8::9", "rtt": 5.0}),
    ("/v1/context", {"text": "dst_addr,rtt\n192.0.2.9,5\n"}),
]
ODD: list[Any] = [
    None, True, "", "\x00", "::", "::/0", "0.0.0.0/0", "1.2.3.4/33", "?", "é" * 50, -1, 0, 2**70, 1e308, -0.0,
    [], {}, [[]], [None], {"a": 1}, "1e999", "-inf", "nan", "2024-13-01", "9999-12-31T23:59:59Z", "300.1.1.1",
    "fe80::1%eth0", "::ffff:192.0.2.1", "../../etc/passwd", "2001:db8::/129", 1e-320, "\ud83d\ude00",
    "x" * 5000, "PING (::1)\ntime=1e9 ms", "[" * 100, '{"type":"ping"}', [{"rtt": 1}] * 50, "' OR 1=1 --",
    "%s%n", "<script>", "\u202e", "1.1.1.1\r\nX: y",
]  # fmt: skip
TYPES = ("application/json", "application/x-ndjson", "text/plain", "", "application/json; charset=x")
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW")
PATHS = (
    "/",
    "/v1/rtt",
    "/v1/model",
    "/metrics",
    "/page/ask.js",
    "/page/../run.py",
    "/%2e%2e/etc",
    "//",
    "/docs",
)
ENDINGS = ("", "/", "?", "?x=%00", "%00", "%ff", "a" * 3000)
TOKENS = (f"Bearer {TOKEN}", "Bearer", "Basic eDp5", f"Bearer {TOKEN}x", "\xff", "")
NAMES = ("src", "dst", "from", "to", "limit", "forecast", "at", "field", "starts", "version")
START = (
    f"POST /v1/rtt HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
).encode()


class Fuzzer(threading.Thread):
    """Sends its share of requests over one connection, opened again whenever it was closed."""

    def __init__(self, server: Server, seed: int, count: int):
        super().__init__(daemon=True)
        self.chance, self.count = random.Random(seed), count
        self.host, _, port = server.url.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self.connection = http.client.HTTPConnection(self.host, self.port, timeout=LONGEST)
        self.statuses: Counter[int] = Counter()
        self.troubles: list[str] = []

    def run(self) -> None:
        kinds = [self.changed, self.changed, self.broken, self.lost, self.questioned, self.garbage]
        for _ in range(self.count):
            self.chance.choice(kinds)()
            if len(self.troubles) > 20:
                return
        self.connection.close()

    def changed(self) -> None:
        """A good body with one or two values changed, removed or added."""
        path, body = self.chance.choice(GOOD)
        changed = json.loads(json.dumps(body))
        for _ in range(self.chance.choice((1, 2))):
            target = self.chance.choice(changed) if isinstance(changed, list) else changed
            name = self.chance.choice([*target, "other"])
            if self.chance.random() < 0.2:
                target.pop(name, None)
            else:
                target[name] = self.chance.choice(ODD)
        self.send("POST", path, json.dumps(changed).encode("utf-8", "surrogatepass"))

    def broken(self) -> None:
        """A body that is cut, or has bytes changed: mostly no JSON at all."""
        path, body = self.chance.choice(GOOD)
        raw = bytearray(json.dumps(body).encode())
        for _ in range(self.chance.randint(1, 4)):
            raw[self.chance.randrange(len(raw))] = self.chance.randrange(256)
        raw = raw[: self.chance.randint(0, len(raw))]
        if self.chance.random() < 0.1:
            raw = bytearray(self.chance.choice((b"[", b'{"a":')) * self.chance.randint(1, 20_000))
        kind = self.chance.choice(TYPES)
        self.send("POST", path, bytes(raw), kind)

    def lost(self) -> None:
        """Wrong methods, paths, tokens."""
        path = self.chance.choice(PATHS) + self.chance.choice(ENDINGS)
        host = self.chance.choice(("localhost", "evil.example", ""))
        headers = {"Authorization": self.chance.choice(TOKENS), "Host": host}
        self.send(self.chance.choice(METHODS), path, b"", "", headers)

    def questioned(self) -> None:
        """Parameters of a query."""
        path = self.chance.choice(("/v1/series", "/v1/map", "/v1/ends"))
        count = self.chance.randint(0, 4)
        pairs = [(self.chance.choice(NAMES), str(self.chance.choice(ODD))) for _ in range(count)]
        if path == "/v1/map":
            pairs.append(("limit", "1"))
        query = "&".join(f"{name}={quote(value.encode('utf-8', 'replace')[:1000])}" for name, value in pairs)
        self.send("GET", f"{path}?{query}", b"", "")

    def send(
        self,
        method: str,
        path: str,
        body: bytes,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        every = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind} | (headers or {})
        for again in (False, True):
            try:
                self.connection.request(method, path, body, every)
                response = self.connection.getresponse()
                response.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
                # An idle connection may have been closed in the meantime.
                self.connection.close()
                if again:
                    self.troubles.append(f"{method} {path[:60]}: {error!r}")
            except (http.client.HTTPException, OSError) as error:
                self.connection.close()
                self.troubles.append(f"{method} {path[:60]} {body[:200]!r}: {error!r}")
                return
            else:
                self.statuses[response.status] += 1
                if response.status == 500:
                    self.troubles.append(f"500: {method} {path[:80]} {body[:300]!r}")
                return

    def garbage(self) -> None:
        """Bytes that are no HTTP, or a length that is not that of the body."""
        raw = self.chance.choice([
            self.chance.randbytes(self.chance.randint(1, 300)) + b"\r\n\r\n",
            START + b"Content-Length: -5\r\n\r\n",
            START + b"Content-Length: 99999999999999999999\r\n\r\n{}",
            START + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            START + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\r\n0\r\n\r\n",
            START + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
            START + b"Content-Length: 50\r\n\r\n{\"src\":",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\r\n" * 50,
        ])  # fmt: skip
        try:
            with socket.create_connection((self.host, self.port), timeout=LONGEST) as client:
                client.sendall(raw)
                client.shutdown(socket.SHUT_WR)
                answer = b""
                while part := client.recv(65536):
                    answer += part
        except (ConnectionResetError, BrokenPipeError):
            self.statuses[0] += 1
            return
        except TimeoutError:
            self.troubles.append(f"no end after {LONGEST} s: {raw[:200]!r}")
            return
        found = re.match(rb"HTTP/1\.1 (\d+)", answer)
        status = int(found[1]) if found else 0
        self.statuses[status] += 1
        if status == 500:
            self.troubles.append(f"500: {raw[:200]!r}")


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def fuzz(server: Server, count: int, seed: int) -> Counter[int]:
    fuzzers = [Fuzzer(server, seed + number, count // THREADS) for number in range(THREADS)]
    for one in fuzzers:
        one.start()
    for one in fuzzers:
        one.join()
    assert [trouble for one in fuzzers for trouble in one.troubles] == []
    return sum((one.statuses for one in fuzzers), Counter())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_malformed_requests_neither_break_nor_grow_the_server(server):
    first = fuzz(server, REQUESTS // 5, 1)
    before = resident_mb(server.process.pid)
    statuses = first + fuzz(server, REQUESTS - REQUESTS // 5, 100)
    after = resident_mb(server.process.pid)
    print(f"\n{sum(statuses.values()):,} requests, {before:.0f} MB, then {after:.0f} MB")
    print(dict(sorted(statuses.items())))
    assert statuses[500] == 0
    assert {200, 400, 401, 404, 405, 415, 422} <= set(statuses)
    assert after < 1.1 * before
    assert server.client.get("/healthz").json() == {"status": "ok"}
    assert server.post("/v1/rtt", PLACE).status_code == 200
    assert not [line for line in server.log.read_text().splitlines() if '"event": "failure"' in line]


def test_a_few_malformed_requests(server):
    assert fuzz(server, 400, 7)[500] == 0
