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
from ping_llm.query.files import read_batches, to_columns
from ping_llm.query.pictures import anomalies_picture, scores_picture
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
#: Looked at more closely for each strange result that is wanted.
_CANDIDATES = 8
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


def print_scores(
    model: "Model", path: Path, limit: int | None, as_json: bool, png: Path | None = None
) -> None:
    """With JSON one line a measurement; otherwise the mean bits of each field."""
    count, known, sums = 0, 0, np.zeros(len(NAMES))
    results: list[np.ndarray] = []
    for scores in scored(model, path, limit):
        count += len(scores.row)
        known += int(scores.known.sum())
        sums += scores.bits.sum(axis=0)
        if png is not None:
            results.append(scores.bits[:, _RESULT])
        if as_json:
            for place in range(len(scores.row)):
                print(json.dumps(_values(scores, place)))
    if png is not None:
        scores_picture(np.concatenate(results) if results else np.zeros(0), path.name, png)
    if not as_json:
        means = sums / max(count, 1)
        rows = [*zip(NAMES, means, strict=True), ("all", means.sum())]
        print(table([(name, f"{bits:6.2f}") for name, bits in rows], ("field", "  bits")))
        print(f"{count:,} measurements, each told after {known / max(count, 1):.1f} others of its source")


def print_anomalies(
    model: "Model", path: Path, count: int, limit: int | None, as_json: bool, png: Path | None = None
) -> None:
    """The results that cost the most bits over their millisecond, with what was expected instead.

    A code's bits depend on how fine the encoding is there (`compact` has 100 codes in the millisecond at
    20 ms, 8 at 250 ms), so they only choose the candidates.
    """
    candidates = max(_CANDIDATES * count, 64)
    heap: list[tuple[float, int, dict[str, Any], Question]] = []
    for scores in scored(model, path, limit):
        for place in np.argsort(-scores.bits[:, _RESULT])[:candidates].tolist():
            bits = float(scores.bits[place, _RESULT])
            if len(heap) < candidates or bits > heap[0][0]:
                item = (bits, int(scores.row[place]), _values(scores, place), _question(scores, place))
                (heapq.heappush if len(heap) < candidates else heapq.heapreplace)(heap, item)
    out = []
    if heap:
        observed = np.array([values["rtt"] for _, _, values, _ in heap])
        expected = model.rtt_scores([question for *_, question in heap], observed, _EXPECTED)
        for place in np.argsort(-expected.bits, kind="stable")[:count].tolist():
            low, median, high = (float(value) for value in expected.quantiles[place])
            out.append(
                heap[place][2]
                | {
                    "bits_over_1_ms": float(expected.bits[place]),
                    "expected": {
                        "failure": float(expected.failure[place]),
                        "ms": {"0.05": low, "0.5": median, "0.95": high},
                    },
                }
            )
    if png is not None:
        anomalies_picture(out, path.name, png)
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
            f"{v['bits_over_1_ms']:.1f}",
            f"{v['expected']['ms']['0.05']:.1f} – {v['expected']['ms']['0.95']:.1f} ms",
            f"{100 * v['expected']['failure']:.1f} %",
        )
        for v in out
    ]
    print(table(rows, header))


def _question(scores: Scored, place: int) -> Question:
    """What the model was asked, and in the light of what, when it scored this measurement."""
    end = int(scores.place[place])
    past = scores.told.take(np.arange(end - int(scores.known[place]), end))
    one = scores.columns.take(np.array([place]))
    context = Context.of(one.src[0], past.dst, past.time, past.rtt)
    seconds = int(one.time[0] // 1_000_000) if one.time[0] >= 0 else None
    return Question(whole(one.src[0].tobytes()), whole(one.dst[0].tobytes()), seconds, context)


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
