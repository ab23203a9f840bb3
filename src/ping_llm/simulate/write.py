"""Writer of a world's measurements: Parquet by time, one file per day (date=YYYY-MM-DD/part-0.parquet).

A slice of up to half a million measurements is in memory at a time; apart from that, memory grows with the
number of probes (about 150 bytes each), not of measurements.

A model that has to answer about unseen worlds is trained on many different worlds. Their options are drawn
from ranges that real studies support (docs/simulate.md has the comparison): numbers of sources and
destinations, share and frequency of measured pairs, anycast, detours, changes of route, jitter, congestion,
IPv6, failures.
"""

import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm import files
from ping_llm.errors import UsageError
from ping_llm.locks import LOCK_FILE, only_writer
from ping_llm.measurements import addresses
from ping_llm.measurements.schema import MEASUREMENTS
from ping_llm.progress import Progress
from ping_llm.simulate.latency import draw, order_by_time
from ping_llm.simulate.options import Draw, WorldOptions, bits, uniform
from ping_llm.simulate.schedule import fill
from ping_llm.simulate.world import WORLD_FILE, World, read_options

#: Measurements per slice, which is one row group; more only if a single hour has more.
SLICE = 500_000

#: First measurement id, above those of the built-in measurements of RIPE Atlas.
FIRST_MSM_ID = 1_000_001


def simulate(out: Path, options: WorldOptions) -> World:
    """Write the world into `out`. Existing days (complete, with the same options) are kept."""
    options = options.resolved()
    _claim(out, options)
    with only_writer(out, "simulate"):
        return _write(out, options)


def _write(out: Path, options: WorldOptions) -> World:
    world = World.build(options)
    world.save(out)
    writer = _Tables(world)
    with Progress("simulate", options.measurements, "measurements") as progress:
        for day in range(options.days or 0):
            path = day_file(out, options, day)
            if path.exists():
                progress.advance(int(world.per_hour[day * 24 : day * 24 + 24].sum()))
                continue
            if not world.per_hour[day * 24 : day * 24 + 24].any():
                continue
            with files.whole_file(path) as aside, _parquet(aside) as parquet:
                for table in writer.tables(day):
                    parquet.write_table(table, row_group_size=SLICE)
                    progress.advance(len(table))
    return world


def _parquet(path: Path) -> pq.ParquetWriter:
    # zstd 1 needs 13 bytes per measurement; snappy needs 18, in a sixth less time. Times and RTTs hardly
    # repeat.
    repeating = [name for name in MEASUREMENTS.names if name not in ("event_time", "rtt")]
    return pq.ParquetWriter(
        path, MEASUREMENTS, compression="zstd", compression_level=1, use_dictionary=repeating
    )


def day_file(out: Path, options: WorldOptions, day: int) -> Path:
    return out / f"date={options.start_date + timedelta(days=day)}" / "part-0.parquet"


