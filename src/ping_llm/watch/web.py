"""The two threads that use the network: `/metrics` and the page over HTTP, and the webhook."""

import http.server
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ping_llm.errors import PingError, UsageError
from ping_llm.files import write_text

#: Seconds per attempt, attempts per event, and longest pause between two attempts, s.
_TIMEOUT, _ATTEMPTS, _MOST_PAUSE = 10.0, 10, 300.0


class Pages:
    """Serves the latest texts of the main thread, on the loopback address or another."""

    def __init__(self, host: str, port: int, texts: dict[str, Callable[[], tuple[str, str]]]):
        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                make = texts.get(self.path.partition("?")[0])
                if make is None:
                    self.send_error(404)
                    return
                kind, text = make()
                data = text.encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing: stderr is for the user."""

        try:
            self._server = http.server.ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise PingError(f"cannot listen on {host} port {port}: {error}") from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="watch-pages", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Webhook:
    """POSTs events from their file, one after the other, so that nothing waits for the webhook.

    STATE/webhook.json has the number of the last event that was sent or given up. Events that were sent after
    the last state before a kill occur again and are sent again, so each event is sent at least once; its
    number identifies a repetition. An event is given up after ten attempts.

    Args:
      events: number of events in the state.
    """

    def __init__(self, url: str, folder: Path, events: int, pause: float = 1.0):
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--webhook must begin with http:// or https://, not {url}")
        self._url, self._events, self._saved = url, folder / "alarms.jsonl", folder / "webhook.json"
        self._first_pause = pause
        self.counts = {"webhook sent": 0, "webhook failed": 0, "webhook dropped": 0}
        self._done = min(self._restored(), events)
        self._offset = 0
        self._more, self._stop = threading.Event(), threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-webhook", daemon=True)
        self._thread.start()

    def _restored(self) -> int:
        try:
            return int(json.loads(self._saved.read_text())["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def wake(self) -> None:
        """Tell the thread that there may be more events."""
        self._idle.clear()
        self._more.set()

    def close(self, seconds: float) -> None:
        """Send the remaining events for at most `seconds`, then stop."""
        self.wake()
        self._idle.wait(seconds)
        self._stop.set()
        self._more.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._more.clear()
            while (line := self._next()) is not None and not self._stop.is_set():
                number = int(json.loads(line)["number"])
                if number > self._done:
                    if not self._deliver(line):
                        return
                    self._done = number
                    write_text(self._saved, json.dumps({"done": number}) + "\n")
            self._idle.set()
            self._more.wait(5.0)

    def _next(self) -> bytes | None:
        """Return the next whole line of the events, or None."""
        if not self._events.exists():
            return None
        with self._events.open("rb") as file:
            file.seek(self._offset)
            line = file.readline()
        if not line.endswith(b"\n"):
            return None
        self._offset += len(line)
        return line

    def _deliver(self, line: bytes) -> bool:
        """Send one event; return False if the watch ends before it was sent or given up."""
        pause = self._first_pause
        for _ in range(_ATTEMPTS):
            try:
                request = urllib.request.Request(
                    self._url, data=line, headers={"Content-Type": "application/json"}, method="POST"
                )
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                    reply.read(1024)
                self.counts["webhook sent"] += 1
                return True
            except (OSError, ValueError, urllib.error.URLError):
                self.counts["webhook failed"] += 1
            if self._stop.wait(pause):
                return False
            pause = min(2 * pause, _MOST_PAUSE)
        self.counts["webhook dropped"] += 1
        return True
