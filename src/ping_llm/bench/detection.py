"""Delay and false alarms of a watch, on changes with known times, compared with two simple rules.

The changes are those of a simulated world's routes (a path of 5 ms more or less, and of at least 10 %), and
outages and slow networks that are added to a stream at known times:

    an outage        all results to a destination, or from a source, are lost for six hours
    a slow network   all results to a destination take 40 ms more for twelve hours

Either lasts as long as ten results of a pair take, if that is longer.

A real stream has unknown changes of its own: there only the added ones must be found, and every other alarm
counts as false, though some are not.

The simple rules raise an alarm when three results of a pair in a row are out of bounds, and end it when three
are within: a `threshold` in ms, or `k` times the median absolute deviation from the median of the pair's
last 32 replies (times 1.4826, so that k is in standard deviations). No reply is out of bounds in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.model import Model
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.parquet import read_measurements
from ping_llm.measurements.schema import DAY_US, HOUR_US, NO_REPLY
from ping_llm.simulate.latency import propagation
from ping_llm.simulate.world import World, positions_of
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.sequential import DIRECTIONS, DOWN, LOSS, UP
from ping_llm.watch.store import address_text, result_values
from ping_llm.watch.watcher import Watcher

#: An alarm belongs to a change of its pair at most this many hours, or this many results, before it.
_WITHIN_HOURS, _WITHIN_RESULTS = 24, 16

_IN_A_ROW, _WINDOW = 3, 32
#: Number of earlier results from which a pair is judged.
_LEAST = 8


@dataclass(frozen=True)
class Change:
    """A change of a pair at `row`; `wanted`: it must be found (the end of a slow network need not be)."""

    row: int
    pair: int
    direction: int
    wanted: bool = True


@dataclass(frozen=True)
class ResultStream:
    """Results in time order, the pair of each result, and the changes."""

    columns: Columns
    pair: np.ndarray
    changes: tuple[Change, ...]

    @property
    def days(self) -> float:
        time = self.columns.time
        return float(time[-1] - time[0]) / DAY_US

    @classmethod
    def of(cls, columns: Columns, world: World | None, seed: int = 0) -> "ResultStream":
        """Make a stream with added changes; for a simulated world, also with those of its routes."""
        pair = Ids(pairs_of(columns.src, columns.dst)).of_rows
        changes = _routes(columns, pair, world) if world is not None else []
        columns, added = _disturbed(columns, pair, np.random.default_rng(seed))
        return cls(columns, pair, tuple(changes + added))


def _by_pair(pair: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each pair, in order."""
    order = np.argsort(pair, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(pair[order])) + 1)


def _routes(columns: Columns, pair: np.ndarray, world: World) -> list[Change]:
    """Return the changes of the world's own routes."""
    probe = positions_of(world.sources, columns.src, "source", "probe")
    target = positions_of(world.destinations, columns.dst, "destination", "target") // 2
    seconds = columns.time // 1_000_000
    path = np.array(
        [propagation(world.latency, p, t, s) for p, t, s in zip(probe, target, seconds, strict=True)]
    )
    out = []
    for rows in _by_pair(pair):
        step = np.diff(path[rows])
        for place in np.flatnonzero(np.abs(step) > np.maximum(5.0, 0.1 * path[rows][:-1])).tolist():
            known = place + 1 >= _LEAST
            direction = UP if step[place] > 0 else DOWN
            out.append(Change(int(rows[place + 1]), int(pair[rows[0]]), direction, known))
    return out


