"""How often a run's first, first five and first ten completions of an address hold the right one.

A few bytes of the address are known, and the other end; nothing else. The completions are the exact top
ones (best-first search), so this is what `ping-llm query complete` would list.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ping_llm.addresses import Prefix, is_ipv4
from ping_llm.evaluate.columns import Columns
from ping_llm.progress import Progress
from ping_llm.query.model import Model

#: The right address counts if it is among so many.
AT = (1, 5, 10)

#: Known bytes that are asked with, by IP version.
KNOWN_BYTES = {4: (0, 1, 2, 3), 6: (0, 2, 4, 6, 8, 12)}


def exact_matches(
    model: Model, asked: Columns, questions: int, known_bytes: Mapping[int, Sequence[int]] = KNOWN_BYTES
) -> dict:
    """Shares of exact matches, {"dst IPv4": {"questions", "by_known_bytes": {"0": {"at_1", …}, …}}, …}.

    Args:
      asked: measurements whose addresses are asked about, one end at a time.
      questions: of each field and IP version at most, evenly spread.
      known_bytes: how many of the address are given, by IP version.
    """
    out: dict = {}
    jobs = []
    for field in ("src", "dst"):
        for version in (4, 6):
            rows = np.flatnonzero(is_ipv4(asked.src) == (version == 4))
            rows = rows[:: max(1, len(rows) // questions)][:questions] if questions else rows[:0]
            if len(rows):
                jobs.append((field, version, asked.take(rows)))
    total = sum(len(part) * len(known_bytes[version]) for _, version, part in jobs)
    with Progress("completions", total, "searches") as progress:
        for field, version, part in jobs:
            by_known: dict = {}
            for known in known_bytes[version]:
                places = []
                for src, dst in zip(part.src, part.dst, strict=True):
                    places.append(_place(model, src, dst, field, known))
                    progress.advance()
                by_known[str(known)] = {f"at_{at}": float(np.mean([p < at for p in places])) for at in AT}
            out[f"{field} IPv{version}"] = {"questions": len(part), "by_known_bytes": by_known}
    return out


def _place(model: Model, src: np.ndarray, dst: np.ndarray, field: str, known: int) -> int:
    """Where the right address stands among the most probable completions, from 0; max(AT) if it does not."""
    ends = {"src": Prefix.of(src), "dst": Prefix.of(dst)}
    right = ends[field]
    ends[field] = Prefix.of(src if field == "src" else dst, known)
    best = model.complete(ends["src"], ends["dst"], field=field, count=max(AT)).best
    return next((place for place, one in enumerate(best) if one.address == right), max(AT))
