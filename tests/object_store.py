"""A stand-in for S3 on the loopback: whole and partial reads, listings, uploads in parts, and faults."""

import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Store:
    """Objects by `bucket/key`: their bytes and times.

    Attributes:
        cut: of as many answers with a body, after the first `cut_after`, half is sent before the connection
            is closed.
        refused: as many requests are answered with 503.
        requests: methods and paths so far.
    """

    def __init__(self):
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.cut = self.cut_after = self.refused = 0
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def put(self, key: str, content: bytes, time: float = 1_600_000_000.0) -> None:
        self.objects[key] = content, time

    def names(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))


def serving():
    """A store that answers at `url` inside the block."""
    return serving_with(_S3Handler, Store())


@contextmanager
def serving_with(handler, store):
    """The same with the handler of another store's requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"store": store}))
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """What the requests of all stores have: their bodies, and faults in the answers."""

    store: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def _begin(self):
        parts = urlsplit(self.path)
        self.key, self.query = unquote(parts.path).strip("/"), parse_qs(parts.query, keep_blank_values=True)
        self.store.requests.append((self.command, self.path))
        self.body = self._sent()
        if self.store.refused:
            self.store.refused -= 1
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
            return False
        return True

    def _sent(self):
        """The body of a request, without the chunks of HTTP and of S3's clients around it."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
            return body
        plain, place = b"", 0
        while True:
            end = body.index(b"\r\n", place)
            size = int(body[place:end].partition(b";")[0], 16)
            if not size:
                return plain
            plain += body[end + 2 : end + 2 + size]
            place = end + 4 + size

    def _is_content(self):
        """Whether the request is for the bytes of an object."""
        return "list-type" not in self.query

    def _answer(self, status, body=b"", headers=(), length=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        is_object = status in (200, 206) and len(body) > 100 and self._is_content()
        if is_object and self.store.cut_after:
            self.store.cut_after -= 1
        elif is_object and self.store.cut:
            self.store.cut -= 1
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(body)


class _S3Handler(Handler):
    def do_HEAD(self):
        if self._begin():
            self._object()

    def do_GET(self):
        if self._begin():
            self._list() if "list-type" in self.query else self._object()

    def _object(self):
        if self.key not in self.store.objects:
            self._answer(404 if "/" in self.key else 200, b"")
            return
        content, time = self.store.objects[self.key]
        headers = [("Last-Modified", formatdate(time, usegmt=True)), ("ETag", f'"{hash(content)}"')]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.command == "GET":
            first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            headers.append(("Content-Range", f"bytes {first}-{last}/{len(content)}"))
            self._answer(206, content[first : last + 1], headers)
            return
        self._answer(200, content, headers)

    def _list(self):
        bucket, prefix = self.key, self.query.get("prefix", [""])[0]
        lines = []
        for name in self.store.names(f"{bucket}/{prefix}"):
            content, time = self.store.objects[name]
            when = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            lines.append(
                f"<Contents><Key>{escape(name.removeprefix(bucket + '/'))}</Key><Size>{len(content)}</Size>"
                f"<LastModified>{when}</LastModified></Contents>"
            )
        body = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(lines)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(lines)}</ListBucketResult>"
        )
        self._answer(200, body.encode(), [("Content-Type", "application/xml")])

    def do_PUT(self):
        if not self._begin():
            return
        if "uploadId" in self.query:
            number = int(self.query["partNumber"][0])
            self.store.parts.setdefault(self.query["uploadId"][0], {})[number] = self.body
        else:
            self.store.put(self.key, self.body)
        self._answer(200, b"", [("ETag", f'"{hash(self.body)}"')])

    def do_POST(self):
        if not self._begin():
            return
        if "uploads" in self.query:
            upload = f"<UploadId>{len(self.store.requests)}</UploadId>"
            body = f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>"
        else:
            parts = self.store.parts.pop(self.query["uploadId"][0])
            self.store.put(self.key, b"".join(parts[number] for number in sorted(parts)))
            body = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
        self._answer(200, body.encode(), [("Content-Type", "application/xml")])

    def do_DELETE(self):
        if self._begin():
            self.store.objects.pop(self.key, None)
            self._answer(204)
