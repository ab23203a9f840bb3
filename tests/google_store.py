"""A stand-in for Google Cloud Storage on the loopback: its JSON API, as far as Google's client uses it.

The client must be another process: PyArrow 26 holds the GIL while it seeks in an object, so a thread here
could not answer it.
"""

import json
import re
from datetime import UTC, datetime
from urllib.parse import quote, unquote, urlsplit

from object_store import Handler, Store, serving_with


class GoogleStore(Store):
    """Objects by `bucket/key`. Uploads in progress are in `parts`, by the name of the object.

    Attributes:
        ranges: where the reads of objects so far began.
    """

    def __init__(self):
        super().__init__()
        self.ranges: list[int] = []


def serving():
    """A store that answers at `url` inside the block."""
    return serving_with(_Handler, GoogleStore())


class _Handler(Handler):
    def _is_content(self):
        return self.query.get("alt") == ["media"]

    def _json(self, values, status=200, headers=()):
        self._answer(status, json.dumps(values).encode(), [("Content-Type", "application/json"), *headers])

    def _error(self, status):
        self._json({"error": {"code": status, "message": f"status {status}"}}, status)

    def _metadata(self, name):
        content, time = self.store.objects[name]
        bucket, _, key = name.partition("/")
        when = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return {
            "kind": "storage#object", "bucket": bucket, "name": key, "size": str(len(content)),
            "generation": "1", "metageneration": "1", "timeCreated": when, "updated": when,
        }  # fmt: skip

    def _place(self):
        """Bucket, and key where there is one, of a path of the JSON API."""
        path = re.sub(r"^/(upload|download)/", "/", urlsplit(self.path).path)
        found = re.fullmatch(r"/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", path)
        return (unquote(found[1]), unquote(found[2] or "")) if found else ("", "")

    def do_GET(self):
        if not self._begin():
            return
        bucket, key = self._place()
        name = f"{bucket}/{key}"
        if not bucket:
            self._error(404)
        elif not key and urlsplit(self.path).path.endswith("/o"):
            prefix = self.query.get("prefix", [""])[0]
            names = self.store.names(f"{bucket}/{prefix}")
            self._json({"kind": "storage#objects", "items": [self._metadata(each) for each in names]})
        elif not key:
            self._json({"kind": "storage#bucket", "name": bucket, "id": bucket})
        elif name not in self.store.objects:
            self._error(404)
        elif self.query.get("alt") == ["media"]:
            self._content(*self.store.objects[name])
        else:
            self._json(self._metadata(name))

    def _content(self, content, time):
        headers = [("X-Goog-Generation", "1"), ("X-Goog-Stored-Content-Length", str(len(content)))]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        self.store.ranges.append(int(asked[1]) if asked else 0)
        if not asked:
            self._answer(200, content, headers)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        headers.append(("Content-Range", f"bytes {first}-{last}/{len(content)}"))
        self._answer(206, content[first : last + 1], headers)

    do_HEAD = do_GET

    def do_POST(self):
        """Begin an upload."""
        if not self._begin():
            return
        bucket, _ = self._place()
        name = f"{bucket}/{self.query['name'][0]}"
        self.store.parts[name] = {}
        session = f"{self.store.url}{urlsplit(self.path).path}?upload_id={quote(name, safe='')}"
        self._json({}, headers=[("Location", session)])

    def do_PUT(self):
        """A part of an upload; the last one says how long the object is."""
        if not self._begin():
            return
        name = self.query["upload_id"][0]
        parts = self.store.parts[name]
        first, total = re.fullmatch(
            r"bytes (\*|\d+)(?:-\d+)?/(\*|\d+)", self.headers["Content-Range"]
        ).groups()
        if first != "*":
            parts[int(first)] = self.body
        there = sum(map(len, parts.values()))
        if total != "*" and there == int(total):
            self.store.put(name, b"".join(parts[place] for place in sorted(parts)))
            self._json(self._metadata(name))
            return
        self._answer(308, b"", [("Range", f"bytes=0-{there - 1}")] if there else [])

    def do_DELETE(self):
        if self._begin():
            bucket, key = self._place()
            self.store.objects.pop(f"{bucket}/{key}", None)
            self._answer(204)
