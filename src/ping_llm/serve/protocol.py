"""HTTP connections with time limits.

uvicorn closes connections that are idle between two requests. It waits without limit for the head of a
request, and for a client that does not read its answer; a few hundred such connections would block all
others.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from ping_llm.serve.options import Limits


def protocol_class(limits: Limits) -> type[H11Protocol]:
    """Return the protocol class for uvicorn with these limits."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})


class _LimitedProtocol(H11Protocol):
    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._quiet_since = self._moved = self.loop.time()
        self._left = 0
        self._every = min(self.limits.head_seconds, self.limits.write_seconds) / 4
        self._next = self.loop.call_later(self._every, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._next.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._moved = self.loop.time()
        super().resume_writing()

    def _look(self) -> None:
        """Close the connection if its client has been too slow."""
        now = self.loop.time()
        left = self.transport.get_write_buffer_size()
        if not left or left < self._left:
            self._moved = now
        self._left = left
        answering = self.cycle is not None and not self.cycle.response_complete
        unread = left > 0 and now - self._moved > self.limits.write_seconds
        unasked = not left and not answering and now - self._quiet_since > self.limits.head_seconds
        if unread or unasked:
            self.transport.abort()
        else:
            self._next = self.loop.call_later(self._every, self._look)