def _disturbed(
    columns: Columns, pair: np.ndarray, random: np.random.Generator
) -> tuple[Columns, list[Change]]:
    """Add outages and slow networks in turn; return the stream and the added changes."""
    rtt, time = columns.rtt.copy(), columns.time
    ends = {"dst": Ids(columns.dst).of_rows, "src": Ids(columns.src).of_rows}
    changes: list[Change] = []
    touched = np.zeros(len(time), bool)
    begin = int(time[0]) + int(time[-1] - time[0]) // 8
    number = 0
    steps = [np.diff(time[rows]) for rows in _by_pair(pair) if len(rows) > 2 * _LEAST]
    ten = 10 * float(np.median(np.concatenate(steps))) / HOUR_US if steps else 0.0
    while True:
        kind = ("outage of a destination", "slow network", "outage of a source")[number % 3]
        hours = max(12 if kind == "slow network" else 6, ten)
        if begin + int((hours + 2) * HOUR_US) >= int(time[-1]):
            break
        key = ends["src" if kind == "outage of a source" else "dst"]
        during = (time >= begin) & (time < begin + hours * HOUR_US)
        # One of the busiest ends, so that enough results change.
        busy = np.bincount(key[during], minlength=key.max() + 1)
        chosen = int(random.choice(np.argsort(-busy)[: max(3, (busy > 0).sum() // 3)]))
        hit = during & (key == chosen)
        lost = kind != "slow network"
        rtt[hit] = np.where(rtt[hit] == NO_REPLY, NO_REPLY, NO_REPLY if lost else rtt[hit] + 40.0)
        for rows in _by_pair(pair):
            inside = np.flatnonzero(hit[rows])
            if not len(inside):
                continue
            # A pair that is already disturbed does not change visibly.
            before = rows[max(0, inside[0] - _LEAST) : inside[-1] + 1]
            known = inside[0] >= _LEAST and len(inside) >= 6 and not touched[before].any()
            first, last = int(rows[inside[0]]), int(inside[-1])
            changes.append(Change(first, int(pair[first]), LOSS if lost else UP, bool(known)))
            if last + 1 < len(rows) and not lost:
                changes.append(Change(int(rows[last + 1]), int(pair[first]), DOWN, False))
        touched |= hit
        begin += int(hours / 3) * HOUR_US + HOUR_US
        number += 1
    return Columns(time, columns.src, columns.dst, rtt), changes


@dataclass(frozen=True)
class Found:
    """An alarm, with the row of the stream that raised it."""

    row: int
    pair: int
    direction: int


def by_watch(model: Model, stream: ResultStream, per_day: float) -> list[Found]:
    """Return the alarms of `ping-llm watch`."""
    watcher = Watcher(model, WatchOptions(false_alarms_per_day=per_day))
    out = []
    columns, batch = stream.columns, 512
    for start in range(0, len(columns), batch):
        made = watcher.add(columns.take(slice(start, start + batch)))
        at = {}
        for seen in made.seen:
            src, dst = address_text(seen.src), address_text(seen.dst)
            at[src, dst, result_values(seen)["time"]] = seen.number
        for event in made.events:
            if event["event"] == "alarm":
                row = at[event["src"], event["dst"], event["time"]]
                out.append(Found(row, int(stream.pair[row]), DIRECTIONS.index(event["change"])))
    return out


def by_threshold(stream: ResultStream, limit_ms: float) -> list[Found]:
    out: list[Found] = []
    for rows in _by_pair(stream.pair):
        rtt = stream.columns.rtt[rows]
        out += _alarms(rows, stream.pair, rtt == NO_REPLY, rtt > limit_ms, np.zeros(len(rows), bool))
    return out


def by_deviation(stream: ResultStream, k: float) -> list[Found]:
    out: list[Found] = []
    for rows in _by_pair(stream.pair):
        rtt = stream.columns.rtt[rows]
        high, low = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        for place in range(_LEAST, len(rows)):
            known = rtt[max(0, place - _WINDOW) : place]
            known = known[known != NO_REPLY]
            if len(known) < _LEAST or rtt[place] == NO_REPLY:
                continue
            middle = float(np.median(known))
            bound = k * 1.4826 * max(float(np.median(np.abs(known - middle))), 0.05)
            high[place], low[place] = rtt[place] > middle + bound, rtt[place] < middle - bound
        out += _alarms(rows, stream.pair, rtt == NO_REPLY, high, low)
    return out


def _alarms(
    rows: np.ndarray, pair: np.ndarray, lost: np.ndarray, high: np.ndarray, low: np.ndarray
) -> list[Found]:
    """Return alarms: three results in a row out of bounds on one side raise one, three within end it."""
    side = np.where(lost, LOSS + 1, np.where(high, UP + 1, np.where(low, DOWN + 1, 0)))
    out, active, run, last = [], False, 0, -1
    for place in range(_LEAST, len(rows)):
        run = run + 1 if side[place] == last else 1
        last = int(side[place])
        if run >= _IN_A_ROW:
            if last and not active:
                out.append(Found(int(rows[place]), int(pair[rows[place]]), last - 1))
            active = bool(last)
    return out


def score(stream: ResultStream, found: Sequence[Found]) -> dict[str, Any]:
    """Return the share of changes that were found, the median delay, and false alarms per day."""
    time = stream.columns.time
    of_pair: dict[int, list[Change]] = {}
    for change in stream.changes:
        of_pair.setdefault(change.pair, []).append(change)
    position = np.empty(len(time), np.int64)
    for rows in _by_pair(stream.pair):
        position[rows] = np.arange(len(rows))
    first: dict[Change, Found] = {}
    false = 0
    for alarm in sorted(found, key=lambda each: each.row):
        causes = [
            change
            for change in of_pair.get(alarm.pair, [])
            if change.direction == alarm.direction
            and change.row <= alarm.row
            and (
                time[alarm.row] - time[change.row] <= _WITHIN_HOURS * HOUR_US
                or position[alarm.row] - position[change.row] <= _WITHIN_RESULTS
            )
        ]
        if not causes:
            false += 1
            continue
        cause = max(causes, key=lambda change: change.row)
        first.setdefault(cause, alarm)
    wanted = [change for change in stream.changes if change.wanted]
    hits = [(change, first[change]) for change in wanted if change in first]
    results = [int(position[alarm.row] - position[change.row]) + 1 for change, alarm in hits]
    hours = [float(time[alarm.row] - time[change.row]) / HOUR_US for change, alarm in hits]
    return {
        "changes": len(wanted),
        "found": round(len(hits) / max(len(wanted), 1), 3),
        "delay_results": float(np.median(results)) if results else None,
        "delay_hours": round(float(np.median(hours)), 2) if hours else None,
        "false_per_day": round(false / stream.days, 2),
    }


def measure(
    model: Model, stream: ResultStream, rates: Sequence[float], limits: Sequence[float], ks: Sequence[float]
) -> dict[str, Any]:
    """Return the figures by rule and parameter."""
    out: dict[str, Any] = {}
    for rate in rates:
        out[f"watch, {rate:g} per day"] = score(stream, by_watch(model, stream, rate))
    for k in ks:
        out[f"median ± {k:g} MAD"] = score(stream, by_deviation(stream, k))
    for limit in limits:
        out[f"above {limit:g} ms"] = score(stream, by_threshold(stream, limit))
    return out


#: Parameters of the simple rules in `measured`: factors k, and limits in ms.
_KS, _LIMITS = (3.0, 5.0, 8.0, 12.0), (150.0, 250.0)


def measured(
    run: Path,
    data: Path,
    world: Path | None,
    shuffled: bool,
    rates: Sequence[float],
    past: Path | None = None,
) -> dict[str, Any]:
    """Return figures of all rules on the results of a file or folder, with changes added at known times.

    Args:
      world: folder of the simulation that the results are of.
      shuffled: shuffle each pair's results in time, and add no changes: every alarm is false.
      rates: allowed false alarms per day, one watch per rate.
      past: earlier measurements that the model answers from, as `--data` of `watch`.
    """
    model = Model.load(run, data=past or False)
    columns = read_stream(data).sorted_by_time()
    if shuffled:
        pair, random = Ids(pairs_of(columns.src, columns.dst)).of_rows, np.random.default_rng(0)
        rtt = columns.rtt.copy()
        rtt[np.argsort(pair, kind="stable")] = columns.rtt[np.lexsort((random.random(len(pair)), pair))]
        stream = ResultStream(Columns(columns.time, columns.src, columns.dst, rtt), pair, ())
    else:
        stream = ResultStream.of(columns, None if world is None else World.load(world))
    wanted = sum(change.wanted for change in stream.changes)
    rules = measure(model, stream, rates, _LIMITS, _KS)
    return {"results": len(columns), "days": stream.days, "changes": wanted, "rules": rules}


def read_stream(path: Path) -> Columns:
    """Read a file of Atlas results, or a folder of measurements."""
    if path.is_dir():
        return read_measurements(path)
    import pyarrow as pa

    from ping_llm.ingest import read_measurements as read_raw

    return Columns.from_table(pa.Table.from_batches(list(read_raw([str(path)]))))
