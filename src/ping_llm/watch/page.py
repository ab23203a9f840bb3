"""Views of a watch: counters in the text format of Prometheus, a page and a picture of the last day.

The page also lists the newest events, of any age: a watch of a quiet network may have none of the last day.
"""

import html
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ping_llm.measurements.schema import HOUR_US
from ping_llm.measurements.times import time_text
from ping_llm.pages import document
from ping_llm.watch.alarms import sentence
from ping_llm.watch.results import Output

_HOURS = 24
#: Largest number of events on the page; alarms.jsonl has all.
_MOST_EVENTS = 1000


@dataclass
class Hour:
    """Counts of an hour of the stream."""

    results: int = 0
    lost: int = 0
    unlikely: int = 0  # tail probability below 1 %
    alarms: int = 0
    bits: float = 0.0


@dataclass
class LastDay:
    """The last day of a stream, hour by hour, and the newest events of any age."""

    hours: dict[int, Hour] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))

    def add(self, output: Output, now: int) -> None:
        for seen in output.seen:
            if seen.judged is None or seen.time > now:
                continue
            hour = self.hours.setdefault(seen.time // HOUR_US, Hour())
            hour.results += 1
            hour.lost += seen.rtt < 0
            hour.unlikely += seen.judged.tail < 0.01
            hour.bits += seen.judged.bits
        for event in output.events:
            self.events.append(event)
            if event["event"] == "alarm":
                self.hours.setdefault(now // HOUR_US, Hour()).alarms += 1
        oldest = now // HOUR_US - _HOURS
        self.hours = {hour: counts for hour, counts in self.hours.items() if hour > oldest}

    def save(self) -> dict[str, Any]:
        return {
            "hours": {str(hour): vars(counts) for hour, counts in self.hours.items()},
            "events": list(self.events),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.hours = {int(hour): Hour(**counts) for hour, counts in saved["hours"].items()}
        self.events = deque(saved["events"], maxlen=_MOST_EVENTS)


@dataclass(frozen=True)
class Status:
    """State of a watch at one moment, stored by the main thread.

    Attributes:
      counts: counters by name.
      events: newest events, of any age, newest last.
    """

    now: int
    counts: dict[str, int | float]
    hours: dict[int, Hour]
    events: tuple[dict[str, Any], ...]
    active: tuple[dict[str, Any], ...]
    trouble: str | None = None


_HELP = {
    "results": ("counter", "Results read."),
    "lost": ("counter", "Results without a reply."),
    "late": ("counter", "Results older than their pair's newest."),
    "duplicate": ("counter", "Results that were there already."),
    "clock_jump": ("counter", "Results whose time is far from the stream's."),
    "rejected": ("counter", "Lines that are not measurements."),
    "questions": ("counter", "Questions to the model."),
    "forgotten_pairs": ("counter", "Pairs dropped to bound the memory."),
    "restarted_files": ("counter", "Input files that were read from the beginning again."),
    "reconnects": ("counter", "Times the stream was opened again."),
    "alarms": ("counter", "Alarms raised."),
    "active_alarms": ("gauge", "Alarms that are going on."),
    "groups": ("gauge", "Groups of alarms that are going on."),
    "pairs": ("gauge", "Pairs in memory."),
    "results_per_day": ("gauge", "Results per day of the stream's time."),
    "results_per_second": ("gauge", "Results per second of this process."),
    "stream_time_seconds": ("gauge", "Time of the newest result."),
    "webhook_sent": ("counter", "Events that the webhook accepted."),
    "webhook_failed": ("counter", "Attempts that the webhook did not accept."),
    "webhook_dropped": ("counter", "Events given up."),
}


def metrics_text(status: Status) -> str:
    lines = []
    for name, value in status.counts.items():
        name = name.replace(" ", "_")
        kind, about = _HELP.get(name, ("gauge", name))
        metric = f"ping_llm_watch_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {metric} {about}", f"# TYPE {metric} {kind}", f"{metric} {value}"]
    return "\n".join([*lines, ""])


def page_html(status: Status, run: str) -> str:
    """Return the page of the last day."""
    now = time_text(status.now // 1_000_000) if status.now >= 0 else "no result yet"
    body = [f"<h1>Watch: {html.escape(run)}</h1>", f'<p class="note">Stream time {now}</p>']
    if status.trouble:
        body.append(f'<p style="color:var(--bad)">{html.escape(status.trouble)}</p>')
    body.append(f"<h2>Alarms going on: {len(status.active)}</h2>")
    body.append(_events(status.active) if status.active else "<p>None.</p>")
    body += ["<h2>The last day, by hour of the stream</h2>", _chart(status), _table(status)]
    body.append(f"<h2>Newest {_MOST_EVENTS:,} events</h2>")
    body.append(_events(tuple(reversed(status.events))) if status.events else "<p>None.</p>")
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{value:,.6g}</td></tr>" for name, value in status.counts.items()
    )
    body.append(f"<h2>Counters</h2><table>{rows}</table>")
    return document(
        f"ping-llm watch {run}", "\n".join(body), "li { margin: .2rem 0; overflow-wrap: anywhere; }"
    )


def _events(events: tuple[dict[str, Any], ...]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(sentence(event))}</li>" for event in events) + "</ul>"


def _hours(status: Status) -> list[tuple[int, Hour]]:
    last = status.now // HOUR_US
    return [(hour, status.hours.get(hour, Hour())) for hour in range(last - _HOURS + 1, last + 1)]


def _chart(status: Status) -> str:
    """Draw bars of results per hour, with the unlikely ones and the alarms on top."""
    if status.now < 0:
        return ""
    hours = _hours(status)
    most = max((counts.results for _, counts in hours), default=0) or 1
    bars = []
    for place, (hour, counts) in enumerate(hours):
        height, odd = 100 * counts.results / most, 100 * counts.unlikely / most
        x = 30 * place
        title = (
            f"{time_text(hour * 3600)}: {counts.results:,} results, {counts.unlikely:,} below 1 %, "
            f"{counts.alarms:,} alarms"
        )
        bars.append(
            f'<g><title>{title}</title><rect x="{x}" y="{110 - height:.1f}" width="26" height="{height:.1f}" '
            f'fill="var(--tint)"/><rect x="{x}" y="{110 - odd:.1f}" width="26" height="{odd:.1f}" '
            'fill="var(--warn)"/>'
            + (f'<circle cx="{x + 13}" cy="5" r="4" fill="var(--bad)"/>' if counts.alarms else "")
            + "</g>"
        )
    return (
        f'<svg viewBox="0 0 {30 * _HOURS} 112" role="img" style="width:100%;max-width:60rem" '
        f'aria-label="results per hour">{"".join(bars)}</svg>'
        '<p class="note">Bars: results; dark part: those with a tail probability below 1 % (one in a hundred '
        "is usual); dots: alarms.</p>"
    )


def _table(status: Status) -> str:
    if status.now < 0:
        return ""
    rows = []
    for hour, counts in reversed(_hours(status)):
        mean = f"{counts.bits / counts.results:.2f}" if counts.results else ""
        rows.append(
            [
                time_text(hour * 3600)[:16],
                f"{counts.results:,}",
                f"{counts.lost:,}",
                f"{counts.unlikely:,}",
                mean,
                f"{counts.alarms:,}",
            ]
        )
    names = ("hour", "results", "no reply", "tail &lt; 1 %", "bits", "alarms")
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'


def day_picture(day: LastDay, path: Path) -> None:
    """Draw results, unlikely results and alarms per hour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    hours = sorted(day.hours)
    times: Any = [datetime.fromtimestamp(hour * 3600, UTC) for hour in hours]
    counts = [day.hours[hour] for hour in hours]
    width = 1 / 28  # days; slightly less than an hour
    axes.bar(times, [each.results for each in counts], width, align="edge", label="results", color="#b9d0ea")
    axes.bar(
        times, [each.unlikely for each in counts], width, align="edge", label="tail < 1 %", color="#d8a52f"
    )
    alarms = axes.twinx()
    alarms.plot(times, [each.alarms for each in counts], "o", color="#b42318", label="alarms")
    alarms.set_ylim(bottom=0)
    alarms.set_ylabel("alarms per hour")
    axes.set_ylabel("results per hour")
    axes.set_xlabel("stream time, UTC")
    axes.tick_params(axis="x", rotation=30)
    figure.legend(loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=150)
