"""Report of a training as one HTML page."""

import base64
import html
import io
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError
from ping_llm.files import write_text
from ping_llm.pages import document, tidy_figure
from ping_llm.train import pipeline, records, runs

#: Largest number of points of a curve; each is the mean of a range of steps.
_POINTS = 400


def write(run: Path, out: Path) -> Path:
    """Write the page of a run, finished or not."""
    about = runs.read(run)
    if not about:
        raise PingError(f"{run} is no run: `ping-llm runs` lists those in runs/")
    made = list(records.read(run / "metrics.jsonl"))
    train = [record for record in made if record["kind"] == "train"]
    evals = [record for record in made if record["kind"] == "eval"]
    if not train:
        raise PingError(f"{run} has no record of a step in {run / 'metrics.jsonl'}")
    body = [
        f"<h1>{html.escape(str(about.get('name', run.name)))}</h1>",
        f'<p class="note">{html.escape(_standing(run, train, evals))}</p>',
        "<h2>Loss by field</h2>",
        "<p>Bits per measurement, averaged over stretches of steps; dots are evaluations.</p>",
        _picture("loss by field", lambda axes: _draw_bits(axes, train, evals)),
        _fields(train, evals),
        *_samples(list(records.read(run / "samples.jsonl"))),
        "<h2>Speed and waiting</h2>",
        _picture("tokens per second", lambda axes: _draw_speed(axes, train)),
        _picture("share of time waiting for data", lambda axes: _draw_waiting(axes, train)),
        _pipeline(train),
        "<h2>Command and environment</h2>",
        f"<pre>{html.escape(_command(run, about))}</pre>",
        _table([(name, _text(about.get(name))) for name in _SHOWN if about.get(name) is not None]),
        _config(run),
    ]
    write_text(out, document(f"training {run.name}", "\n".join(body)))
    return out


_SHOWN = (
    "environment", "steps", "parameters", "processes", "process", "data", "teacher", "created", "updated",
    "state", "message",
)  # fmt: skip


def _command(run: Path, about: dict[str, Any]) -> str:
    """The command that began the training; folders are those of run.json, not as they were given."""
    words = ["ping-llm", "train", str(about.get("config", "CONFIG")), *about.get("overrides", [])]
    words += ["--rows", str(about["data"]["rows"])] if about.get("data") else []
    words += ["--teacher", str(about["teacher"]["path"])] if about.get("teacher") else []
    words += ["--minutes", str(about["minutes"])] if about.get("minutes") is not None else []
    return shlex.join([*words, "--run", str(run)])


def _standing(run: Path, train: list[dict[str, Any]], evals: list[dict[str, Any]]) -> str:
    stands = runs.standing(run)
    seconds = sum(record["seconds"] for record in train)
    waited = sum(record["data_wait_s"] for record in train)
    tokens = sum(record["tokens"] for record in train)
    parts = [
        f"{stands.state}, {stands.step:,}" + (f" of {stands.steps:,}" if stands.steps else "") + " steps",
        f"{tokens / 1e6:,.1f} million tokens in {seconds / 60:,.1f} minutes",
        f"waited for data {100 * waited / max(seconds, 1e-9):.1f} %",
        f"last loss {train[-1]['loss']:.4f}",
    ]
    if evals:
        parts.append(f"last evaluation {evals[-1]['loss']:.4f}")
    return " · ".join(parts)


