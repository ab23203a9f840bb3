"""Output of `query score`: bits of every field, calibrated scores of results, and anomalies.

A calibrated score compares a result with the answer to its question: the RTT of this pair at this time,
given earlier measurements in the same file and in the run's own data.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.answer import network
from ping_llm.answer.context import Question
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.files import Given, read_columns, to_columns
from ping_llm.answer.pictures import anomalies_picture, scores_picture
from ping_llm.answer.questions import NAMES as KIND_NAMES
from ping_llm.answer.score import NAMES, Scored
from ping_llm.answer.stack import CHUNK, joined
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import hashed
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.measurements.times import moment_text
from ping_llm.progress import Progress
from ping_llm.tables import print_json, table
from ping_llm.tokens.statement import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ping_llm.answer.model import Model


@dataclass(frozen=True)
class Results:
    """Results of a file and their predicted distributions.

    Attributes:
      row: int64 [n], row of each result in the file.
      kind: kind of each question; "" without a stack.
    """

    row: np.ndarray
    rtt: np.ndarray
    expected: RttDistributions
    kind: list[str]

    @property
    def bits(self) -> np.ndarray:
        """Bits of the millisecond bin of each result."""
        return self.expected.bits(self.rtt)

    @property
    def tail(self) -> np.ndarray:
        """Two-sided tail probability of each RTT, or P(no reply) of a failure."""
        below = self.expected.cdf(np.maximum(self.rtt, 0.0))
        return np.where(
            self.rtt < 0, self.expected.failure, np.minimum(1.0, 2 * np.minimum(below, 1 - below))
        )


def results(model: "Model", measured: Columns, rows: np.ndarray | None = None) -> Iterator[Results]:
    """Compare results with the run's answers, in batches; without a stack, with those of the network alone.

    Args:
      measured: measurements of a file; unknown times are -1.
      rows: indices of the measurements to compare; all by default.
    """
    history = History(_joined(_known(model, measured), measured))
    rows = np.arange(len(measured)) if rows is None else rows
    for start in range(0, len(rows), CHUNK):
        chosen = rows[start : start + CHUNK]
        asked = measured.take(chosen)
        queries = asked.queries()
        if model.stack is None:
            bare = network.curves(model, queries, history).distributions()
            yield Results(chosen, asked.rtt, bare, [""] * len(chosen))
            continue
        parts = list(model.stacks(queries.time))
        made = joined([stack.answer(model, queries.take(some), history) for some, stack in parts])
        back = np.argsort(np.concatenate([some for some, _ in parts]))
        kinds = [KIND_NAMES[kind] for kind in made.evidence.kind[back]]
        yield Results(chosen, asked.rtt, made.distributions.take(back), kinds)


def _known(model: "Model", every: Columns) -> Columns:
    """Measurements of the file's sources in the run's data."""
    if model.data is None or not len(every):
        return Columns.empty()
    _, first = np.unique(hashed(every.src), return_index=True)
    asked = [Question(whole(every.src[index].tobytes())) for index in first.tolist()]
    return model.data.history(asked).columns


def _joined(known: Columns, measured: Columns) -> Columns:
    """Concatenate both without duplicates, because a file may be a part of the data."""
    both = Columns.concatenate([known, measured])
    times = np.stack([both.time, both.rtt.view(np.int64)], axis=1).view(np.uint8).reshape(len(both), -1)
    keys = hashed(np.concatenate([both.src, both.dst, times], axis=1))
    return both.take(np.sort(np.unique(keys, return_index=True)[1]))


_RESULT = NAMES.index("result")
#: Levels of the predicted quantiles.
_EXPECTED = (0.05, 0.5, 0.95)
#: Number of candidates per requested anomaly.
_CANDIDATES = 8
NEEDS = ("src_addr", "dst_addr", "rtt")
#: Largest number of results that are also listed one by one.
_MOST_SHOWN = 20


def scored(model: "Model", path: Path, limit: int | None = None) -> "Iterator[Scored]":
    """Score a file part by part, in bounded memory."""
    scorer = model.scorer()
    row = 0
    with Progress("measurements", limit) as progress:
        for batch, place in Given(path, NEEDS):
            if limit is not None:
                batch = batch.slice(0, limit - row)
            part = to_columns(batch, place, needs=NEEDS, optional=model.optional_columns)
            for scores in scorer.add(part):
                progress.advance(len(scores.row))
                yield scores
            row += batch.num_rows
            if row == limit:
                return


def print_scores(
    model: "Model", path: Path, limit: int | None, as_json: bool, png: Path | None = None
) -> None:
    """Print raw bits by field: with JSON one line per measurement, otherwise their means."""
    count, known, sums = 0, 0, np.zeros(len(NAMES))
    names = model.scorer().names
    results: list[np.ndarray] = []
    for scores in scored(model, path, limit):
        count += len(scores.row)
        known += int(scores.known.sum())
        sums += scores.bits.sum(axis=0)
        if png is not None:
            results.append(scores.bits[:, _RESULT])
        if as_json:
            for place in range(len(scores.row)):
                print(json.dumps(_values(scores, place, names)))
    if png is not None:
        scores_picture(np.concatenate(results) if results else np.zeros(0), path.name, png)
    if not as_json:
        means = sums / max(count, 1)
        rows = [*((name, means[NAMES.index(name)]) for name in names), ("all", means.sum())]
        print(table([(name, f"{bits:6.2f}") for name, bits in rows], ("field", "  bits")))
        print(f"{count:,} measurements, each shown after {known / max(count, 1):.1f} others of its source")


def print_results(
    model: "Model", path: Path, limit: int | None, as_json: bool, png: Path | None = None
) -> None:
    """Print bits and tail probabilities of the results: a summary, or with JSON one line per measurement."""
    measured = read_columns(path, needs=NEEDS, limit=limit, optional=model.optional_columns)
    bits, tails = [np.zeros(0)], [np.zeros(0)]
    shown: list[dict[str, Any]] = []
    with Progress("measurements", len(measured)) as progress:
        for part in results(model, measured):
            bits.append(part.bits)
            tails.append(part.tail)
            if len(measured) <= _MOST_SHOWN:
                shown += [result_values(measured, part, place) for place in range(len(part.row))]
            if as_json:
                for place in range(len(part.row)):
                    print(json.dumps(result_values(measured, part, place)))
            progress.advance(len(part.row))
    cost, tail = np.concatenate(bits), np.concatenate(tails)
    if png is not None:
        scores_picture(cost, path.name, png)
    if not as_json and len(cost):
        rows = [
            ("mean bits per result", f"{cost.mean():.2f}"),
            ("results outside their 90 % interval (10 % expected)", f"{100 * (tail < 0.1).mean():.1f} %"),
            ("results outside their 99 % interval (1 % expected)", f"{100 * (tail < 0.01).mean():.2f} %"),
        ]
        print(table(rows, (f"{len(cost):,} measurements", "")))
        if shown:
            print("\n" + _results_table(shown))


def print_anomalies(
    model: "Model",
    path: Path,
    count: int | None,
    limit: int | None,
    as_json: bool,
    png: Path | None = None,
    above: float | None = None,
) -> None:
    """Print the results with the most bits of their millisecond bin, and their predicted distributions.

    Raw bits of all results select the candidates, because they are cheap; calibrated answers rank them. With
    `above`, all results are compared with their answers, and those outside the central interval with this
    probability are listed.
    """
    measured = read_columns(path, needs=NEEDS, limit=limit, optional=model.optional_columns)
    rows = np.arange(len(measured))
    candidates = max(_CANDIDATES * (count or 0), 64)
    if above is None and count is not None and len(rows) > candidates and model.knows_addresses:
        raw = np.zeros(len(rows))
        for scores in scored(model, path, limit):
            raw[scores.row] = scores.bits[:, _RESULT]
        rows = np.sort(np.argsort(-raw, kind="stable")[:candidates])
    found = []
    with Progress("measurements", len(rows)) as progress:
        for part in results(model, measured, rows):
            chosen = range(len(part.row)) if above is None else np.flatnonzero(part.tail < 1 - above).tolist()
            found += [result_values(measured, part, place) for place in chosen]
            progress.advance(len(part.row))
    out = sorted(found, key=lambda values: -values["bits"])[:count]
    if png is not None:
        anomalies_picture(out, path.name, png)
    if as_json:
        print_json(out)
        return
    if above is not None:
        share = f"{len(found):,} of {len(measured):,} results are outside their {100 * above:g} % interval"
        print(f"{share} ({100 * (1 - above):.2g} % expected)")
    if out:
        print(_results_table(out))


def _results_table(several: list[dict[str, Any]]) -> str:
    header = (
        "row",
        "time",
        "source",
        "destination",
        "result",
        "bits",
        "tail",
        "expected 5 % – 95 %",
        "no reply",
    )
    rows = [
        (
            v["row"],
            v["event_time"] or "",
            v["src_addr"],
            v["dst_addr"],
            "no reply" if v["rtt"] == NO_REPLY else f"{v['rtt']:.1f} ms",
            f"{v['bits']:.1f}",
            f"{100 * v['tail']:.2g} %",
            f"{v['expected']['0.05']:.1f} – {v['expected']['0.95']:.1f} ms",
            f"{100 * v['failure']:.1f} %",
        )
        for v in several
    ]
    legend = "tail: the probability of a result that is at least as far out"
    return f"{table(rows, header)}\n{legend}"


def result_values(measured: Columns, part: Results, place: int) -> dict[str, Any]:
    row = int(part.row[place])
    expected = part.expected[place]
    rtt = float(part.rtt[place])
    return _ends(measured, row) | {
        "row": row,
        "rtt": rtt,
        "bits": expected.bits(rtt),
        "tail": expected.tail(rtt),
        "failure": expected.failure,
        "point": expected.point,
        "expected": {f"{level:g}": float(expected.quantile(level)) for level in _EXPECTED},
        "kind": part.kind[place],
    }


def _ends(columns: Columns, place: int) -> dict[str, Any]:
    time = int(columns.time[place])
    return {
        "event_time": None if time < 0 else moment_text(time),
        "src_addr": unpack_one(columns.src[place].tobytes()),
        "dst_addr": unpack_one(columns.dst[place].tobytes()),
    }


def _values(scores: Scored, place: int, names: Sequence[str]) -> dict[str, Any]:
    return _ends(scores.columns, place) | {
        "row": int(scores.row[place]),
        "rtt": float(scores.columns.rtt[place]),
        "known": int(scores.known[place]),
        "bits": {name: float(scores.bits[place, NAMES.index(name)]) for name in names}
        | {"total": float(scores.bits[place].sum())},
    }