def _claim(out: Path, options: WorldOptions) -> None:
    """Raise UsageError if the folder holds other files or another world."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder to write the measurements into.")
    if (out / WORLD_FILE).exists():
        if read_options(out).resolved() != options:
            raise UsageError(
                f"{out} holds another world (see {out / WORLD_FILE}): remove it, or name another folder."
            )
    elif out.exists() and any(entry.name != LOCK_FILE for entry in out.iterdir()):
        raise UsageError(f"{out} is not empty and not a simulated world: name another folder.")


class _Tables:
    """Produces the tables of a day, slice by slice."""

    def __init__(self, world: World):
        self._world = world
        self._sources = addresses.unpack(world.sources)
        self._destinations = addresses.unpack(world.destinations)

    def tables(self, day: int) -> Iterator[pa.Table]:
        hours = self._world.per_hour[day * 24 : day * 24 + 24]
        begin = 0
        while begin < 24:
            end = begin + 1
            while end < 24 and hours[begin : end + 1].sum() <= SLICE:
                end += 1
            size = int(hours[begin:end].sum())
            if size:
                yield self._table((day * 24 + begin) * 3_600, (day * 24 + end) * 3_600, size)
            begin = end

    def _table(self, begin: int, end: int, size: int) -> pa.Table:
        world = self._world
        start = world.options.start_second
        probes, slots, rounds, times = (np.empty(size, np.int64) for _ in range(4))
        filled = fill(world.schedule, begin, end, len(world.per_hour) * 3_600, probes, slots, rounds, times)
        assert filled == size, f"{filled} measurements in seconds {begin} to {end}, {size} expected"
        # Draw results before sorting: in the order of probes, the tables of a probe stay in the cache.
        targets = world.schedule.target[slots].astype(np.int64)
        sizes = world.sizes_of(slots, rounds, 2 * targets + world.source_is_ipv6[probes])
        rtt = np.empty(size)
        errors = np.empty(size, np.int64)
        draw(world.latency, start, probes, slots, rounds, times, targets, sizes, rtt, errors)
        order = np.empty(size, np.int64)
        order_by_time(times, begin, end, order)
        probes, targets, times = probes[order], targets[order], times[order]
        ipv6 = world.source_is_ipv6[probes]
        endpoint = 2 * targets + ipv6
        columns = [
            pa.array((start + times) * 1_000_000, pa.timestamp("us", tz="UTC")),
            self._sources.take(pa.array(probes)),
            self._destinations.take(pa.array(endpoint)),
            pa.array(np.where(ipv6, 6, 4).astype(np.uint8)),
            pa.array(rtt[order]),
            pa.array(FIRST_MSM_ID + endpoint),
            pa.array(sizes[order]),
            pa.array(errors[order]),
            pa.array(probes + 1),
        ]
        return pa.Table.from_arrays(columns, schema=MEASUREMENTS)


#: Smallest number of measurements per world, and largest number of worlds.
LEAST_MEASUREMENTS = 100
MOST_WORLDS = 100_000


def draw_worlds(worlds: int, measurements: int, seed: int = 0) -> Iterator[WorldOptions]:
    """The options of each world; their numbers of measurements differ by at most one."""
    if not 1 <= worlds <= MOST_WORLDS:
        raise UsageError(f"--worlds is a number from 1 to {MOST_WORLDS:,}, not {worlds:,}.")
    if measurements < LEAST_MEASUREMENTS * worlds:
        raise UsageError(
            f"{measurements:,} measurements are too few for {worlds:,} worlds: "
            f"each needs at least {LEAST_MEASUREMENTS}."
        )
    for number in range(worlds):
        yield _draw(seed, number, measurements // worlds + (number < measurements % worlds))


def _draw(seed: int, number: int, measurements: int) -> WorldOptions:
    turn = iter(range(100))

    def chance() -> float:
        return float(uniform(seed, Draw.WORLD, np.array([number]), next(turn))[0])

    def between(low: float, high: float) -> float:
        """A log-uniform random number."""
        return low * (high / low) ** chance()

    probes = round(between(8, min(600, measurements / 4)))
    targets = max(2, round(between(3, 150)))
    start = WorldOptions().start_date + timedelta(days=int(365 * chance()))
    # One world in three has no IPv6, one in six only IPv6.
    kind = chance()
    ipv6 = 0.0 if kind < 1 / 3 else 1.0 if kind < 1 / 2 else chance()
    anycast, fails = chance(), between(0.002, 0.2)
    return WorldOptions(
        measurements=measurements,
        probes=probes,
        targets=targets,
        days=max(1, round(between(1, 60))),
        ases=max(4, round(math.sqrt(probes + targets) * between(0.7, 4))),
        seed=int(bits(seed, Draw.WORLD, np.array([number]), 1000)[0] >> np.uint64(1)),
        ipv6_share=ipv6,
        failed_share=fails,
        start=start.isoformat(),
        anycast_share=0.0 if anycast < 0.4 else (anycast - 0.4) / 0.6,
        detour_share=between(0.03, 0.5),
        changed_share=between(0.02, 0.5),
        width=between(0.4, 6.0),
        jitter=between(0.1, 4.0),
        congestion=between(0.1, 4.0),
    )


def simulate_worlds(out: Path, worlds: int, measurements: int, seed: int = 0) -> list[WorldOptions]:
    """Write each world into a separate folder below `out`. Existing ones are kept."""
    drawn = list(draw_worlds(worlds, measurements, seed))
    for options in drawn:
        options.resolved()
    return [simulate(out / f"world-{number:05d}", options).options for number, options in enumerate(drawn)]
