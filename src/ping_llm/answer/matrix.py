"""A latency matrix, sources × destinations, made row by row.

OUT/matrix.json      the request; a second start with the same request resumes
    rows/*.parquet   one complete file per source
    matrix.parquet   all rows, source by source, written when every row is done

Memory holds the answers of one source. The other formats (CSV, netem commands, JSON for simulators) are
written from matrix.parquet, row group by row group.
"""

import base64
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ping_llm.answer.answering import RttAnswer
from ping_llm.answer.conditions import Conditions, Given
from ping_llm.answer.context import Question
from ping_llm.errors import UsageError
from ping_llm.files import whole_file, write_json, write_text
from ping_llm.locks import only_writer
from ping_llm.pages import document
from ping_llm.progress import Progress

#: Levels of the quantiles of the RTT given a reply: enough to sample from. The middle one is the median.
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
_NAMES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)

_SCHEMA = pa.schema(
    [("src", pa.string()), ("dst", pa.string()), ("no_reply", pa.float64()), ("point", pa.float64())]
    + [(name, pa.float64()) for name in _NAMES]
    + [("pair_measurements", pa.int64()), ("kind", pa.string())]
)


#: Function that answers questions: `rtt_stream` of a run or of a simple method.
Ask = Callable[[Sequence[Question]], Iterator[tuple[int, RttAnswer]]]


def matrix(
    ask: Ask,
    sources: Sequence[str],
    destinations: Sequence[str],
    out: Path,
    *,
    at: str | None = None,
    origin: str = "",
    conditions: Given = None,
) -> Path:
    """Answer every pair of one IP version, and return OUT/matrix.parquet.

    Args:
      sources, destinations: addresses or prefixes.
      origin: name of the model that answers, to check that a second start is for the same request.
      conditions: as for `Model.rtt`, the same for every pair.
    """
    for words, given in (("source", sources), ("destination", destinations)):
        if not given:
            raise UsageError(f"matrix needs at least one {words}")
        twice = [name for name, count in Counter(given).items() if count > 1]
        if twice:
            raise UsageError(f"the {words} {twice[0]} is listed twice")
        for end in given:
            Question.of(end)
    asked: dict[str, Any] = {"sources": list(sources), "destinations": list(destinations)}
    asked |= {"at": at, "origin": origin}
    stated = Conditions.of(conditions)
    if stated:
        asked["conditions"] = stated.stated
    table = out / "matrix.parquet"
    with only_writer(out, "matrix"):
        saved, first = out / "matrix.json", None
        if saved.exists():
            if json.loads(saved.read_text(encoding="utf-8")) != asked:
                raise UsageError(
                    f"{out} has the matrix of another request or run: give another folder as --out"
                )
        elif any(path.name != ".lock" for path in out.iterdir()):
            raise UsageError(f"{out} is not empty and has no matrix: give an empty or new folder as --out")
        else:
            # Before anything is written, so that an invalid request leaves no files.
            first = _row(ask, sources[0], destinations, at, stated)
        write_json(saved, asked)
        rows = out / "rows"
        rows.mkdir(exist_ok=True)
        with Progress("pairs", len(sources) * len(destinations)) as progress:
            for number, src in enumerate(sources):
                path = rows / f"{number:06d}.parquet"
                if not path.exists():
                    with whole_file(path) as aside:
                        row = _row(ask, src, destinations, at, stated) if first is None else first
                        pq.write_table(row, aside)
                        first = None
                progress.advance(len(destinations))
        _join([rows / f"{number:06d}.parquet" for number in range(len(sources))], table)
    return table


