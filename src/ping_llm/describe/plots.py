"""Plots of the figures, as PNG."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from ping_llm.describe.figures import RTT_EDGES, Figures

_COLOURS = ("#2b6cb0", "#c05621", "#2f855a")


def draw(parts: dict[str, Figures]) -> dict[str, bytes]:
    """Caption → PNG."""
    pictures: dict[str, Callable[[Any, dict[str, Figures]], None]] = {
        "Distribution of RTT": _rtt,
        "Measurements per day": _days,
        "Failures by hour of the day (UTC)": _hours,
        "Measurements per source": _sizes,
        "Gaps between consecutive measurements of a source": _gaps,
    }
    return {caption: _png(function, parts) for caption, function in pictures.items()}


def _png(function: Callable[[Any, dict[str, Figures]], None], parts: dict[str, Figures]) -> bytes:
    # The object interface: no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    function(axes, parts)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.7)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[1] and (len(parts) > 1 or function is _days):
        # Above the plot, where no line or bar can be.
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
    file = io.BytesIO()
    # Without the date and the version, the same figures give the same bytes.
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _rtt(axes: Any, parts: dict[str, Figures]) -> None:
    widest = (1.0, 1000.0)
    for colour, (name, figures) in zip(_COLOURS, parts.items(), strict=False):
        total = figures.rtt_histogram.sum()
        if not total:
            continue
        shares = 100 * figures.rtt_histogram / total
        axes.stairs(shares, RTT_EDGES, fill=len(parts) == 1, color=colour, label=name)
        # From the first to the last bin but for the outermost 0.01 %.
        reached = np.cumsum(shares)
        low = RTT_EDGES[np.searchsorted(reached, 0.01)]
        high = RTT_EDGES[np.searchsorted(reached, 99.99).clip(0, len(RTT_EDGES) - 2) + 1]
        widest = (low, high) if len(parts) == 1 else (min(widest[0], low), max(widest[1], high))
        if len(parts) == 1:
            axes.set_ylim(top=1.2 * shares.max())
            for percentile in ("p50", "p90", "p99"):
                value = figures.summary["rtt_ms"][percentile]
                axes.axvline(value, color="#1a202c", linewidth=0.8, linestyle=":")
                axes.text(value, 1.19 * shares.max(), f" {percentile}\n {value:,.3g}", va="top", fontsize=8)
    axes.set(xscale="log", xlabel="RTT, ms", ylabel="% of replies in each bin", xlim=widest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def _days(axes: Any, parts: dict[str, Figures]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    # Bars of less than a pixel would vanish: at most 250, each of several days if need be.
    dates = [np.array([day["date"] for day in f.summary["days"]], "datetime64[D]") for f in parts.values()]
    first, last = min(date[0] for date in dates), max(date[-1] for date in dates)
    width = int(-(-((last - first).astype(int) + 1) // 250))
    bins = int((last - first).astype(int)) // width + 1
    lefts = first + width * np.arange(bins)
    under = np.zeros(bins)
    for colour, date, (name, figures) in zip(_COLOURS, dates, parts.items(), strict=False):
        position = (date - first).astype(int) // width
        days = figures.summary["days"]
        rows = np.bincount(position, [day["rows"] for day in days], bins)
        label = name if len(parts) > 1 else "measurements"
        axes.bar(lefts, rows, width=0.9 * width, align="edge", bottom=under, color=colour, label=label)
        if len(parts) == 1:
            failed = np.bincount(position, [day["failed"] for day in days], bins)
            axes.bar(lefts, failed, width=0.9 * width, align="edge", color="#c53030", label="of them failed")
        under += rows
    axes.set(ylabel="measurements" if width == 1 else f"measurements in {width} days")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    locator = AutoDateLocator(maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _hours(axes: Any, parts: dict[str, Figures]) -> None:
    for colour, (name, figures) in zip(_COLOURS, parts.items(), strict=False):
        hours = figures.summary["hours_utc"]
        shares = [100 * hour["failed"] / hour["rows"] for hour in hours]
        axes.plot(
            [hour["hour"] for hour in hours], shares, marker="o", markersize=4, color=colour, label=name
        )
    axes.set(xlabel="hour, UTC", ylabel="% failed", xlim=(-0.5, 23.5), xticks=range(0, 24, 3))
    axes.set_ylim(bottom=0)


def _sizes(axes: Any, parts: dict[str, Figures]) -> None:
    for colour, (name, figures) in zip(_COLOURS, parts.items(), strict=False):
        sizes = np.array(list(figures.sizes))
        counts = np.array(list(figures.sizes.values()))
        at_least = counts[::-1].cumsum()[::-1] / counts.sum()
        axes.step(sizes, 100 * at_least, where="pre", color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="measurements", ylabel="% of sources with at least as many")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _gaps(axes: Any, parts: dict[str, Figures]) -> None:
    # Gaps are whole seconds: 20 bins a decade, but none narrower than one second.
    edges = np.unique(np.rint(10 ** np.linspace(0, 9, 181))) - 0.5
    last = 10.0
    for colour, (name, figures) in zip(_COLOURS, parts.items(), strict=False):
        seconds, counts = figures.gaps
        if not len(seconds):
            continue
        histogram = np.histogram(seconds.clip(edges[0], edges[-1]), edges, weights=counts)[0]
        axes.stairs(100 * histogram / counts.sum(), edges, fill=len(parts) == 1, color=colour, label=name)
        last = max(last, 1.2 * float(seconds.max()))
    names = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3_600: "1 h", 21_600: "6 h", 86_400: "1 day"}
    names |= {604_800: "1 week", 31_557_600: "1 year"}
    axes.set(
        xscale="log", xlabel="time since the one before", ylabel="% of gaps in each bin", xlim=(0.5, last)
    )
    axes.set_xticks([second for second in names if second <= last])
    axes.set_xticklabels([label for second, label in names.items() if second <= last])
    axes.minorticks_off()
