"""Pictures of answers, as PNG files."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.address_tree import Completions
from ping_llm.answer.answering import RttAnswer
from ping_llm.answer.complete import Consistency
from ping_llm.answer.explain import Explanation
from ping_llm.answer.generate import Generated
from ping_llm.answer.plan import Plan
from ping_llm.answer.rank import Ranking
from ping_llm.answer.show import bar_edges, ms, percent
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.measurements.times import LAST_SECOND, time_text
from ping_llm.pages import tidy_figure

_BLUE, _RED, _GREY = "#4878a8", "#c05030", "0.45"
#: Largest number of lines that are readable in a picture.
_MOST_LINES = 40


def rtt_picture(answer: RttAnswer, path: Path, gap: Consistency | None = None) -> None:
    """Draw density and distribution function; for a prefix also that of the mixture over its addresses."""
    distribution, question = answer.distribution, answer.question
    edges = bar_edges(distribution, 120)
    shares = distribution.between(edges[:-1], edges[1:])
    figure, axes = _figure()
    axes.bar(edges[:-1], shares / np.diff(edges), np.diff(edges), align="edge", color=_BLUE, label="density")
    axes.set_xlabel("round-trip time (ms)")
    axes.set_ylabel("density (per ms)")
    if edges[-1] > 8 * max(edges[0], 0.01):
        axes.set_xscale("log")
    curve = axes.twinx()
    curve.plot(edges, distribution.cdf(edges), color=_RED, label="share of the replies below")
    if gap is not None:
        curve.plot(
            edges,
            gap.mixture.cdf(edges),
            color=_RED,
            linestyle="--",
            label="mixture over its addresses",
        )
    curve.set_ylim(0, 1.02)
    curve.set_ylabel("P(rtt < x | reply)")
    axes.set_xlim(edges[0], edges[-1])
    for level, align in ((0.05, "right"), (0.5, "center"), (0.95, "left")):
        at = float(distribution.quantile(level))
        curve.axvline(at, color=_GREY, linewidth=0.8, linestyle=":")
        curve.text(at, 1.025, f"{100 * level:g} %: {ms(at)}", ha=align, va="bottom", fontsize=8, color=_GREY)
    handles = axes.get_legend_handles_labels()[0] + curve.get_legend_handles_labels()[0]
    curve.legend(handles=handles, fontsize=8, loc="center right")
    when = "" if question.seconds is None else f", {time_text(question.seconds)}"
    axes.set_title(
        f"{question.src} → {question.dst}{when}\nno reply {percent(distribution.failure)}, "
        f"{answer.context_used} measurements known",
        fontsize=10,
        pad=18,
    )
    _save(figure, path)


def pairs_picture(answers: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw medians and central 90 %: one line per pair, or all pairs sorted by median if there are many."""
    low, middle, high = (
        np.array([one["quantiles"][level] for one in answers]) for level in ("0.05", "0.5", "0.95")
    )
    if len(answers) > _MOST_LINES:
        order = np.argsort(middle)
        place = np.arange(len(order)) + 1
        figure, axes = _figure()
        axes.fill_between(
            place, low[order], high[order], color=_BLUE, alpha=0.3, linewidth=0, label="central 90 %"
        )
        axes.plot(place, middle[order], color=_BLUE, label="median")
        axes.set_yscale("log")
        axes.set_xlabel("pairs, by their median")
        axes.set_ylabel("round-trip time (ms)")
        axes.legend(fontsize=8)
    else:
        names = [f"{one['src_addr']} → {one['dst_addr']}" for one in answers]
        figure, axes = _lines(names)
        place = np.arange(len(names))
        axes.hlines(place, low, high, color=_BLUE, alpha=0.5, linewidth=6, label="central 90 %")
        axes.plot(middle, place, "|", color="black", markersize=10, markeredgewidth=2, label="median")
        axes.set_xlabel("round-trip time (ms)")
        axes.set_xlim(left=0)
        axes.legend(fontsize=8)
    failure = np.mean([one["failure"] for one in answers]) if answers else 0.0
    axes.set_title(f"{len(answers):,} pairs, no reply {percent(float(failure))} on average", fontsize=10)
    _save(figure, path)


