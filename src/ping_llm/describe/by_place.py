"""Measurements by the country and the AS of their ends."""

from collections import defaultdict
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ping_llm.measurements.addresses import Prefix, pack
from ping_llm.measurements.parquet import ParquetInput
from ping_llm.measurements.places import Place, Places
from ping_llm.tables import table

#: RTTs are counted in steps of 1 % from 1 µs on, so a median is exact to that.
_STEP = 1.01
_SHOWN = 15
UNKNOWN = "unknown"


def by_place(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, places: Places
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Of sources and of destinations, by country and by AS: addresses, measurements, failures, median RTT."""
    return {
        "sources": _of_end(connection, data, places, "src_addr"),
        "destinations": _of_end(connection, data, places, "dst_addr"),
    }


def _of_end(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, places: Places, column: str
) -> dict[str, list[dict[str, Any]]]:
    texts = connection.sql(f"SELECT DISTINCT {column} AS text FROM {data.scan} ORDER BY text")
    ends = texts.to_arrow_table()["text"].combine_chunks()
    packed, good = pack(ends)
    found = [
        places.place(Prefix.of(one)) if known else Place()
        for one, known in zip(packed, good.tolist(), strict=True)
    ]
    out = {}
    for name, labels in (
        ("country", [place.country or UNKNOWN for place in found]),
        ("asn", [UNKNOWN if place.asn is None else f"AS{place.asn}" for place in found]),
    ):
        connection.register("ends", pa.table({"text": ends, "label": pa.array(labels, pa.string())}))
        counted = connection.sql(f"""
            SELECT label, floor(ln(greatest(rtt, 0.001)) / ln({_STEP}))::BIGINT AS step, rtt = -1 AS failed,
              count(*) AS n
            FROM {data.scan} AS m JOIN ends ON m.{column} = ends.text GROUP BY ALL""").fetchall()
        connection.unregister("ends")
        addresses = dict(zip(*np.unique(labels, return_counts=True), strict=True))
        out[name] = _entries(counted, {str(label): int(n) for label, n in addresses.items()})
    return out


def _entries(counted: list[tuple[str, int, bool, int]], addresses: dict[str, int]) -> list[dict[str, Any]]:
    replies: dict[str, dict[int, int]] = defaultdict(dict)
    failed: dict[str, int] = defaultdict(int)
    for label, step, lost, n in counted:
        if lost:
            failed[label] += n
        else:
            replies[label][step] = replies[label].get(step, 0) + n
    entries = [
        {
            "name": label,
            "addresses": count,
            "rows": sum(replies[label].values()) + failed[label],
            "failed": failed[label],
            "rtt_p50": _median(replies[label]),
        }
        for label, count in addresses.items()
    ]
    return sorted(entries, key=lambda entry: (-int(entry["rows"] or 0), str(entry["name"])))


def _median(steps: dict[int, int]) -> float | None:
    if not steps:
        return None
    ordered = sorted(steps)
    ends = np.cumsum([steps[step] for step in ordered])
    middle = ordered[int(np.searchsorted(ends, (ends[-1] + 1) // 2))]
    return float(f"{_STEP ** (middle + 0.5):.3g}")


def place_tables(found: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """Text tables of the largest."""
    blocks = []
    for end, kinds in found.items():
        for kind, entries in kinds.items():
            rows = [
                (one["name"], one["addresses"], one["rows"], f"{100 * one['failed'] / one['rows']:.1f} %",
                 "" if one["rtt_p50"] is None else f"{one['rtt_p50']:g}")
                for one in entries[:_SHOWN]
            ]  # fmt: skip
            title = f"{end} by {'AS' if kind == 'asn' else kind}"
            blocks.append(table(rows, (title, end, "measurements", "failed", "median RTT, ms")))
            if len(entries) > _SHOWN:
                blocks[-1] += f"\n… and {len(entries) - _SHOWN:,} more (--json lists all)"
    return blocks
