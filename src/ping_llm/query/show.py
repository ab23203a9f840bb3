"""Answers for the eye: numbers, a small histogram of text, a picture."""

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.query.distribution import RttDistribution
from ping_llm.query.model import RttAnswer

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BARS = 14
_WIDTH = 40
_BLOCKS = " ▏▎▍▌▋▊▉█"


def rtt_values(answer: RttAnswer, below: float | None = None) -> dict[str, Any]:
    """What a program reads."""
    distribution, question = answer.distribution, answer.question
    values: dict[str, Any] = {
        "src": str(question.src),
        "dst": str(question.dst),
        "at": None if question.seconds is None else _time(question.seconds),
        "failure": distribution.failure,
        "mean_ms": distribution.mean,
        "quantiles_ms": {f"{level:g}": float(distribution.quantile(level)) for level in LEVELS},
        "context": {"given": answer.context_given, "used": answer.context_used},
        "notes": list(answer.notes),
    }
    if below is not None:
        values["below"] = {"ms": below, "probability": float(distribution.cdf(below))}
    return values


def rtt_text(answer: RttAnswer, below: float | None = None) -> str:
    """What a person reads: the probability of failure, quantiles and a histogram."""
    distribution, question = answer.distribution, answer.question
    when = "" if question.seconds is None else f" at {_time(question.seconds)}"
    lines = [f"{question.src} → {question.dst}{when}"]
    if answer.context_given:
        lines.append(f"in the light of {answer.context_used} measurements")
    lines += [f"note: {note}" for note in answer.notes]
    lines.append(f"no reply   {_percent(distribution.failure)}")
    quantiles = distribution.quantile(LEVELS)
    cells = [f"{100 * level:g} %: {_ms(value)}" for level, value in zip(LEVELS, quantiles, strict=True)]
    lines.append("a reply takes less than")
    lines.append("  " + " · ".join(cells))
    lines.append(f"mean {_ms(distribution.mean)}")
    if below is not None:
        lines.append(f"P(rtt < {below:g} ms) = {_percent(float(distribution.cdf(below)))}")
    return "\n".join([*lines, "", histogram(distribution)])


def histogram(distribution: RttDistribution) -> str:
    """Bars over the central 98 %, evenly spaced where the range is narrow and by ratio where it is wide."""
    edges = _bar_edges(distribution)
    shares = distribution.between(edges[:-1], edges[1:])
    labels = [f"{_ms(low)} – {_ms(high)}" for low, high in itertools.pairwise(edges)]
    width = max(map(len, labels))
    largest = max(shares.max(), 1e-9)
    return "\n".join(
        f"{label.rjust(width)}  {_bar(share / largest)} {_percent(share)}"
        for label, share in zip(labels, shares, strict=True)
    )


def rtt_picture(answer: RttAnswer, path: Path) -> None:
    """Density and distribution function as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    distribution, question = answer.distribution, answer.question
    edges = _bar_edges(distribution, 120)
    shares = distribution.between(edges[:-1], edges[1:])
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    axes.bar(
        edges[:-1], shares / np.diff(edges), np.diff(edges), align="edge", color="#4878a8", label="density"
    )
    axes.set_xlabel("round-trip time (ms)")
    axes.set_ylabel("probability per ms")
    if edges[-1] / max(edges[0], 1e-3) > 30:
        axes.set_xscale("log")
    curve = axes.twinx()
    xs = np.linspace(edges[0], edges[-1], 800)
    curve.plot(xs, distribution.cdf(xs), color="#c05030", label="distribution function")
    curve.set_ylim(0, 1.02)
    curve.set_ylabel("P(rtt < x)")
    for level in (0.05, 0.5, 0.95):
        axes.axvline(float(distribution.quantile(level)), color="0.4", linewidth=0.8, linestyle=":")
    when = "" if question.seconds is None else f", {_time(question.seconds)}"
    axes.set_title(
        f"{question.src} → {question.dst}{when}\nno reply {_percent(distribution.failure)}, "
        f"median {_ms(distribution.median)}, {answer.context_used} measurements known",
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bar_edges(distribution: RttDistribution, bars: int = _BARS) -> np.ndarray:
    low, high = distribution.quantile([0.01, 0.99])
    high = max(high, low + 0.01)
    if high > 8 * max(low, 0.01):
        return np.geomspace(max(low, 0.01), high, bars + 1)
    return np.linspace(low, high, bars + 1)


def _bar(share: float) -> str:
    eighths = round(share * _WIDTH * 8)
    text = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
    return text.ljust(_WIDTH)


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "< 0.1 %"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