def _row(ask: Ask, src: str, destinations: Sequence[str], at: str | None, given: Conditions) -> pa.Table:
    """Table of the answers of one source; destinations of the other IP version are left out."""
    questions = []
    version = Question.of(src).src.version
    for dst in destinations:
        if Question.of(dst).src.version == version:
            questions.append(Question.of(src, dst, at, conditions=given))
    answers: list[RttAnswer | None] = [None] * len(questions)
    for index, answer in ask(questions):
        answers[index] = answer
    done = [answer for answer in answers if answer is not None]
    quantiles = np.array([answer.distribution.quantile(LEVELS) for answer in done]).reshape(-1, len(LEVELS))
    columns: dict[str, Any] = {
        "src": [str(answer.question.src) for answer in done],
        "dst": [str(answer.question.dst) for answer in done],
        "no_reply": [answer.failure for answer in done],
        "point": [answer.distribution.point for answer in done],
    }
    columns |= {name: quantiles[:, number] for number, name in enumerate(_NAMES)}
    columns["pair_measurements"] = [answer.rests_on.get("pair_measurements", 0) for answer in done]
    columns["kind"] = [answer.rests_on.get("kind", "") for answer in done]
    return pa.table(columns, schema=_SCHEMA)


def _join(parts: Iterable[Path], table: Path) -> None:
    with whole_file(table) as aside, pq.ParquetWriter(aside, _SCHEMA) as writer:
        for part in parts:
            writer.write_table(pq.read_table(part))


def write_csv(table: Path, path: Path) -> None:
    """Write the matrix as CSV, one pair per line: RTTs in ms with three decimals, probabilities with five."""
    with whole_file(path) as aside, pa.csv.CSVWriter(aside, _SCHEMA) as writer:
        for batch in pq.ParquetFile(table).iter_batches():
            for place, field in enumerate(_SCHEMA):
                if pa.types.is_floating(field.type):
                    rounded = pc.round(batch.column(place), 5 if field.name == "no_reply" else 3)
                    batch = batch.set_column(place, field, rounded)
            writer.write_batch(batch)


