"""The page at /docs, made from the OpenAPI document."""

import html
import json
from typing import Any


def page(schema: dict[str, Any]) -> str:
    """The endpoints as plain HTML, without scripts or styles."""
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
