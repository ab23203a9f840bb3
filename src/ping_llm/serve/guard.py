"""Checks around every request: token, number of requests at once, log, and headers of the response."""

import asyncio
import json
import re
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from os import environ
from typing import Any

from ping_llm.serve.metrics import Metrics
from ping_llm.serve.options import Limits
from ping_llm.serve.refusals import FAILED, Refused, refusal
from ping_llm.serve.token_file import TokenFile

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Paths that need no token, for load balancers and browsers: they reveal nothing about the model.
OPEN = ("/healthz", "/readyz", "/docs", "/openapi.json")

_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


class Log:
    """Writes JSON lines to stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, **values: Any) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values})
        with self._lock:
            print(line, file=sys.stderr, flush=True)


class Guard:
    """An ASGI application that wraps another one.

    Args:
      paths: existing paths; all others are counted and logged as `other`.
      page: paths of the page, which need no token, because the page asks for it.
      tokens: None: no token is needed.
      local: whether the server listens on a loopback address. If it does, and needs no token, the Host header
        must name this machine, so that no web page can reach the server by a host name of its own (DNS
        rebinding). On another address (--no-auth) any Host is accepted: others reach the server by names that
        it does not know.
    """

    def __init__(
        self,
        app: App,
        *,
        paths: frozenset[str],
        page: frozenset[str] = frozenset(),
        tokens: TokenFile | None,
        metrics: Metrics,
        limits: Limits,
        log: Log,
        local: bool = True,
        log_addresses: bool = False,
    ):
        self._app, self._paths, self._tokens, self._metrics = app, paths, tokens, metrics
        self._page = page
        self._limits, self._log, self._log_addresses = limits, log, log_addresses
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        headers = dict(scope["headers"])
        wished = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = wished if _REQUEST_ID.fullmatch(wished) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        path = scope["path"] if scope["path"] in self._paths else "other"
        if scope["path"] in self._page:
            path = "/"
        status, name = 0, None
        body = _Body(receive, self._limits)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400:
                    await body.discard()
                given = list(message.get("headers", ()))
                own = {header for header, _ in given}
                more = [one for one in _HEADERS if one[0] not in own]
                message["headers"] = [*given, *more, (b"x-request-id", request_id.encode())]
            await send(message)

        self._metrics.in_progress += 1
        try:
            try:
                name = self._admit(path, headers)
            except Refused as refused:
                await _refuse(refused, request_id, answer)
            else:
                await self._app(scope, body.receive, answer)
        except OSError:
            status = status or 499  # the connection is gone
        except Exception as error:
            self._log.write(event="failure", request_id=request_id, error=_failure(error))
            if not status:
                await _refuse(Refused(500, FAILED), request_id, answer)
        finally:
            self._metrics.in_progress -= 1
            seconds = time.perf_counter() - start
            self._metrics.request(path, status or 499, seconds)
            self._log.write(
                event="request",
                request_id=request_id,
                method=scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other",
                path=path,
                status=status or 499,
                ms=round(1000 * seconds, 2),
                **({} if name is None else {"name": name}),
                **({"address": (scope.get("client") or [None])[0]} if self._log_addresses else {}),
            )

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> str | None:
        """Return the name of the token's owner; None if no token is needed.

        Raises:
          Refused: the request must not be answered.
        """
        if path in OPEN or (path == "/" and self._tokens is not None):
            return None
        if self._metrics.in_progress > self._limits.requests:
            self._metrics.rejected("too many requests")
            raise Refused(503, f"{self._limits.requests:,} requests are in progress: ask again later", "", 1)
        if self._tokens is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if self._local and not _LOCAL.fullmatch(host):
                self._metrics.rejected("host")
                raise Refused(
                    421,
                    "a server without tokens answers only its own machine: the Host header must be localhost "
                    f"or a loopback address, not {host[:100]!r}; --token-file FILE lets others ask",
                )
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        name = self._tokens.name_of(token.strip()) if kind.lower() == b"bearer" else None
        if self._tokens.trouble:
            self._log.write(event="tokens", error=self._tokens.trouble)
            self._tokens.trouble = None
        if name is None:
            self._metrics.rejected("token")
            raise Refused(401, "the header `Authorization: Bearer TOKEN` must hold a token of the server")
        return name


class _Body:
    """The body of a request, and whether all of it has arrived."""

    def __init__(self, receive: Receive, limits: Limits):
        self._receive, self._limits = receive, limits
        self._complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._complete = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read the rest of a refused body, within limits.

        A connection that is closed with unread bytes is reset, and a client that is still sending never sees
        why it was refused.
        """
        size = 0
        try:
            async with asyncio.timeout(self._limits.discard_seconds):
                while not self._complete and size < self._limits.discard:
                    size += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


def _failure(error: Exception) -> str:
    if environ.get("PING_LLM_DEBUG"):
        return "".join(traceback.format_exception(error))
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" at {frame.name}:{frame.lineno}" for frame in last)
    return f"{type(error).__name__}{where}"


async def _refuse(refused: Refused, request_id: str, send: Send) -> None:
    body, more = refusal(refused, request_id)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **more}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
