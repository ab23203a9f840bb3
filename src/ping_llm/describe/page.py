"""One self-contained HTML page: the table and the plots."""

import base64
import html
from typing import Any

from ping_llm.describe.figures import Figures
from ping_llm.describe.plots import draw
from ping_llm.describe.text import number

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c; background: #fff; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem 1.2rem .15rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { border-bottom: 1px solid #cbd5e0; }
.columns { display: flex; flex-wrap: wrap; gap: 0 3rem; } img { max-width: 100%; } .note { color: #4a5568; }
"""


def render(title: str, kind: str, parts: dict[str, Figures]) -> str:
    summaries = {name: figures.summary for name, figures in parts.items()}
    sections = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1><p class=note>{html.escape(kind)}</p>",
        "<h2>What there is</h2>",
        _table(summaries, _OVERVIEW),
        '<div class="columns">',
    ]
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
    sections.append("</body></html>\n")
    return "\n".join(sections)


def _share(part: dict[str, Any], name: str) -> str:
    return f"{part[name]:,} ({100 * part[name] / part['rows']:.1f} %)"


_OVERVIEW = {
    "measurements": lambda part: f"{part['rows']:,}",
    "first": lambda part: part["first_time"],
    "last": lambda part: part["last_time"],
    "IPv4": lambda part: _share(part, "ipv4"),
    "IPv6": lambda part: _share(part, "ipv6"),
    "failed": lambda part: _share(part, "failed"),
    "sources": lambda part: f"{part['sources']:,}",
    "destinations": lambda part: f"{part['destinations']:,}",
    "pairs": lambda part: f"{part['pairs']:,}",
    "msm ids": lambda part: f"{part['msm_ids']:,}",
    "probe ids": lambda part: f"{part['probe_ids']:,}",
    "days with data": lambda part: f"{part['days_with_data']:,} of {part['days_in_span']:,}",
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
    return f"<table>{head}{body}</table>"
