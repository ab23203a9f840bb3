#!/usr/bin/env python3
"""Write docs/api.md from the docstrings of the names in `ping_llm.__all__`; `make format` runs it."""

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import ping_llm

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

_HEAD = """\
# The Python API

After this page you can do in Python what the commands do: read and split measurements, train, ask
and evaluate.

```python
import ping_llm

model = ping_llm.load("runs/demo")              # a run, a checkpoint or an export
answer = model.rtt("80.248.148.119", "218.184.153.7", at="2024-01-13T08:32:06Z")
answer.distribution.point                       # best single guess, ms
answer.distribution.quantile([0.05, 0.5, 0.95])
answer.failure                                  # P(no reply)

answers = model.rtt(questions)                  # a table of pandas, polars or pyarrow, and so is the answer
```

The names on this page are public. Everything else in the package is private by convention and may change.
`import ping_llm` imports nothing else: each name is imported when it is first used. Where a name needs
more than `pip install ping-llm`, it says so; [dependencies](dependencies.md) has the details.

This page is made from the docstrings by `scripts/api_docs.py`.
"""

#: Names by section, in the order of the work; types that are only returned follow the calls.
_SECTIONS = {
    "Ask": (
        "load",
        "Model",
        "connect",
        "Remote",
        "addresses",
        "Question",
        "Context",
        "RttAnswer",
        "RttDistribution",
    ),
    "Watch": ("Watcher", "WatchOptions"),
    "Data": ("read", "Measurements", "Measurement", "ingest", "split", "Splits", "build_rows", "Batches"),
    "Train and evaluate": ("fit", "train", "evaluate"),
    "Errors": ("PingError", "UsageError"),
}

#: Methods that only the package itself calls; they are left out.
_INTERNAL = {
    "Model": {"load", "knows_unnamed_sources", "prompts", "distributions", "scorer"},
    "Batches": {"current_unit", "skip_unit", "units", "plans"},
    "Question": {"seconds"},
    "WatchOptions": {"as_json"},
    "Context": {"seconds"},
    "RttDistribution": {"of_mass", "mass", "typical"},
}

_PART = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")


def render() -> str:
    """Return the whole page."""
    listed = {name for names in _SECTIONS.values() for name in names} | {"__version__"}
    assert listed == set(ping_llm.__all__), listed ^ set(ping_llm.__all__)
    lines = [_HEAD]
    for title, names in _SECTIONS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _entry(name, getattr(ping_llm, name))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, found: Any) -> list[str]:
    if not inspect.isclass(found):
        return [f"### ping_llm.{name}{_signature(found)}\n", *_text(found.__doc__)]
    made_by_hand = dataclasses.is_dataclass(found) and name == "Measurement"
    lines = [f"### ping_llm.{name}{_signature(found) if made_by_hand else ''}\n", *_text(found.__doc__)]
    for member, value in _members(found):
        if member.startswith("_") or member in _INTERNAL.get(name, ()):
            continue
        function = value.__func__ if isinstance(value, classmethod) else value
        if isinstance(value, property) and value.__doc__:
            lines += [f"**`.{member}`**\n", *_text(value.__doc__)]
        elif inspect.isfunction(function) and function.__doc__:
            owner = name if isinstance(value, classmethod) else ""
            lines += [f"**`{owner}.{member}{_signature(function)}`**\n", *_text(function.__doc__)]
    return lines


def _members(found: type) -> list[tuple[str, Any]]:
    """Return the members of a class and of its base classes in this package."""
    ours = [each for each in found.__mro__ if each.__module__.startswith("ping_llm.")]
    return [member for each in ours for member in vars(each).items()]


def _signature(function: Any) -> str:
    """Return names and defaults; types are in the source, for the editor."""
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        parameter = parameter.replace(annotation=inspect.Parameter.empty)
        if inspect.isfunction(parameter.default):
            parameter = parameter.replace(default=_Dots())
        parameters.append(parameter)
    return str(inspect.Signature(parameters))


class _Dots:
    """Placeholder for a function, whose repr contains a memory address."""

    def __repr__(self) -> str:
        return "…"


def _text(doc: str | None) -> list[str]:
    """Convert a Google-style docstring to Markdown: its parts become lists."""
    out: list[str] = []
    part, item, first = "", "", 0
    for line in [*inspect.cleandoc(doc or "").splitlines(), ""]:
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        # A line that is indented more than the first item of its part continues an item.
        if item and content and indent > first:
            item += " " + content
            continue
        if item:
            out.append(_item(part, item))
            item = ""
        if found := _PART.match(line):
            part = found[1]
            out += [f"{part}:", ""]
        elif indent and part:
            item, first = content, indent
        elif content or (out and out[-1]):
            part = part if not content else ""
            out.append(content)
    return out


def _item(part: str, item: str) -> str:
    name, colon, rest = item.partition(": ")
    if colon and part in ("Args", "Attributes", "Raises"):
        item = f"`{name}`: {rest}"
    return textwrap.fill(item, 98, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
