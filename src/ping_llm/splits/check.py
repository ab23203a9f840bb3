"""Checks, for every way of splitting, that nothing leaks, without using counts made while splitting.

Shards are read as written: leaks are searched in the address texts with plain GROUP BY, not with the hash
that assigned the splits. A held-out split is checked by its masks over the data, before it is used or
written.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from ping_llm.errors import PingError
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.times import time_text
from ping_llm.paths import sql_path
from ping_llm.splits.options import SIZE_TOLERANCE, STRATUM_TOLERANCE, ShardOptions

if TYPE_CHECKING:
    from ping_llm.splits.holdout import Splits

#: Smallest number of rows for which sizes are checked: with fewer, one row is more than the tolerance.
_LEAST_ROWS = 100

_STRATUM_SQL = {
    "time": "epoch_us(event_time) // {length}",
    "msm_id": "msm_id",
    "ip_version": "ip_version",
    "failed": "rtt < 0",
    "probe_id": "probe_id",
}


@dataclass(frozen=True)
class Check:
    """One checked property: its text, whether it holds, and the figures that show it."""

    promise: str
    holds: bool
    figures: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Shard:
    """A written file: its split, its number within the split, and its number of rows."""

    path: Path
    split: str
    number: int
    rows: int


class Checker:
    """Runs the checks on the written shards."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, options: ShardOptions, shards: list[Shard]):
        self._connection, self._options, self._shards = connection, options, shards

    def rows(self, rows_in: int, left_out: int) -> Check:
        out = sum(shard.rows for shard in self._shards)
        figures = {"in": rows_in, "out": out, "in_gaps": left_out}
        return Check("rows in = rows out + rows in gaps", rows_in == out + left_out, figures)

    def sizes(self) -> Check:
        worst = 0.0
        for split in {shard.split for shard in self._shards}:
            rows = np.array([shard.rows for shard in self._shards if shard.split == split])
            if rows.mean() >= _LEAST_ROWS:
                worst = max(worst, float(np.abs(rows / rows.mean() - 1).max()))
        figures = {"largest_deviation": round(worst, 6), "allowed": SIZE_TOLERANCE}
        return Check("shards of a split are of equal size", worst <= SIZE_TOLERANCE, figures)

    def leakage(self) -> Check | None:
        if self._options.by == "time":
            return self._time_leakage()
        if self._options.by == "probe":
            return self._key_leakage("no source is in two splits", "sources", "src_addr AS key")
        if self._options.by == "pair":
            key = "least(src_addr, dst_addr) AS key, greatest(src_addr, dst_addr) AS other"
            return self._key_leakage("no pair of addresses is in two splits", "pairs", key)
        return None

    def _key_leakage(self, promise: str, what: str, key: str) -> Check:
        names = "key, other" if "other" in key else "key"
        query = (
            f"SELECT count(*), count(*) FILTER (first <> last) FROM (SELECT {names}, min(split) AS first, "
            f"max(split) AS last FROM (SELECT {key}, split FROM {self._scan()}) GROUP BY {names})"
        )
        checked, shared = self._connection.sql(query).fetchall()[0]
        return Check(promise, shared == 0, {what: checked, "in_two_splits": shared})

    def _time_leakage(self) -> Check:
        query = (
            "SELECT split, min(epoch_us(event_time)), max(epoch_us(event_time)) "
            f"FROM {self._scan()} GROUP BY split ORDER BY 2"
        )
        ranges = self._connection.sql(query).fetchall()
        expected = [self._options.splits[index] for index in self._options.used]
        pauses = {
            f"{earlier[0]} to {later[0]}": (later[1] - earlier[2]) / 1e6
            for earlier, later in pairwise(ranges)
        }
        gap = self._options.gap_seconds
        holds = [row[0] for row in ranges] == expected
        holds &= all(pause > 0 and pause >= gap for pause in pauses.values())
        figures = {"seconds_between": pauses, "gap_seconds": gap}
        return Check("every measurement of a split is earlier than all of the next", holds, figures)

    def strata(self, name: str, stratum_us: int) -> Check:
        """Compare the share of each value in each shard with its share in the shard's split."""
        key = _STRATUM_SQL[name].format(length=stratum_us)
        query = f"""
            WITH counted AS (
              SELECT split, filename, {key} AS stratum, count(*) AS n FROM {self._scan()} GROUP BY ALL),
            shards AS (SELECT split, filename, sum(n) AS n FROM counted GROUP BY ALL),
            splits AS (SELECT split, sum(n) AS n FROM counted GROUP BY ALL),
            overall AS (SELECT split, stratum, sum(n) AS n FROM counted GROUP BY ALL),
            compared AS (
              SELECT coalesce(counted.n, 0) / shards.n AS share, overall.n / splits.n AS wanted,
                shards.n AS size, overall.stratum AS stratum
              FROM overall JOIN shards USING (split) JOIN splits USING (split) LEFT JOIN counted
                ON counted.filename = shards.filename
                AND counted.stratum IS NOT DISTINCT FROM overall.stratum)
            SELECT count(DISTINCT stratum), max(abs(share - wanted)) FILTER (size >= {_LEAST_ROWS}),
              max(abs(share / wanted - 1)) FILTER (wanted * size >= {_LEAST_ROWS}) FROM compared"""
        strata, worst, relative = self._connection.sql(query).fetchall()[0]
        figures = {
            "strata": strata,
            "largest_deviation_of_share": round(worst or 0.0, 6),
            "largest_relative_deviation": round(relative or 0.0, 6),
            "allowed": STRATUM_TOLERANCE,
        }
        promise = f"each shard has its share of each {name}"
        return Check(promise, (worst or 0.0) <= STRATUM_TOLERANCE, figures)

    def figures(self) -> dict[str, dict[str, Any]]:
        """The figures of each split: counts, shares and times."""
        # Times as integers, because timestamps as text would depend on the session's time zone.
        query = f"""
            SELECT split, count(*), count(DISTINCT src_addr), count(DISTINCT dst_addr),
              min(epoch_us(event_time)), max(epoch_us(event_time)), avg((rtt < 0)::INT),
              avg((ip_version = 6)::INT)
            FROM {self._scan()} GROUP BY split"""
        found = {row[0]: row[1:] for row in self._connection.sql(query).fetchall()}
        total = sum(row[0] for row in found.values())
        figures = {}
        for split in self._options.splits:
            if split not in found:
                continue
            rows, sources, destinations, first, last, failed, ipv6 = found[split]
            files = sum(shard.split == split for shard in self._shards)
            figures[split] = {
                "rows": rows,
                "share": round(rows / total, 6),
                "shards": files,
                "sources": sources,
                "destinations": destinations,
                "first_time": time_text(first // 1_000_000),
                "last_time": time_text(last // 1_000_000),
                "failed": round(failed, 6),
                "ipv6": round(ipv6, 6),
            }
        return figures

    def shared_probe_ids(self) -> int:
        """Number of probe ids in several splits: possible by source, as probes may have several addresses."""
        query = (
            "SELECT count(*) FILTER (low <> high) FROM "
            "(SELECT probe_id, min(split) AS low, max(split) AS high "
            f"FROM {self._scan()} WHERE probe_id IS NOT NULL GROUP BY probe_id)"
        )
        return self._connection.sql(query).fetchall()[0][0]

    def _scan(self) -> str:
        names = ", ".join(sql_path(shard.path) for shard in self._shards)
        split = "parse_path(filename)[-2] AS split"
        return f"(SELECT *, {split} FROM read_parquet([{names}], filename = true, hive_partitioning = false))"


#: Rules per test: properties that all (1) or none (0) of its measurements must have.
_RULES = {
    "later": {"earlier_than_train": 0, "pair_in_train": 1},
    "pairs": {"earlier_than_train": 0, "pair_visible": 0, "source_in_train": 1, "destination_in_train": 1},
    "sources": {"earlier_than_train": 0, "pair_visible": 0, "source_in_train": 0, "destination_in_train": 1},
    "destinations": {
        "earlier_than_train": 0,
        "pair_visible": 0,
        "source_in_train": 1,
        "destination_in_train": 0,
    },
}


def check_held_out(splits: "Splits") -> dict:
    """Check that nothing of a held-out split leaks, from the data alone; return the figures for the report.

    Raises:
      PingError: a test leaks; the text names the broken rule.
    """
    train, visible = splits.train, splits.visible
    options = asdict(splits.options) if splits.options else None
    report: dict = {"options": options, "timed": splits.timed, "train": len(train), "tests": {}}
    if not len(train):
        raise PingError("no measurement is left to train on: hold out less, or give more measurements")
    last = int(train.time.max())
    train_pairs, visible_pairs = pairs_of(train.src, train.dst), pairs_of(visible.src, visible.dst)
    for name in _RULES:
        test = splits.test(name)
        pairs = pairs_of(test.src, test.dst)
        seen = {
            "earlier_than_train": int((test.time <= last).sum()) if splits.timed else 0,
            "pair_in_train": int(among(pairs, train_pairs).sum()),
            "pair_visible": int(among(pairs, visible_pairs).sum()),
            "source_in_train": int(among(test.src, train.src).sum()),
            "destination_in_train": int(among(test.dst, train.dst).sum()),
        }
        all_of = len(test)
        for rule, share in _RULES[name].items():
            count = share * all_of
            if seen[rule] != count:
                raise PingError(
                    f"split {name!r} leaks: '{rule.replace('_', ' ')}' holds for {seen[rule]:,} of its "
                    f"{all_of:,} measurements, and must hold for {count:,}"
                )
        report["tests"][name] = {
            "measurements": all_of,
            "sources": len(Ids(test.src)),
            "destinations": len(Ids(test.dst)),
            "pairs": len(Ids(pairs)),
            **seen,
        }
    return report


def among(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each row of bytes is one of the known rows, bool [n]."""
    return Ids(known).find(keys) >= 0
