"""What a client did wrong, as a status, a sentence and the field's path."""

from typing import Any

import orjson

#: All that a client is told of a failure of the server.
FAILED = "the server failed; its log has this request id"


class Refused(Exception):
    """A request that is not answered.

    Attributes:
      status: of the response.
      message: the sentence that the command line would print.
      path: the field that is wrong, as in `[3].context[0].rtt`; empty: the request as a whole.
      retry_after: seconds after which the same request may succeed.
    """

    def __init__(self, status: int, message: str, path: str = "", retry_after: int | None = None):
        super().__init__(message)
        self.status, self.message, self.path, self.retry_after = status, message, path, retry_after

    def below(self, path: str) -> "Refused":
        """The same of a part of a request."""
        inner = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        whole = f"{path}{inner}" if path else self.path
        return Refused(self.status, self.message, whole, self.retry_after)

    def values(self) -> dict[str, Any]:
        return {"error": self.message, "field": self.path or None}


class ClientGone(Exception):
    """The client closed the connection: nobody waits for the answer."""


def refusal(refused: Refused, request_id: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the response."""
    headers = {}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refused.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    return orjson.dumps(refused.values() | {"request_id": request_id}), headers
