"""Answers for the eye: numbers, a small histogram of text, a picture."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.query.address_tree import Completions
from ping_llm.query.complete import Inverse
from ping_llm.query.consistency import Consistency
from ping_llm.query.distribution import RttDistribution
from ping_llm.query.model import RttAnswer
from ping_llm.schema import NO_REPLY
from ping_llm.tables import table
from ping_llm.tokens.statement import Statement

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
        "central_mean_ms": distribution.central_mean(),
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
    central = distribution.central_mean()
    lines.append(f"mean {_ms(distribution.mean)}, of the central 99 % {_ms(central)}")
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
    pyplot = _pyplot()
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
    _save(figure, path)


def consistency_values(gap: Consistency) -> dict[str, Any]:
    return {
        "consistency": {
            "distance": gap.distance,
            "covered": gap.covered,
            "median_ms": gap.direct.median,
            "mixture_median_ms": gap.mixture.median,
        }
    }


def consistency_text(gap: Consistency) -> str:
    return (
        f"mixed over its addresses ({_percent(gap.covered)} of the prefix): "
        f"median {_ms(gap.mixture.median)}, no reply {_percent(gap.mixture.failure)}; "
        f"the distribution functions differ by at most {gap.distance:.3f}"
    )


def completions_values(answer: Completions) -> dict[str, Any]:
    return {
        "completions": [{"address": str(one.address), "probability": one.probability} for one in answer.best],
        "covered": answer.covered,
        "bound": answer.bound,
        "exact": answer.exact,
    }


def inverse_values(answer: Inverse, limits: Sequence[float | None] | None, high: float) -> dict[str, Any]:
    values = {"probability": answer.probability, **completions_values(answer.completions)}
    if limits is not None:
        for one, limit in zip(values["completions"], limits, strict=True):
            one["least_rtt_ms"] = limit
            one["possible"] = limit is None or limit <= high
    return values


def completions_text(
    answer: Completions, limits: Sequence[float | None] | None = None, high: float = 0.0
) -> str:
    rows = []
    for place, one in enumerate(answer.best):
        row = [str(one.address), _percent(one.probability), _bar(one.probability).rstrip()]
        if limits is not None:
            least = limits[place]
            row.append(
                ""
                if least is None
                else f"light takes {_ms(least)}" + (": impossible" if least > high else "")
            )
        rows.append(row)
    lines = [table(rows)] if rows else []
    lines.append(f"together {_percent(answer.covered)}; every other at most {_percent(answer.bound)}")
    if not answer.exact:
        lines.append("note: too many are about as probable; the search ended early, the list may miss some")
    return "\n".join(lines)


def completions_picture(answer: Completions, title: str, path: Path) -> None:
    """Bars, the most probable at the top."""
    pyplot = _pyplot()
    names = [str(one.address) for one in answer.best][::-1]
    shares = [100 * one.probability for one in answer.best][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.3 * max(len(names), 3)), layout="constrained")
    axes.barh(names, shares, color="#4878a8")
    axes.bar_label(axes.containers[0], fmt="%.1f", padding=3)
    axes.margins(x=0.1)
    axes.set_xlabel("probability (%)")
    axes.set_title(title, fontsize=10)
    _save(figure, path)


def generated_values(histories: Sequence[Sequence[Statement]]) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "event_time": None if one.seconds is None else _time(one.seconds),
                "src_addr": None if one.src is None else str(one.src),
                "dst_addr": None if one.dst is None else str(one.dst),
                "rtt": one.rtt,
            }
            for one in statements
        ]
        for statements in histories
    ]


def generated_text(histories: Sequence[Sequence[Statement]]) -> str:
    rows = [
        [
            number,
            one["event_time"] or "",
            one["src_addr"] or "",
            one["dst_addr"] or "",
            "" if one["rtt"] is None else "no reply" if one["rtt"] == NO_REPLY else _ms(one["rtt"]),
        ]
        for number, statements in enumerate(generated_values(histories))
        for one in statements
    ]
    return table(rows, ("history", "time", "source", "destination", "result")) if rows else "nothing"


def scores_picture(bits: np.ndarray, title: str, path: Path) -> None:
    """How surprising the results are: a histogram of their bits."""
    figure, axes = _pyplot().subplots(figsize=(8, 4.2), layout="constrained")
    axes.hist(bits, bins=60, color="#4878a8")
    axes.set_yscale("log")
    axes.set_xlabel("bits of the result")
    axes.set_ylabel("measurements")
    axes.set_title(
        f"{title}: {len(bits):,} results, {bits.mean() if len(bits) else 0:.2f} bits on average", fontsize=10
    )
    _save(figure, path)


def generated_picture(histories: Sequence[Sequence[Statement]], path: Path) -> None:
    """RTTs one after the other, a line for each history; crosses are failures."""
    figure, axes = _pyplot().subplots(figsize=(8, 4.2), layout="constrained")
    for statements in histories:
        rtts = [(place, one.rtt) for place, one in enumerate(statements) if one.rtt is not None]
        replies = [(place, rtt) for place, rtt in rtts if rtt != NO_REPLY]
        axes.plot(*zip(*replies, strict=True), marker="o", linewidth=0.8) if replies else None
        axes.plot([place for place, rtt in rtts if rtt == NO_REPLY], [0] * (len(rtts) - len(replies)), "kx")
    axes.set_xlabel("measurement")
    axes.set_ylabel("round-trip time (ms)")
    axes.set_title(f"{len(histories)} generated histories", fontsize=10)
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)


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
