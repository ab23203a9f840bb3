"""HTTP client for one server: retries with growing pauses, and no redirects or keys to other hosts."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx

from ping_llm import __version__
from ping_llm.errors import PingError, UsageError
from ping_llm.hosts import is_loopback, retry_after

#: HTTP status codes after which the same request may succeed later.
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5


class Broken(Exception):
    """A response that was truncated, damaged or temporarily refused, so that a retry may succeed."""

    def __init__(self, message: str, after: float = 0.0):
        super().__init__(message)
        self.after = after


@dataclass(frozen=True)
class Pace:
    """Limits of retries after failures.

    Attributes:
      retries: Largest number of consecutive retries without a byte gained.
      first_pause: Seconds before the first retry; each further pause doubles, up to `longest_pause`.
      longest_wait: Longest Retry-After to wait for, in seconds.
      timeout: Seconds without a byte after which a connection counts as broken.
    """

    retries: int = 8
    first_pause: float = 1.0
    longest_pause: float = 60.0
    longest_wait: float = 3600.0
    timeout: float = 60.0


class Server:
    """Client for the resources below a URL.

    Args:
      key: API key, sent as `Authorization: Key …` to this server only.
    """

    def __init__(self, base_url: str, key: str | None = None, pace: Pace | None = None):
        self.base_url, self._pace = base_url.rstrip("/") + "/", pace or Pace()
        self._origin = _origin(self.base_url)
        headers = {"User-Agent": f"ping-llm/{__version__}"}
        if key is not None:
            if self._origin[0] != "https" and not is_loopback(self._origin[1]):
                raise UsageError(f"a key is only sent over https, not to {base_url}")
            headers["Authorization"] = f"Key {key}"
        self._client = httpx.Client(headers=headers, timeout=self._pace.timeout, follow_redirects=False)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Response]:
        """Send a GET request; yield the response with its body unread.

        Raises:
          Broken: the request may succeed later.
          PingError: the request will not succeed.
        """
        url = urljoin(self.base_url, url)
        for _ in range(_MOST_REDIRECTS):
            if _origin(url) != self._origin:
                raise PingError(f"{self.base_url} redirects to another host, {url}: give that as --base-url")
            try:
                with self._client.stream("GET", url, headers=dict(headers or {})) as response:
                    if response.status_code in _REDIRECTS and "location" in response.headers:
                        url = urljoin(url, response.headers["location"])
                        continue
                    _check(response)
                    yield response
                    return
            except httpx.HTTPError as error:
                raise Broken(f"{url}: {error or type(error).__name__}") from None
        raise PingError(f"{url}: more than {_MOST_REDIRECTS} redirects")

    def insist[Made](self, attempt: Callable[[], Made], gained: Callable[[], int] = lambda: 0) -> Made:
        """Return the value of `attempt`, which is called again after `Broken` within the limits of the pace.

        Args:
          gained: Function that returns the number of bytes so far; when it grows, the failures are reset.
        """
        failures, before = 0, gained()
        while True:
            try:
                return attempt()
            except Broken as broken:
                have = gained()
                failures, before = (1 if have > before else failures + 1), have
                if failures > self._pace.retries:
                    raise PingError(f"{broken}; given up after {failures} tries") from None
                if broken.after > self._pace.longest_wait:
                    raise PingError(
                        f"{broken}; it asks to wait {broken.after:,.0f} s: try again then"
                    ) from None
                pause = min(self._pace.first_pause * 2 ** (failures - 1), self._pace.longest_pause)
                # A random part, from half to all, so that clients that failed together do not retry together.
                time.sleep(max(broken.after, pause * random.uniform(0.5, 1.0)))


def _check(response: httpx.Response) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    response.read()
    where = f"{response.request.url} answered {status}"
    if status in _AGAIN:
        raise Broken(where, retry_after(response.headers))
    if status in (401, 403):
        raise PingError(f"{where}: the key is missing, wrong, or not allowed to read this{_detail(response)}")
    if status == 404:
        raise PingError(f"{where}: not found; check the ids and the time{_detail(response)}")
    raise PingError(f"{where}{_detail(response)}")


def _detail(response: httpx.Response) -> str:
    """The error text of the API, shortened."""
    try:
        error = response.json()["error"]
        return f" ({str(error.get('detail') or error.get('title'))[:200]})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UsageError(f"{url} must be an http or https address")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
