"""NDJSON streams: one question per line of the request, one answer per line of the response, in order.

Answers are sent while questions still arrive. A client may also send everything before it reads (most HTTP
libraries do): questions that are not answered yet are kept in a temporary file, so neither side blocks the
other, and memory holds one block of lines.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO, Any

import orjson

from ping_llm.serve.guard import Receive, Scope, Send
from ping_llm.serve.options import Limits
from ping_llm.serve.refusals import ClientGone, Refused

#: Largest number of lines per block, and bytes from which a block is complete: lines with contexts are long.
BLOCK = 128
_BLOCK_BYTES = 1 << 20
#: Bytes of the temporary file that stay in memory, and bytes read from it at a time.
_IN_MEMORY = 1 << 20
_READ = 1 << 16

#: Function from (number of the first line, lines) to one answer per line.
Answer = Callable[[int, list[bytes]], Awaitable[list[Any]]]


class NdjsonStream:
    """An ASGI response that reads its request while it is being sent."""

    def __init__(self, receive: Receive, answer: Answer, limits: Limits):
        self._receive, self._answer, self._limits = receive, answer, limits
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._written = self._read = 0
        self._ended = False
        self._gone = False
        self._trouble: Refused | None = None
        self._more = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        filling = asyncio.create_task(self._fill())
        answering = asyncio.create_task(self._respond(send))
        try:
            await asyncio.wait({filling, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                # The body has arrived: from here on, only the end of the connection can be received.
                gone = asyncio.create_task(self._receive_end())
                await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
            if not answering.done():
                raise ClientGone
            await answering
        finally:
            for task in (filling, answering):
                task.cancel()
            await asyncio.gather(filling, answering, return_exceptions=True)
            self._spool.close()

    async def _receive_end(self) -> None:
        if self._gone:
            return
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _fill(self) -> None:
        """Read the body into the temporary file."""
        try:
            while True:
                async with asyncio.timeout(self._limits.read_seconds):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._gone = True
                    return
                chunk = message.get("body", b"")
                if self._written + len(chunk) > self._limits.stream:
                    most = f"{self._limits.stream:,} bytes"
                    self._trouble = Refused(
                        413, f"a body must have at most {most}: ask the rest in a new request"
                    )
                    return
                self._spool.seek(self._written)
                self._spool.write(chunk)
                self._written += len(chunk)
                self._more.set()
                if not message.get("more_body", False):
                    return
        except TimeoutError:
            pause = f"{self._limits.read_seconds:g} s"
            self._trouble = Refused(
                408, f"the body must not pause for {pause}: ask the rest in a new request"
            )
        finally:
            self._ended = True
            self._more.set()

    async def _blocks(self) -> AsyncIterator[list[bytes]]:
        """Yield the available lines, up to a block at a time, without waiting until a block is full."""
        rest = b""
        lines: list[bytes] = []
        while True:
            if self._read < self._written:
                self._spool.seek(self._read)
                chunk = self._spool.read(min(_READ, self._written - self._read))
                self._read += len(chunk)
                *whole, rest = (rest + chunk).split(b"\n")
                lines += [line for line in whole if line.strip()]
                if len(rest) > self._limits.line:
                    self._trouble = Refused(413, f"a line must have at most {self._limits.line:,} bytes")
                    self._ended, self._read = True, self._written
                while len(lines) >= BLOCK or sum(map(len, lines)) >= _BLOCK_BYTES:
                    yield lines[:BLOCK]
                    lines = lines[BLOCK:]
                continue
            if lines:
                yield lines
                lines = []
                continue
            if self._ended:
                if rest.strip() and self._trouble is None:
                    yield [rest]
                return
            self._more.clear()
            await self._more.wait()

    async def _respond(self, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        started = False
        number = 0
        async for lines in self._blocks():
            if self._gone:
                raise ClientGone
            try:
                values = await self._answer(number, lines)
            except Refused as refused:
                if not started:
                    raise
                self._trouble = refused
                break
            number += len(lines)
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                started = True
            body = b"".join(orjson.dumps(value) + b"\n" for value in values)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if self._gone:
            raise ClientGone
        if not started:
            if self._trouble is not None:
                raise self._trouble
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        last = (
            b""
            if self._trouble is None
            else orjson.dumps(self._trouble.values() | {"line": number + 1}) + b"\n"
        )
        await send({"type": "http.response.body", "body": last})
