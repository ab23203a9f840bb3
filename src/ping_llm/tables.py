"""Plain-text tables and JSON for results on stdout."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from ping_llm.paths import printable


def table(rows: Sequence[Sequence[Any]], header: Sequence[str] | None = None) -> str:
    """Format rows with aligned columns: numbers right, everything else left."""
    cells = [[_text(value) for value in row] for row in rows]
    numeric = [all(isinstance(value, int | float) for value in column) for column in zip(*rows, strict=True)]
    if header:
        cells.insert(0, list(header))
        numeric = numeric or [False] * len(header)
    if not cells:
        return ""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return printable(str(value)).replace("\n", "\\n")


def counted(number: int, noun: str) -> str:
    """A number with its noun, plural if needed: "3 sources", "1 source"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document on stdout, on one line if `indent` is None; escaped if stdout is not UTF-8."""
    escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    json.dump(value, sys.stdout, indent=indent, ensure_ascii=escaped, allow_nan=False)
    sys.stdout.write("\n")
