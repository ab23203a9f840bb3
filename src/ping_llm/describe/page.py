"""Output of a description: text, or one self-contained HTML page with the tables and the plots."""

import base64
import html
import io
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ping_llm.describe.figures import RTT_EDGES, Figures, place_tables
from ping_llm.ingest.accounting import Account
from ping_llm.measurements.schema import KINDS, PING
from ping_llm.pages import document, tidy_figure
from ping_llm.tables import table

#: Largest number of days that are listed one by one.
_LISTED_DAYS = 31


def render_text(kind: str, summaries: dict[str, dict[str, Any]], ingested: Account | None = None) -> str:
    names = list(summaries)
    parts = list(summaries.values())
    rows: list[list[str]] = []

    def add(label: str, cells: list[str]) -> None:
        rows.append([label, *cells])

    add("measurements", [f"{part['rows']:,}" for part in parts])
    add("first", [part["first_time"] for part in parts])
    add("last", [part["last_time"] for part in parts])
    for name in ("ipv4", "ipv6", "failed"):
        add({"ipv4": "IPv4", "ipv6": "IPv6"}.get(name, name), [share(part[name], part) for part in parts])
    for name in kinds_to_show(parts):
        add(f"kind {name}", [share(part["kinds"][name], part) for part in parts])
    for name in ("sources", "destinations", "pairs", "msm_ids", "probe_ids"):
        add(name.replace("_", " "), [f"{part[name]:,}" for part in parts])
    for key, label in (
        ("rtt_ms", "RTT, ms"),
        ("measurements_per_source", "measurements per source"),
        ("gap_s", "gap between a source's measurements, s"),
    ):
        add("", [""] * len(parts))
        add(label, [""] * len(parts))
        for name in max((part[key] for part in parts), key=len):
            add(f"  {name}", [number(part[key].get(name)) for part in parts])
    add("", [""] * len(parts))
    add("days with data", [f"{part['days_with_data']:,} of {part['days_in_span']:,}" for part in parts])
    header = ["", *names] if len(names) > 1 else None
    blocks = [kind, table(rows, header)]
    if ingested is not None:
        blocks.append(table(left_out(ingested)))
    if len(parts) == 1:
        blocks.append(_days_text(parts[0]["days"]))
    for name, part in summaries.items():
        if "places" in part:
            blocks += [*([name] if len(parts) > 1 else []), *place_tables(part["places"])]
    return "\n\n".join(blocks)


def left_out(ingested: Account) -> list[list[str]]:
    """Return rows on the results that `ingest` made no measurements of, the most frequent reason first."""

    def part(count: int) -> str:
        return f"{count:,} ({100 * count / max(1, ingested.results):.1f} %)"

    rows = [["results that ingest read", f"{ingested.results:,}"]]
    for label, count in (
        ("duplicates", ingested.duplicates),
        ("not pings", ingested.not_pings),
        ("hops not used", ingested.not_used.total()),
    ):
        rows += [[label, part(count)]] if count else []
    rows.append(["rejected", part(ingested.rejected)])
    return rows + [[f"  {reason}", part(count)] for reason, count in ingested.rejects.most_common() if count]


def share(count: int, part: dict[str, Any]) -> str:
    """Format a number of measurements and its share of all measurements of the part."""
    return f"{count:,} ({100 * count / part['rows']:.1f} %)"


def kinds_to_show(parts: Iterable[dict[str, Any]]) -> list[str]:
    """Return all kinds of measurements, or none if all measurements are pings."""
    only_pings = all(part["kinds"][KINDS[PING]] == part["rows"] for part in parts)
    return [] if only_pings else list(KINDS)


def _days_text(days: list[dict[str, Any]]) -> str:
    """Return a table by day, or by month if there are many days."""
    if len(days) > _LISTED_DAYS:
        months: dict[str, list[int]] = {}
        for day in days:
            entry = months.setdefault(day["date"][:7], [0, 0, 0])
            for position, value in enumerate((1, day["rows"], day["failed"])):
                entry[position] += value
        rows = [
            (month, count, n, f"{100 * failed / n:.1f} %") for month, (count, n, failed) in months.items()
        ]
        return table(rows, ("month", "days", "measurements", "failed"))
    return table(
        [
            (day["date"], day["rows"], day["sources"], f"{100 * day['failed'] / day['rows']:.1f} %")
            for day in days
        ],
        ("day", "measurements", "sources", "failed"),
    )


