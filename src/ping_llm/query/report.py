"""Scores of a file on stdout, as they come."""

import heapq
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.addresses import unpack_one
from ping_llm.progress import Progress
from ping_llm.query.context import Context, Question
from ping_llm.query.files import Columns, read_batches, to_columns
from ping_llm.query.score import NAMES, Scored
from ping_llm.schema import NO_REPLY
from ping_llm.tables import print_json, table
from ping_llm.tokens.statement import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ping_llm.query.model import Model

_RESULT = NAMES.index("result")
#: Of a strange result, between these the model expected it.
_EXPECTED = (0.05, 0.5, 0.95)
_NEEDS = ("src_addr", "dst_addr", "rtt")


def scored(model: "Model", path: Path, limit: int | None = None) -> "Iterator[Scored]":
    """The scores of a file, part by part, in bounded memory."""
    scorer = model.scorer()
    row = 0
    with Progress("measurements", limit) as progress:
        for batch in read_batches(path):
            if limit is not None:
                batch = batch.slice(0, limit - row)
            for scores in scorer.add(to_columns(batch, path, needs=_NEEDS, first=row)):
                progress.advance(len(scores.row))
                yield scores
            row += batch.num_rows
            if row == limit:
                return


def print_scores(model: "Model", path: Path, limit: int | None, as_json: bool) -> None:
    """With JSON one line a measurement; otherwise the mean bits of each field."""
    count, known, sums = 0, 0, np.zeros(len(NAMES))
    for scores in scored(model, path, limit):
        count += len(scores.row)
        known += int(scores.known.sum())
        sums += scores.bits.sum(axis=0)
        if as_json:
            for place in range(len(scores.row)):
                print(json.dumps(_values(scores, place)))
    if not as_json:
        means = sums / max(count, 1)
        rows: list[tuple[str, float]] = [(name, float(bits)) for name, bits in zip(NAMES, means, strict=True)]
        print(table([*rows, ("all", float(means.sum()))], ("field", "bits")))
        print(f"{count:,} measurements, each told after {known / max(count, 1):.1f} others of its source")


def print_anomalies(model: "Model", path: Path, count: int, limit: int | None, as_json: bool) -> None:
    """The results that cost the most bits, with what was expected instead."""
    heap: list[tuple[float, int, dict[str, Any], Question]] = []
    for scores in scored(model, path, limit):
        past = _Past(scores)
        for place in np.argsort(-scores.bits[:, _RESULT])[:count].tolist():
            bits = float(scores.bits[place, _RESULT])
            if len(heap) < count or bits > heap[0][0]:
                item = (bits, int(scores.row[place]), _values(scores, place), past.question(place))
                (heapq.heappush if len(heap) < count else heapq.heapreplace)(heap, item)
    strangest = sorted(heap, key=lambda item: -item[0])
    out = []
    expected = model.rtt_scores([item[3] for item in strangest], None, _EXPECTED) if strangest else None
    for place, (_, _, values, _) in enumerate(strangest):
        assert expected is not None
        low, median, high = (float(value) for value in expected.quantiles[place])
        values["expected"] = {
            "failure": float(expected.failure[place]),
            "ms": {"0.05": low, "0.5": median, "0.95": high},
        }
        out.append(values)
    if as_json:
        print_json(out)
        return
    header = ("row", "time", "source", "destination", "result", "bits", "expected 5 % – 95 %", "no reply")
    rows = [
        (
            v["row"],
            v["event_time"] or "",
            v["src_addr"],
            v["dst_addr"],
            "no reply" if v["rtt"] == NO_REPLY else f"{v['rtt']:.1f} ms",
            v["bits"]["result"],
            f"{v['expected']['ms']['0.05']:.1f} – {v['expected']['ms']['0.95']:.1f} ms",
            f"{100 * v['expected']['failure']:.1f} %",
        )
        for v in out
    ]
    print(table(rows, header))


class _Past:
    """Questions about scored measurements, in the light of those of the same part that came before."""

    def __init__(self, scores: Scored):
        self._columns: Columns = scores.columns

    def question(self, place: int) -> Question:
        c = self._columns
        same = np.flatnonzero((c.src[:place] == c.src[place]).all(axis=1))[-64:]
        context = Context.of(c.src[place], c.dst[same], c.time[same], c.rtt[same])
        seconds = int(c.time[place] // 1_000_000) if c.time[place] >= 0 else None
        return Question(whole(c.src[place].tobytes()), whole(c.dst[place].tobytes()), seconds, context)


def _values(scores: Scored, place: int) -> dict[str, Any]:
    c = scores.columns
    time = int(c.time[place])
    return {
        "row": int(scores.row[place]),
        "event_time": None if time < 0 else f"{datetime.fromtimestamp(time / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "src_addr": unpack_one(c.src[place].tobytes()),
        "dst_addr": unpack_one(c.dst[place].tobytes()),
        "rtt": float(c.rtt[place]),
        "known": int(scores.known[place]),
        "bits": dict(zip(NAMES, (float(bits) for bits in scores.bits[place]), strict=True))
        | {"total": float(scores.bits[place].sum())},
    }
