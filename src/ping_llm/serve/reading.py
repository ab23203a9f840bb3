"""Reading requests, and waiting for an answer only while the client is connected."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import orjson
from fastapi import Request, Response

from ping_llm.serve.options import Limits
from ping_llm.serve.refusals import ClientGone, Refused

JSON, NDJSON = "application/json", "application/x-ndjson"


def json_response(values: Any) -> Response:
    return Response(orjson.dumps(values), media_type=JSON)


def media_type(request: Request) -> str:
    """Return the body's type. Forms and plain text are refused: any web page can send them."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, NDJSON):
        raise Refused(415, f"the Content-Type must be {JSON} or {NDJSON}")
    return kind


async def read_body(request: Request, limits: Limits) -> bytes:
    too_large = Refused(
        413, f"a JSON body may have {limits.body:,} bytes: send one object per line as {NDJSON}"
    )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limits.body:
        raise too_large
    parts: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    end = now() + limits.body_seconds
    try:
        while True:
            async with asyncio.timeout_at(min(end, now() + limits.read_seconds)):
                message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limits.body:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(parts)
    except TimeoutError:
        raise Refused(
            408,
            f"the body must not pause for {limits.read_seconds:g} s, nor take {limits.body_seconds:g} s",
        ) from None


async def unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """Wait for the answer; cancel it if the client disconnects first.

    Raises:
      ClientGone: the client has disconnected.
    """
    wanted = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_end(request))
    try:
        await asyncio.wait({wanted, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            raise ClientGone
        return wanted.result()
    finally:
        wanted.cancel()
        gone.cancel()


async def _end(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