def ranking_picture(made: Ranking, path: Path) -> None:
    """Draw median and central 90 % of each candidate, the best at the top, with its P(fastest)."""
    shown = made.candidates[:_MOST_LINES]
    low, middle, high = np.array([candidate.quantiles([0.05, 0.5, 0.95]) for candidate in shown]).T
    figure, axes = _lines([f"{candidate.dst}  ({candidate.fastest:.0%})" for candidate in shown])
    place = np.arange(len(shown))
    axes.hlines(place, low, high, color=_BLUE, alpha=0.5, linewidth=6, label="central 90 %")
    axes.plot(middle, place, "|", color="black", markersize=10, markeredgewidth=2, label="median")
    if made.objective_ms is not None:
        axes.axvline(made.objective_ms, color=_GREY, linestyle=":", label=f"{made.objective_ms:g} ms")
    axes.set_xlabel("round-trip time (ms)")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)
    axes.set_title("candidates, and the probability that each is the fastest", fontsize=10)
    _save(figure, path)


def explanation_picture(made: Explanation, path: Path) -> None:
    """Draw the change of the median for each reduced context."""
    shown = [*made.alternatives, *made.measurements][:_MOST_LINES]
    figure, axes = _lines([f"with {each.rests_on}" for each in shown])
    axes.barh(np.arange(len(shown)), [-each.moved_ms for each in shown], color=_BLUE)
    axes.axvline(0, color=_GREY, linewidth=0.8)
    axes.set_xlabel("change of the median (ms)")
    question = made.answer.question
    axes.set_title(f"{question.src} → {question.dst}: {made.answer.distribution.median:.1f} ms", fontsize=10)
    _save(figure, path)


def matrix_picture(
    sources: Sequence[str], destinations: Sequence[str], medians: np.ndarray, path: Path
) -> None:
    """Draw a heat map, with names where they are few enough to read."""
    figure, axes = _figure(2 + 0.22 * min(len(sources), 60))
    image = axes.imshow(medians, aspect="auto", cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="median RTT (ms)")
    if len(sources) <= 60:
        axes.set_yticks(np.arange(len(sources)), sources, fontsize=7)
    if len(destinations) <= 60:
        axes.set_xticks(np.arange(len(destinations)), destinations, fontsize=7, rotation=90)
    axes.set_xlabel("destination")
    axes.set_ylabel("source")
    _save(figure, path)


def completions_picture(answer: Completions, title: str, path: Path) -> None:
    """Draw probabilities as bars, the most probable completion at the top."""
    best = answer.best[:_MOST_LINES]
    names, shares = [str(one.address) for one in best], [100 * one.probability for one in best]
    _bars(names, shares, f"{title}\n{percent(answer.covered)} together", "probability (%)", path)


def samples_picture(samples: Sequence[Prefix], title: str, path: Path) -> None:
    """Draw how often each address was sampled."""
    counts = Counter(map(str, samples)).most_common(_MOST_LINES)
    heading = f"{title}\n{len(samples):,} drawn, {len(set(samples)):,} different"
    shares = [100 * count / len(samples) for _, count in counts]
    _bars([name for name, _ in counts], shares, heading, "share of the samples (%)", path)


def scores_picture(bits: np.ndarray, title: str, path: Path) -> None:
    """Draw a histogram of the bits of the results."""
    figure, axes = _figure()
    if len(bits):
        axes.hist(bits, bins=np.linspace(0, max(float(bits.max()), 1.0), 61), color=_BLUE)
        for level, name in ((0.5, "median"), (0.99, "99 %")):
            at = float(np.quantile(bits, level))
            axes.axvline(at, color=_GREY, linewidth=0.8, linestyle=":")
            axes.text(
                at, 0.98, f" {name}: {at:.1f}", transform=axes.get_xaxis_transform(), va="top", fontsize=8
            )
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.7)
    axes.set_xlabel("bits of the result (more is more unusual)")
    axes.set_ylabel("measurements")
    mean = float(bits.mean()) if len(bits) else 0.0
    axes.set_title(f"{title}: {len(bits):,} results, {mean:.2f} bits on average", fontsize=10)
    _save(figure, path)


