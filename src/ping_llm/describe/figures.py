"""The figures of a table of measurements, exact and out of core.

Percentiles come from sorted streams: DuckDB sorts on disk, and each rank is picked from the stream. So memory
does not grow with the rows. Only gaps of more than a day and median RTTs by country and AS are approximate
(to 1 %).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ping_llm.compiled import kernel
from ping_llm.measurements.addresses import Prefix, pack
from ping_llm.measurements.parquet import ParquetInput
from ping_llm.measurements.places import Place, Places
from ping_llm.measurements.schema import DAY_US, KINDS, PING
from ping_llm.measurements.times import time_text
from ping_llm.tables import table

#: Bins of gaps: one per second up to a day, then steps of 1 %.
_EXACT = 86_400
_STEP = np.log(1.01)
_BINS = _EXACT + 2_000  # the last bin is a gap of 130 years


class Runs:
    """Measurements per source, and gaps between them, counted over consecutive batches of a sorted stream."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()  # measurements of a source → sources
        self.gaps = np.zeros(_BINS, np.int64)
        self.longest_gap_us = 0
        self._key: int | None = None
        self._time = 0
        self._size = 0

    def feed(self, keys: np.ndarray, times: np.ndarray) -> None:
        """Count a batch: keys of sources and times in µs, sorted by both."""
        if not len(keys):
            return
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        lengths = np.diff(np.append(starts, len(keys)))
        gaps = np.diff(times)
        same = keys[1:] == keys[:-1]
        if self._key == int(keys[0]):
            # The source of the previous batch continues.
            lengths[0] += self._size
            gaps = np.append(gaps, times[0] - self._time)
            same = np.append(same, True)
        elif self._key is not None:
            self.sizes[self._size] += 1
        found = gaps[same]
        if len(found):
            self.longest_gap_us = max(self.longest_gap_us, int(found.max()))
            _count_gaps(found, _EXACT, _STEP, self.gaps)
        for size, sources in zip(*np.unique(lengths[:-1], return_counts=True), strict=True):
            self.sizes[int(size)] += int(sources)
        self._key, self._time, self._size = int(keys[-1]), int(times[-1]), int(lengths[-1])

    def finish(self) -> None:
        if self._key is not None:
            self.sizes[self._size] += 1
            self._key = None

    @property
    def sources(self) -> int:
        return sum(self.sizes.values())

    def size_quantiles(self, shares: Iterable[float]) -> list[int]:
        """Return quantiles of the measurements per source, by nearest rank."""
        sizes = np.array(sorted(self.sizes), np.int64)
        ends = np.cumsum([self.sizes[size] for size in sizes.tolist()])
        return [int(sizes[np.searchsorted(ends, rank(share, int(ends[-1])))]) for share in shares]

    def gap_quantiles(self, shares: Iterable[float]) -> list[float]:
        """Return quantiles of the seconds between a source's consecutive measurements, by nearest rank."""
        ends = np.cumsum(self.gaps)
        total = int(ends[-1])
        return (
            [gap_of_bin(int(np.searchsorted(ends, rank(share, total)))) for share in shares] if total else []
        )


def rank(share: float, count: int) -> int:
    """Return the nearest rank of a quantile, counted from 1."""
    return min(count, max(1, int(np.ceil(share * count - 1e-9))))


def gap_of_bin(number: int) -> float:
    """Return the lower edge of a bin, s."""
    if number < _EXACT:
        return float(number)
    return float(f"{_EXACT * np.exp((number - _EXACT) * _STEP):.3g}")


@kernel
def _count_gaps(gaps, exact, step, counts):
    for gap in gaps:
        second = gap // 1_000_000
        if second < exact:
            counts[second] += 1
        else:
            counts[min(exact + int(np.log(second / exact) / step), len(counts) - 1)] += 1


RTT_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
OTHER_PERCENTILES = (1, 10, 25, 50, 75, 90, 99)

#: Edges of the drawn RTT distribution: 40 bins per decade, from 1 µs to an hour.
RTT_EDGES = 10 ** np.linspace(-3, 7, 401)

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True)
class Figures:
    """The figures of one table. `summary` is for text tables and JSON, the rest for plots."""

    summary: dict[str, Any]
    rtt_histogram: np.ndarray  # [len(RTT_EDGES) - 1]
    sizes: dict[int, int]  # measurements of a source → sources
    gaps: tuple[np.ndarray, np.ndarray]  # seconds, counts


