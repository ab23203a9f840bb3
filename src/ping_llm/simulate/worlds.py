"""Many worlds, each unlike the others: what a model trains on that is to answer about a world it never saw.

What varies is drawn from ranges that real studies support (docs/simulate.md has the comparison): how many
sources and destinations, how many of the pairs are measured and how often, anycast, detours, changes of
route, jitter, congestion, IPv6, failures.
"""

import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.simulate.options import Stream, WorldOptions, bits, uniform
from ping_llm.simulate.write import simulate

#: Fewer measurements would not be a world.
LEAST_MEASUREMENTS = 100
MOST_WORLDS = 100_000


def draw_worlds(worlds: int, measurements: int, seed: int = 0) -> Iterator[WorldOptions]:
    """The options of each world; all have the same number of measurements, up to one."""
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
        return float(uniform(seed, Stream.WORLD, np.array([number]), next(turn))[0])

    def between(low: float, high: float) -> float:
        """Log-uniform."""
        return low * (high / low) ** chance()

    probes = round(between(8, min(600, measurements / 4)))
    targets = max(2, round(between(3, 150)))
    start = WorldOptions().start_date + timedelta(days=int(365 * chance()))
    # One world in three has no IPv6, one in six nothing else.
    kind = chance()
    ipv6 = 0.0 if kind < 1 / 3 else 1.0 if kind < 1 / 2 else chance()
    anycast, fails = chance(), between(0.002, 0.2)
    return WorldOptions(
        measurements=measurements,
        probes=probes,
        targets=targets,
        days=max(1, round(between(1, 60))),
        ases=max(4, round(math.sqrt(probes + targets) * between(0.7, 4))),
        seed=int(bits(seed, Stream.WORLD, np.array([number]), 1000)[0] >> np.uint64(1)),
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
    """Write each world into a folder of its own below `out`. Those that are there already are kept."""
    drawn = list(draw_worlds(worlds, measurements, seed))
    for options in drawn:
        options.resolved()
    return [simulate(out / f"world-{number:05d}", options).options for number, options in enumerate(drawn)]
