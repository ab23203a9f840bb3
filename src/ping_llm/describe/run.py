"""`ping-llm describe`: open, measure, show."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.describe.figures import Figures, measure
from ping_llm.describe.source import SPLITS_KIND, open_source
from ping_llm.progress import Progress
from ping_llm.shards.measurements import connect


@dataclass(frozen=True)
class Description:
    """What is at a path."""

    title: str
    kind: str
    parts: dict[str, Figures]

    def as_json(self) -> dict[str, Any]:
        summaries = {name: figures.summary for name, figures in self.parts.items()}
        head = {"path": self.title, "kind": self.kind}
        if self.kind == SPLITS_KIND:
            return {**head, "splits": summaries}
        return {**head, **summaries["all"]}

    def as_text(self) -> str:
        from ping_llm.describe.text import render

        return render(self.kind, {name: figures.summary for name, figures in self.parts.items()})

    def as_html(self) -> str:
        from ping_llm.describe.page import render

        return render(self.title, self.kind, self.parts)


def describe(
    places: Sequence[str], memory_mb: int = 1_000, threads: int = 2, temporary: Path | None = None
) -> Description:
    """Figures of measurements, of the splits of a sharding, or of raw input.

    Args:
      temporary: folder for what does not fit into memory; the system's own if None.
    """
    with tempfile.TemporaryDirectory(prefix="ping-llm-", dir=temporary) as folder:
        source = open_source(places, Path(folder))
        total = sum(data.rows for data in source.parts.values())
        parts = {}
        with Progress("describe", total, "measurements") as progress:
            for name, data in source.parts.items():
                with connect(memory_mb, threads, Path(folder) / "spill") as connection:
                    parts[name] = measure(connection, data)
                progress.advance(data.rows)
        return Description(" ".join(places), source.kind, parts)
