"""An Atlas API and its dumps on loopback, with the faults of real servers."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: What a fault does: "cut", "short", "long", 500, 429 …; taken from the front, one per request.
Fault = str | int


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class AtlasServer:
    """Results, dumps and probes, and a record of what was asked.

    Attributes:
      faults: what happens to the next requests.
      dumps: path → content.
      probes: all of them.
      sent: called with the number of bytes sent so far, before each piece of a body.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.dumps: dict[str, bytes] = {}
        self.tag = '"one"'
        self.probes: list[dict[str, Any]] = []
        self.ranges = True
        self.redirect: str | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.total = 0
        self.sent: Callable[[int], None] = lambda total: None
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def result(self, measurement: int, time: int, probe: int) -> bytes:
        content = {
            "fw": 5020, "type": "ping", "msm_id": measurement, "prb_id": probe, "timestamp": time, "af": 4,
            "src_addr": f"192.0.2.{probe}", "from": f"192.0.2.{probe}", "dst_addr": "198.51.100.7", "sent": 1,
            "rcvd": 1, "min": 20.5, "avg": 20.5, "max": 20.5, "size": 64, "result": [{"rtt": 20.5}],
        }  # fmt: skip
        return json.dumps(content).encode()

    def results(self, measurement: int, start: int, stop: int, probes: list[int]) -> bytes:
        """A result of each probe every 10 minutes."""
        times = range(-(-start // 600) * 600, stop + 1, 600)
        lines = [self.result(measurement, time, probe) for time in times for probe in probes]
        return b"".join(line + b"\n" for line in lines)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        atlas = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None:
                pass

            def do_GET(self) -> None:
                atlas.asked.append((self.path, dict(self.headers.items())))
                fault = atlas.faults.pop(0) if atlas.faults else None
                if atlas.redirect is not None:
                    location, atlas.redirect = atlas.redirect, None
                    self._answer(302, b"", {"Location": location})
                elif isinstance(fault, int):
                    after = {"Retry-After": "0"} if fault in (429, 503) else {}
                    self._answer(fault, b'{"error": {"detail": "said so"}}', after)
                else:
                    self._body(fault)

            def _body(self, fault: str | None) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                words = parts.path.strip("/").split("/")
                if words[0] == "measurements" and words[2] == "results":
                    probes = [int(one) for one in query.get("probe_ids", "1,2,3").split(",")]
                    start, stop = int(query["start"]), int(query["stop"])
                    self._answer(200, atlas.results(int(words[1]), start, stop, probes), {}, fault)
                elif words[0] == "probes":
                    page, size = int(query.get("page", 1)), int(query["page_size"])
                    chosen = atlas.probes[(page - 1) * size : page * size]
                    more = page * size < len(atlas.probes)
                    following = f"{atlas.url}probes/?page={page + 1}&page_size={size}" if more else None
                    content = json.dumps({"next": following, "results": chosen}).encode()
                    self._answer(200, content, {}, fault)
                elif parts.path.lstrip("/") in atlas.dumps:
                    self._dump(atlas.dumps[parts.path.lstrip("/")], fault)
                else:
                    self._answer(404, b"{}")

            def _dump(self, content: bytes, fault: str | None) -> None:
                headers = {"ETag": atlas.tag}
                wanted = self.headers.get("Range", "")
                if atlas.ranges and wanted and self.headers.get("If-Range") == atlas.tag:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                    begin = start - 1 if fault == "other range" else start
                    headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
                    self._answer(206, content[begin:], headers, fault)
                else:
                    self._answer(200, content, headers, fault)

            def _answer(
                self, status: int, body: bytes, more: dict[str, str] | None = None, fault: str | None = None
            ) -> None:
                self.send_response(status)
                length = len(body) + {"short": 7, "long": -7}.get(fault or "", 0)
                for name, value in ({"Content-Length": str(length)} | (more or {})).items():
                    self.send_header(name, value)
                self.end_headers()
                if fault == "cut":
                    body = body[: len(body) // 2]
                try:
                    for start in range(0, len(body), 4096):
                        atlas.sent(atlas.total)
                        piece = body[start : start + 4096]
                        self.wfile.write(piece)
                        atlas.total += len(piece)
                except OSError:
                    pass
                if fault in ("cut", "short", "long"):
                    self.close_connection = True

        return Handler

    @contextmanager
    def running(self) -> Iterator["AtlasServer"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
