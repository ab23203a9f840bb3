"""The figures as a plain table: one column a part."""

from typing import Any

from ping_llm.tables import table

#: Days are listed one by one up to this many.
_LISTED_DAYS = 31


def render(kind: str, summaries: dict[str, dict[str, Any]]) -> str:
    names = list(summaries)
    parts = list(summaries.values())
    rows: list[list[str]] = []

    def add(label: str, cells: list[str]) -> None:
        rows.append([label, *cells])

    def share(part: dict[str, Any], name: str) -> str:
        return f"{part[name]:,} ({100 * part[name] / part['rows']:.1f} %)"

    add("measurements", [f"{part['rows']:,}" for part in parts])
    add("first", [part["first_time"] for part in parts])
    add("last", [part["last_time"] for part in parts])
    for name in ("ipv4", "ipv6", "failed"):
        add({"ipv4": "IPv4", "ipv6": "IPv6"}.get(name, name), [share(part, name) for part in parts])
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
    if len(parts) == 1:
        blocks.append(_days(parts[0]["days"]))
    return "\n\n".join(blocks)


def _days(days: list[dict[str, Any]]) -> str:
    """By day, or by month where there are many."""
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
    """A whole number, or three decimals, so that a column of them lines up."""
    if value is None:
        return ""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3f}"