def anomalies_picture(anomalies: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Draw the results and their predicted central 90 % intervals."""
    shown = anomalies[:_MOST_LINES]
    names = [f"{one['src_addr']} → {one['dst_addr']}, {one['bits']:.1f} bits" for one in shown]
    figure, axes = _lines(names)
    place = np.arange(len(shown))
    low, high = (np.array([one["expected"][level] for one in shown]) for level in ("0.05", "0.95"))
    axes.hlines(place, low, high, color=_BLUE, alpha=0.5, linewidth=6, label="expected: central 90 %")
    rtts = np.array([one["rtt"] for one in shown])
    replied = rtts != NO_REPLY
    axes.plot(rtts[replied], place[replied], "o", color=_RED, label="measured")
    if not replied.all():
        axes.plot(
            np.zeros((~replied).sum()), place[~replied], "x", color="black", label="no reply", clip_on=False
        )
    axes.set_xlabel("round-trip time (ms)")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)
    axes.set_title(f"{title}: the {len(shown)} most unusual results", fontsize=10)
    _save(figure, path)


def generated_picture(made: Generated, path: Path) -> None:
    """Draw RTTs over time, or in sequence if some have no time; one colour per history."""
    figure, axes = _figure()
    stated = [one for statements in made.histories for one in statements]
    timed = bool(stated) and all(one.seconds is not None and one.seconds < LAST_SECOND for one in stated)
    failed = False
    for number, statements in enumerate(made.histories):
        color = f"C{number % 10}"
        for place, one in enumerate(statements, 1):
            if one.rtt is None:
                continue
            x = datetime.fromtimestamp(one.seconds, UTC) if timed and one.seconds is not None else place
            if one.rtt == NO_REPLY:
                label = None if failed else "no reply"
                axes.plot(x, 0.02, "x", color="black", transform=axes.get_xaxis_transform(), label=label)
                failed = True
                continue
            axes.plot(x, one.rtt, "o", color=color)
            if len(stated) <= _MOST_LINES and one.dst is not None:
                axes.annotate(
                    str(one.dst), (x, one.rtt), xytext=(4, 4), textcoords="offset points", fontsize=7
                )
    if failed:
        axes.legend(fontsize=8)
    axes.margins(x=0.12, y=0.1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (UTC)" if timed else "measurement")
    if timed:
        figure.autofmt_xdate()
    axes.set_ylabel("round-trip time (ms)")
    histories = len(made.histories)
    title = f"{len(stated):,} generated measurements"
    axes.set_title(title + (f" of {histories} histories, by colour" if histories > 1 else ""), fontsize=10)
    _save(figure, path)


def plan_picture(made: Plan, path: Path) -> None:
    """Draw the expected uncertainty after each planned measurement."""
    figure, axes = _figure()
    left = made.before - np.cumsum([0.0, *(each.drop for each in made.measurements)]) / made.questions
    axes.plot(np.arange(len(left)), left, "o-", markersize=3, color=_BLUE)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("measurements, in the order of the plan")
    axes.set_ylabel("expected CRPS per question (ms)" if made.by == "crps" else "entropy per question (bits)")
    axes.set_title(f"{made.questions:,} questions, {made.candidates:,} possible measurements", fontsize=10)
    _save(figure, path)


def _bars(names: Sequence[str], shares: Sequence[float], title: str, label: str, path: Path) -> None:
    figure, axes = _lines(names)
    axes.barh(np.arange(len(names)), shares, color=_BLUE)
    axes.bar_label(axes.containers[0], fmt="%.1f", padding=3, fontsize=8)
    axes.margins(x=0.1)
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10)
    _save(figure, path)


def _figure(height: float = 4.2) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(8, height), layout="constrained")


def _lines(names: Sequence[str]) -> tuple[Any, Any]:
    """Make a figure with one line per name, the first at the top."""
    figure, axes = _figure(1.2 + 0.28 * max(len(names), 3))
    axes.set_yticks(np.arange(len(names)), names, fontsize=8)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    tidy_figure(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
