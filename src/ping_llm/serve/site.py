"""The pages of the server.

The files of `/` are read once, at the start: no path from a request is ever opened. /docs is made from the
OpenAPI document.
"""

import hashlib
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

#: Content security policy: everything comes from this server, without inline scripts or styles.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    kind: str
    etag: str


def _files() -> dict[str, _File]:
    """Return the files of the page by URL path."""
    found = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _TYPES and path.is_file():
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[f"/page/{path.relative_to(_FOLDER).as_posix()}"] = _File(content, _TYPES[path.suffix], etag)
    found["/"] = found.pop("/page/index.html")
    return found


def add_page(app: FastAPI) -> frozenset[str]:
    """Add the page to an application; return its paths."""
    files = _files()

    async def send(request: Request) -> Response:
        file = files[request.url.path]
        headers = {"etag": file.etag, "cache-control": "no-cache", "content-security-policy": POLICY}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)

    for path in files:
        app.add_api_route(path, send, methods=["GET", "HEAD"], include_in_schema=False)
    return frozenset(files)


def docs_page(schema: dict[str, Any]) -> str:
    """Return the endpoints as plain HTML, without scripts or styles."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>ping-llm</title><h1>ping-llm</h1>"]
    parts.append("<p><a href=/openapi.json>openapi.json</a> describes the same for programs.</p><dl>")
    for path, methods in schema["paths"].items():
        for method, one in methods.items():
            parts.append(f"<dt><code>{method.upper()} {html.escape(path)}</code><dd>")
            parts.append(html.escape(one.get("summary", "")))
            for name in {part["name"]: None for part in one.get("parameters", ())}:
                parts.append(f" <code>{html.escape(name)}</code>")
    parts.append("</dl>")
    for name, one in schema["components"]["schemas"].items():
        if name.endswith("Body"):
            text = html.escape(json.dumps(one.get("properties", {}), indent=2))
            parts.append(f"<details><summary>{html.escape(name)}</summary><pre>{text}</pre></details>")
    return "".join(parts)