def write_netem(table: Path, path: Path, device: str = "eth0") -> None:
    """Write a shell script of `tc` commands that emulate the matrix, one case per source host.

    The sending host delays packets by the whole round trip: the median, with (q75 - q25) / 1.35 as standard
    deviation of netem's normal distribution. It drops the share that gets no reply.
    """
    device = shlex.quote(device)
    with whole_file(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.write(
            '#!/bin/sh\n# Usage: sh FILE SOURCE, as root, on the host that plays SOURCE.\ncase "$1" in\n'
        )
        for src, rows in _by_source(table):
            file.write(f"{shlex.quote(src)})\n  tc qdisc replace dev {device} root handle 1: htb\n")
            for number, row in enumerate(rows, 1):
                deviation = max((row["q75"] - row["q25"]) / 1.35, 0.0)
                protocol, match = ("ipv6", "ip6") if ":" in row["dst"] else ("ip", "ip")
                file.write(
                    f"  tc class add dev {device} parent 1: classid 1:{number:x} htb rate 10gbit\n"
                    f"  tc qdisc add dev {device} parent 1:{number:x} netem limit 100000 "
                    f"delay {row['q50']:.3f}ms {deviation:.3f}ms distribution normal "
                    f"loss {100 * row['no_reply']:.3f}%\n"
                    f"  tc filter add dev {device} parent 1: protocol {protocol} u32 "
                    f"match {match} dst {row['dst']} flowid 1:{number:x}\n"
                )
            file.write("  ;;\n")
        file.write('*) echo "not in this matrix: $1" >&2; exit 2 ;;\nesac\n')


def write_simulator(table: Path, path: Path) -> None:
    """Write JSON for network simulators: per pair P(no reply) and quantiles of the RTT in ms."""
    with whole_file(path) as aside, aside.open("w", encoding="utf-8") as file:
        head = {"format": "ping-llm latency matrix", "version": 1, "unit": "ms", "levels": list(LEVELS)}
        file.write(json.dumps(head)[:-1] + ', "pairs": [')
        first = True
        for src, rows in _by_source(table):
            for row in rows:
                pair = {
                    "src": src,
                    "dst": row["dst"],
                    "no_reply": row["no_reply"],
                    "rtt": [round(row[name], 4) for name in _NAMES],
                }
                file.write(("\n" if first else ",\n") + json.dumps(pair))
                first = False
        file.write("\n]}\n")


def _by_source(table: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    file = pq.ParquetFile(table)
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group).to_pylist()
        if rows:
            yield rows[0]["src"], rows


def medians(table: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Read sources, destinations and medians [sources, destinations]; NaN where there is no pair."""
    columns = pq.read_table(table, columns=["src", "dst", "q50"], read_dictionary=["src", "dst"])
    ends = [columns[name].unify_dictionaries().combine_chunks() for name in ("src", "dst")]
    names: list[list[str]] = [end.dictionary.to_pylist() for end in ends]
    out = np.full((len(names[0]), len(names[1])), np.nan)
    out[ends[0].indices.to_numpy(), ends[1].indices.to_numpy()] = columns["q50"].to_numpy()
    return names[0], names[1], out


#: Special values of the page's medians, which are 16-bit numbers of tenths of a millisecond: a larger median,
#: and no pair.
_MORE, _NONE = 65_534, 65_535

_STYLE = (
    "canvas { width: 100%; image-rendering: pixelated; border: 1px solid var(--line); cursor: crosshair; }"
)

_SCRIPT = """
const names = NAMES, width = names[1].length, height = names[0].length, most = MOST;
const bytes = Uint8Array.from(atob(document.getElementById("medians").textContent), c => c.charCodeAt(0));
const tenths = new Uint16Array(bytes.buffer), canvas = document.getElementById("map");
canvas.width = width; canvas.height = height; canvas.style.aspectRatio = width + " / " + height;
const context = canvas.getContext("2d"), image = context.createImageData(width, height);
for (let i = 0; i < tenths.length; i++) {
  if (tenths[i] === 65535) continue;
  const x = Math.min(tenths[i] / most, 1);
  const [red, green] = [Math.min(1, .27 + 1.1 * x * x), .05 + .85 * x];
  image.data.set([255 * red, 255 * green, 255 * (.35 + .3 * Math.sin(3.1 * x) - .25 * x * x), 255], 4 * i);
}
context.putImageData(image, 0, 0);
canvas.onmousemove = event => {
  const box = canvas.getBoundingClientRect();
  const column = Math.min(width - 1, Math.floor((event.clientX - box.left) / box.width * width));
  const row = Math.min(height - 1, Math.floor((event.clientY - box.top) / box.height * height));
  const value = tenths[row * width + column];
  const known = value === 65534 ? "more than 6.5 s" : (value / 10).toFixed(1) + " ms";
  const text = value === 65535 ? "no pair" : known;
  document.getElementById("cell").textContent = names[0][row] + " → " + names[1][column] + ": " + text;
};
"""


def write_html(table: Path, path: Path) -> None:
    """Write a page with a heat map of the medians; pointing at a cell shows its pair.

    The page loads no external resources.
    """
    sources, destinations, values = medians(table)
    known = np.isfinite(values)
    tenths = np.where(known, np.minimum(np.round(10 * np.nan_to_num(values)), _MORE), _NONE).astype("<u2")
    # The colour scale ends at the 99 % quantile: with the maximum, one far pair would leave all others dark.
    most = max(float(np.quantile(tenths[known], 0.99)), 1.0) if known.any() else 1.0
    # The names are parsed addresses, so no user text reaches the script.
    script = _SCRIPT.replace("NAMES", json.dumps([sources, destinations])).replace("MOST", f"{most:.0f}")
    body = (
        f"<h1>Latency matrix</h1><p>{len(sources):,} sources (rows) × {len(destinations):,} destinations "
        f"(columns), medians; yellow is {most / 10:,.1f} ms and more.</p>"
        '<p id="cell" class="note">Point at a cell.</p><canvas id="map"></canvas>'
        "<noscript><p>The map needs JavaScript; matrix.parquet has all figures.</p></noscript>"
        f'<script type="text/plain" id="medians">{base64.b64encode(tenths.tobytes()).decode()}</script>'
        f"<script>{script}</script>"
    )
    write_text(path, document("Latency matrix", body, _STYLE))