def number(value: float | None) -> str:
    """Format a whole number, or three decimals, so that a column is aligned."""
    if value is None:
        return ""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3f}"


_COLOURS = ("#2b6cb0", "#c05621", "#2f855a")


def draw(parts: dict[str, Figures]) -> dict[str, bytes]:
    """Draw the plots: {caption: PNG}."""
    pictures: dict[str, Callable[[Any, dict[str, Figures]], None]] = {
        "Distribution of RTT": _rtt,
        "Measurements per day": _days_figure,
        "Failures by hour of the day (UTC)": _hours,
        "Measurements per source": _sizes,
        "Gaps between consecutive measurements of a source": _gaps,
    }
    return {caption: _png(function, parts) for caption, function in pictures.items()}


def _png(function: Callable[[Any, dict[str, Figures]], None], parts: dict[str, Figures]) -> bytes:
    # Matplotlib's object interface needs no global state and no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    function(axes, parts)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.7)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[1] and (len(parts) > 1 or function is _days_figure):
        # Above the plot, where it covers no line or bar.
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
    tidy_figure(figure, legend_below=False)
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
        # All bins except the outermost 0.01 % at each end.
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


def _days_figure(axes: Any, parts: dict[str, Figures]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    # Bars of less than a pixel would vanish: at most 250 bars, each of several days if necessary.
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
    # Gaps are whole seconds: 20 bins per decade, but none narrower than one second.
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


def render_page(title: str, kind: str, parts: dict[str, Figures], ingested: Account | None = None) -> str:
    summaries = {name: figures.summary for name, figures in parts.items()}
    sections = [
        f"<h1>{html.escape(title)}</h1><p class=note>{html.escape(kind)}</p>",
        "<h2>What there is</h2>",
        _table(summaries, _OVERVIEW | _kinds(summaries)),
    ]
    if ingested is not None:
        told = {label: (lambda part, text=text: text) for label, text in left_out(ingested)}
        sections += ["<h2>What ingest left out</h2>", _table({"all": {}}, told)]
    sections.append('<div class="columns">')
    for key, caption in (
        ("rtt_ms", "RTT, ms"),
        ("measurements_per_source", "Measurements per source"),
        ("gap_s", "Gap between a source's measurements, s"),
    ):
        rows = max((summary[key] for summary in summaries.values()), key=len)
        chosen = {name: (lambda part, key=key, name=name: number(part[key].get(name))) for name in rows}
        sections.append(f"<section><h2>{html.escape(caption)}</h2>{_table(summaries, chosen)}</section>")
    sections.append("</div>")
    for caption, picture in draw(parts).items():
        data = base64.b64encode(picture).decode()
        text = html.escape(caption)
        sections.append(f'<h2>{text}</h2><img alt="{text}" src="data:image/png;base64,{data}">')
    return document(title, "\n".join(sections))


_OVERVIEW = {
    "measurements": lambda part: f"{part['rows']:,}",
    "first": lambda part: part["first_time"],
    "last": lambda part: part["last_time"],
    "IPv4": lambda part: share(part["ipv4"], part),
    "IPv6": lambda part: share(part["ipv6"], part),
    "failed": lambda part: share(part["failed"], part),
    "sources": lambda part: f"{part['sources']:,}",
    "destinations": lambda part: f"{part['destinations']:,}",
    "pairs": lambda part: f"{part['pairs']:,}",
    "msm ids": lambda part: f"{part['msm_ids']:,}",
    "probe ids": lambda part: f"{part['probe_ids']:,}",
    "days with data": lambda part: f"{part['days_with_data']:,} of {part['days_in_span']:,}",
}


def _kinds(summaries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        f"kind {kind}": (lambda part, kind=kind: share(part["kinds"][kind], part))
        for kind in kinds_to_show(summaries.values())
    }


def _table(summaries: dict[str, dict[str, Any]], rows: dict[str, Any]) -> str:
    head = ""
    if len(summaries) > 1:
        head = "<tr><th></th>" + "".join(f"<th>{html.escape(name)}</th>" for name in summaries) + "</tr>"
    body = "".join(
        f"<tr><td>{html.escape(label)}</td>"
        + "".join(f"<td>{html.escape(cell(part))}</td>" for part in summaries.values())
        + "</tr>"
        for label, cell in rows.items()
    )
    return f'<div class="scroll"><table>{head}{body}</table></div>'
