"""Lists of commands on help screens: whole sentences, and the commands of the program by section."""

import sys
from typing import Any

from typer.core import TyperGroup

#: The commands of the program, in the order of the work.
SECTIONS = {
    "Start": ("doctor", "demo"),
    "Data": (
        "fetch", "simulate", "ingest", "rejects", "split", "describe", "sample",
        "rows", "tokens", "batches", "pretokenize",
    ),
    "Models": ("fit", "calibrate", "train", "runs", "export", "evaluate", "compare"),
    "Answers": ("query", "rank", "explain", "matrix", "plan"),
    "Operation": ("watch", "serve", "mcp"),
    "Speed": ("bench",),
}  # fmt: skip


class Listing(TyperGroup):
    """A group that lists its commands under "Commands". Long sentences wrap; Click would cut them."""

    sections: dict[str, tuple[str, ...]] | None = None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in (self.sections or {"Commands": tuple(self.list_commands(ctx))}).items():
            with formatter.section(title):
                width = max(map(len, self.list_commands(ctx)))
                formatter.write_dl([(name.ljust(width), self._sentence(name)) for name in names])

    def _sentence(self, name: str) -> str:
        return self.commands[name].get_short_help_str(limit=sys.maxsize)


class Program(Listing):
    sections = SECTIONS