def measure(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> Figures:
    """Compute the figures in a few passes over the table."""
    totals = _totals(connection, data)
    rtt, histogram = _rtt(connection, data, totals["rows"] - totals["failed"])
    runs = _runs(connection, data)
    days = _days(connection, data)
    hours = _hours(connection, data)
    rows = totals["rows"]
    gap_count = int(runs.gaps.sum())
    summary = {
        "rows": rows,
        "first_time": time_text(totals["first"] // 1_000_000),
        "last_time": time_text(totals["last"] // 1_000_000),
        "ipv4": rows - totals["ipv6"],
        "ipv6": totals["ipv6"],
        "failed": totals["failed"],
        "kinds": {kind: totals[f"kind_{kind}"] for kind in KINDS},
        "sources": runs.sources,
        "destinations": totals["destinations"],
        "pairs": totals["pairs"],
        "msm_ids": totals["msm_ids"],
        "probe_ids": totals["probe_ids"],
        "rtt_ms": rtt,
        "measurements_per_source": {
            "mean": round(rows / max(1, runs.sources), 3),
            **_named(OTHER_PERCENTILES, runs.size_quantiles(p / 100 for p in OTHER_PERCENTILES)),
            "max": max(runs.sizes),
        },
        "gap_s": {
            **_named(OTHER_PERCENTILES, runs.gap_quantiles(p / 100 for p in OTHER_PERCENTILES)),
            **({"max": runs.longest_gap_us / 1e6} if gap_count else {}),
        },
        "days_with_data": len(days),
        "days_in_span": totals["last"] // DAY_US - totals["first"] // DAY_US + 1,
        "days": days,
        "hours_utc": hours,
    }
    seconds = np.flatnonzero(runs.gaps)
    gaps = np.array([gap_of_bin(number) for number in seconds.tolist()]), runs.gaps[seconds]
    return Figures(summary, histogram, dict(sorted(runs.sizes.items())), gaps)


def _totals(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> dict[str, int]:
    optional = {
        name: f"(SELECT count(DISTINCT {name}) FROM {data.scan})" if name in data.columns else "0"
        for name in ("msm_id", "probe_id")
    }
    # A null kind is a ping, as in a table without the column.
    kind = f"coalesce(kind::VARCHAR, '{KINDS[PING]}')" if data.with_kind else f"'{KINDS[PING]}'"
    kinds = ", ".join(f"count(*) FILTER ({kind} = '{name}') AS kind_{name}" for name in KINDS)
    # ::ffff:192.0.2.1 is an IPv4 address.
    query = f"""
        SELECT count(*) AS rows, min(epoch_us(event_time)) AS first, max(epoch_us(event_time)) AS last,
          count(*) FILTER (contains(src_addr, ':') AND NOT starts_with(lower(src_addr), '::ffff:')) AS ipv6,
          count(*) FILTER (rtt = -1) AS failed, {kinds},
          (SELECT count(DISTINCT dst_addr) FROM {data.scan}) AS destinations,
          (SELECT count(*) FROM (SELECT DISTINCT hash(src_addr, dst_addr) FROM {data.scan})) AS pairs,
          {optional["msm_id"]} AS msm_ids, {optional["probe_id"]} AS probe_ids
        FROM {data.scan}"""
    result = connection.sql(query)
    return dict(zip(result.columns, result.fetchall()[0], strict=True))


def _rtt(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, count: int
) -> tuple[dict[str, float], np.ndarray]:
    histogram = np.zeros(len(RTT_EDGES) - 1, np.int64)
    if not count:
        return {}, histogram
    names = ("min", *(f"p{p:g}" for p in RTT_PERCENTILES), "max")
    ranks = np.array([1, *(rank(p / 100, count) for p in RTT_PERCENTILES), count])
    values = np.zeros(len(ranks))
    reader = connection.sql(
        f"SELECT rtt::DOUBLE AS rtt FROM {data.scan} WHERE rtt <> -1 ORDER BY rtt"
    ).to_arrow_reader(_BATCH_ROWS)
    before = 0
    for batch in reader:
        rtt = batch["rtt"].to_numpy()
        here = (ranks > before) & (ranks <= before + len(rtt))
        values[here] = rtt[ranks[here] - before - 1]
        histogram += np.histogram(rtt.clip(RTT_EDGES[0], RTT_EDGES[-1]), RTT_EDGES)[0]
        before += len(rtt)
    return dict(zip(names, values.tolist(), strict=True)), histogram


def _runs(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> Runs:
    # DuckDB's hash sorts three times faster than text, and does not leave this function.
    query = f"SELECT hash(src_addr) AS k, epoch_us(event_time) AS t FROM {data.scan} ORDER BY k, t"
    runs = Runs()
    for batch in connection.sql(query).to_arrow_reader(_BATCH_ROWS):
        runs.feed(batch["k"].to_numpy(), batch["t"].to_numpy())
    runs.finish()
    return runs


def _days(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> list[dict[str, Any]]:
    query = f"""
        SELECT day, sum(n)::BIGINT, sum(failed)::BIGINT, count(*) FROM (
          SELECT epoch_us(event_time) // {DAY_US} AS day, hash(src_addr) AS k, count(*) AS n,
            count(*) FILTER (rtt = -1) AS failed FROM {data.scan} GROUP BY day, k)
        GROUP BY day ORDER BY day"""
    return [
        {"date": str(np.datetime64(int(day), "D")), "rows": rows, "failed": failed, "sources": sources}
        for day, rows, failed, sources in connection.sql(query).fetchall()
    ]


def _hours(connection: duckdb.DuckDBPyConnection, data: ParquetInput) -> list[dict[str, int]]:
    query = f"""
        SELECT epoch_us(event_time) // 3600000000 % 24 AS hour, count(*), count(*) FILTER (rtt = -1)
        FROM {data.scan} GROUP BY hour ORDER BY hour"""
    return [
        {"hour": int(hour), "rows": rows, "failed": failed}
        for hour, rows, failed in connection.sql(query).fetchall()
    ]


def _named(percentiles: tuple[float, ...], values: list) -> dict[str, Any]:
    return {f"p{p:g}": value for p, value in zip(percentiles, values, strict=False)}


#: Ratio of the edges of RTT bins, from 1 µs on: medians are exact to 1 %.
_BY_STEP = 1.01
_SHOWN = 15
UNKNOWN = "unknown"


def by_place(
    connection: duckdb.DuckDBPyConnection, data: ParquetInput, places: Places
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Count addresses, measurements and failures by country and AS of either end, with the median RTT."""
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
            SELECT label, floor(ln(greatest(rtt, 0.001)) / ln({_BY_STEP}))::BIGINT AS step,
              rtt = -1 AS failed, count(*) AS n
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
    return float(f"{_BY_STEP ** (middle + 0.5):.3g}")


def place_tables(found: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """Return text tables of the countries and ASes with the most measurements."""
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