def _stretches(train: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    # The first step is mostly compiling.
    later = train[1:] or train
    size = -(-len(later) // _POINTS)
    return [later[at : at + size] for at in range(0, len(later), size)]


def _draw_bits(axes: Any, train: list[dict[str, Any]], evals: list[dict[str, Any]]) -> None:
    stretches = _stretches(train)
    for index, name in enumerate(_names(train)):
        steps = [stretch[-1]["step"] for stretch in stretches]
        values = [sum(record["bits"].get(name, 0.0) for record in part) / len(part) for part in stretches]
        axes.plot(steps, values, color=f"C{index}", label=name)
        axes.plot(
            [r["step"] for r in evals], [r["bits"].get(name, 0.0) for r in evals], "o", color=f"C{index}"
        )
    axes.set_ylabel("bits per measurement")
    axes.legend()


def _names(train: list[dict[str, Any]]) -> list[str]:
    """Names of the fields that occur in the data."""
    return [name for name in train[-1]["bits"] if any(record["bits"].get(name) for record in train)]


def _draw_speed(axes: Any, train: list[dict[str, Any]]) -> None:
    stretches = _stretches(train)
    rates = [
        sum(r["tokens"] for r in part) / max(sum(r["seconds"] for r in part), 1e-9) for part in stretches
    ]
    axes.plot([part[-1]["step"] for part in stretches], rates)
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)


def _draw_waiting(axes: Any, train: list[dict[str, Any]]) -> None:
    stretches = _stretches(train)
    shares = [
        100 * sum(r["data_wait_s"] for r in part) / max(sum(r["seconds"] for r in part), 1e-9)
        for part in stretches
    ]
    axes.plot([part[-1]["step"] for part in stretches], shares)
    axes.set_ylabel("waiting for data, %")
    axes.set_ylim(bottom=0)


def _fields(train: list[dict[str, Any]], evals: list[dict[str, Any]]) -> str:
    head = ["field", "first step", "last step", *(["last evaluation"] if evals else [])]
    rows = []
    for name in _names(train):
        values = [record["bits"].get(name, 0.0) for record in (train[0], train[-1], *evals[-1:])]
        rows.append((name, *(f"{value:.2f}" for value in values)))
    return _table(rows, head)


#: Largest number of steps whose samples are in the table; the picture has all.
_COLUMNS = 6


def _samples(samples: list[dict[str, Any]]) -> list[str]:
    """The answers to the same questions at several steps."""
    if not samples:
        return []
    shown = [samples[round(at * (len(samples) - 1) / (_COLUMNS - 1))] for at in range(_COLUMNS)]
    shown = [each for index, each in enumerate(shown) if each not in shown[:index]]
    head = ["question", "measurements before", "measured", *(f"step {each['step'] + 1:,}" for each in shown)]
    rows = []
    for index, asked in enumerate(samples[0]["answers"]):
        answers = [each["answers"][index] for each in shown]
        cells = [f"{one['median']:.4g} ({one['low']:.4g}–{one['high']:.4g})" for one in answers]
        rows.append((asked["asked"], str(asked["known"]), f"{asked['rtt']:.4g}", *cells))
    return [
        "<h2>What it learned</h2>",
        "<p>The same questions, answered while it was trained: median and 80 % interval of the RTT in ms. "
        "The picture has the ratio of the median to the measured RTT.</p>",
        _picture("answers over time", lambda axes: _draw_samples(axes, samples)),
        _table(rows, head),
    ]


def _draw_samples(axes: Any, samples: list[dict[str, Any]]) -> None:
    steps = [each["step"] + 1 for each in samples]
    for index, asked in enumerate(samples[0]["answers"]):
        true = max(asked["rtt"], 0.01)
        answers = [each["answers"][index] for each in samples]
        low, median, high = (
            [max(one[name], 0.01) / true for one in answers] for name in ("low", "median", "high")
        )
        axes.plot(steps, median, color=f"C{index}", label=f"question {index + 1}")
        axes.fill_between(steps, low, high, color=f"C{index}", alpha=0.08)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("median / measured")
    axes.legend()


def _pipeline(train: list[dict[str, Any]]) -> str:
    views = [(record["step"], record["pipeline"]) for record in train if "pipeline" in record]
    if not views:
        return "<p>The training was too short for a view of its pipeline.</p>"
    step, last = views[-1]
    text = html.escape("\n".join(pipeline.lines(last)))
    counts: dict[str, int] = {}
    for _, view in views:
        counts[view["bottleneck"]] = counts.get(view["bottleneck"], 0) + 1
    said = ", ".join(f"{name} {count:,}×" for name, count in sorted(counts.items(), key=lambda one: -one[1]))
    return f"<p>Bottleneck, by view: {said}. The last view, at step {step + 1:,}:</p><pre>{text}</pre>"


def _config(run: Path) -> str:
    path = run / "config.yml"
    if not path.is_file():
        return ""
    return f"<h3>config.yml</h3><pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values) + "</tr>"

    lines = ([cells("th", head)] if head else []) + [cells("td", row) for row in rows]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _picture(name: str, draw: Callable[[Any], None]) -> str:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    draw(axes)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    tidy_figure(figure)
    held = io.BytesIO()
    figure.savefig(held, dpi=100, format="png")
    plt.close(figure)
    data = base64.b64encode(held.getvalue()).decode()
    return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'
