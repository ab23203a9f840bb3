"""Refusals of requests, as a status, a sentence and the path of a field."""

from typing import Any

import orjson

#: Message to clients about a failure of the server; the log has the details.
FAILED = "the server failed; its log has this request id"


class Refused(Exception):
    """A request that is not answered.

    Attributes:
      status: HTTP status of the response.
      message: the sentence that the command line would print.
      path: path of the invalid field, such as `[3].context[0].rtt`; empty: the whole request.
      retry_after: seconds after which the same request may succeed.
    """

    def __init__(self, status: int, message: str, path: str = "", retry_after: int | None = None):
        super().__init__(message)
        self.status, self.message, self.path, self.retry_after = status, message, path, retry_after

    def below(self, path: str) -> "Refused":
        """Return the same refusal for a part of a request, with `path` before its own path."""
        inner = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        whole = f"{path}{inner}" if path else self.path
        return Refused(self.status, self.message, whole, self.retry_after)

    def values(self) -> dict[str, Any]:
        return {"error": self.message, "field": self.path or None}


class ClientGone(Exception):
    """The client closed the connection, so no answer is needed."""


def refusal(refused: Refused, request_id: str) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of the response."""
    headers = {}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refused.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    return orjson.dumps(refused.values() | {"request_id": request_id}), headers
