"""The schedule of measurements: as in RIPE Atlas, a probe pings each of its targets at regular intervals.

A probe with c measurements has about 0.8 √c targets (`width`; one slot per target). It measures all of them
at one interval, of 4 minutes to 6 hours, or shorter if its measurements do not fit otherwise. It starts at a
random time, and at the end of the world's days it continues at their beginning, so that all days are alike.
All times are computed from the slot and the round: any period can be produced without the rest, so a world of
any length is written in bounded memory.
"""

from typing import NamedTuple

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.simulate.options import Draw, WorldOptions, bits_at, stream_key, uniform, uniform_at
from ping_llm.simulate.topology import allocate, normal_pair

DAY = 86_400

#: Possible intervals between rounds, in seconds, as chosen by Atlas users.
INTERVALS = np.array([1, 10, 60, 240, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600])

#: Sigma of the log-normal number of measurements per probe: the mean is twice the median, and the largest of
#: a million is about 200 times the mean.
COUNT_SIGMA = 1.2

#: Largest delay of a round: a twentieth of the interval, and at most 60 seconds.
LATE_SHARE, LATE_MOST = 20, 60


class Schedule(NamedTuple):
    """Arrays by probe and by slot; the slots of probe p are first_slot[p]:first_slot[p + 1]."""

    measurements: np.ndarray
    interval: np.ndarray
    start: np.ndarray  # seconds after the world's start
    first_slot: np.ndarray
    target: np.ndarray
    phase: np.ndarray
    late_key: np.uint64


def make_schedule(options: WorldOptions, target_weights: np.ndarray) -> Schedule:
    assert options.probes is not None
    assert options.days is not None
    seed, probes = options.seed, options.probes
    ids = np.arange(probes)
    weights = np.exp(COUNT_SIGMA * normal_pair(seed, Draw.PROBE_COUNT, ids)[0])
    count = 1 + allocate(options.measurements - probes, weights)
    slots = np.minimum(len(target_weights), np.ceil(options.width * np.sqrt(count))).astype(np.int64)
    rounds = -(-count // slots)

    # Usually the longest interval that fits, sometimes one or more steps shorter.
    seconds = options.days * DAY
    longest = np.searchsorted(INTERVALS, seconds // rounds, side="right") - 1
    # With more than one round per second, times repeat, unlike in a real dump.
    longest = longest.clip(0)
    shorter = (np.log2(1 / uniform(seed, Draw.PROBE_INTERVAL, ids))).astype(np.int64)
    shortest = np.minimum(longest, 3)
    interval = INTERVALS[np.maximum(longest - shorter, shortest)]
    start = (uniform(seed, Draw.PROBE_START, ids) * seconds).astype(np.int64)

    first_slot = np.concatenate([[0], np.cumsum(slots)])
    cumulative = np.cumsum(target_weights) / target_weights.sum()
    target = np.empty(first_slot[-1], np.int32)
    phase = np.empty(first_slot[-1], np.int32)
    keys = stream_key(seed, Draw.SLOT_TARGET), stream_key(seed, Draw.SLOT_PHASE)
    _fill_slots(first_slot, interval, cumulative, *keys, target, phase)
    late_key = stream_key(seed, Draw.TIME_JITTER)
    return Schedule(count, interval.astype(np.int32), start, first_slot, target, phase, late_key)


@kernel
def _fill_slots(first_slot, interval, cumulative, target_key, phase_key, target, phase):
    targets = len(cumulative)
    for probe in range(len(first_slot) - 1):
        begin, end = first_slot[probe], first_slot[probe + 1]
        late = np.minimum(interval[probe] // LATE_SHARE, LATE_MOST)
        for slot in range(begin, end):
            choice = np.int64(0)
            for attempt in range(64):
                choice = np.searchsorted(cumulative, uniform_at(target_key, slot, attempt))
                if not _contains(target, begin, slot, choice):
                    break
            # If a probe already has nearly all targets, take the next free one.
            while _contains(target, begin, slot, choice):
                choice = (choice + 1) % targets
            target[slot] = choice
            phase[slot] = np.int64(uniform_at(phase_key, slot, 0) * (interval[probe] - late))


@kernel
def _contains(target, begin, end, choice):
    return (target[begin:end] == choice).any()


@kernel
def rounds_of(count: int, slots: int, position: int) -> int:
    """Number of a probe's measurements that go to its slot at `position`."""
    return count // slots + (1 if position < count % slots else 0)


@kernel
def moment(schedule, probe, slot, round_):
    """Time of one measurement, in seconds after the world's start, not yet wrapped into the world's days."""
    interval = np.int64(schedule.interval[probe])
    late = np.minimum(interval // LATE_SHARE, LATE_MOST)
    delay = np.int64(bits_at(schedule.late_key, slot, round_) % np.uint64(late + 1))
    return schedule.start[probe] + schedule.phase[slot] + round_ * interval + delay


@kernel
def survey(schedule, hours, per_target):
    """Count all measurements by hour since the start, and by target."""
    seconds = len(hours) * 3_600
    for probe in range(len(schedule.measurements)):
        begin, end = schedule.first_slot[probe], schedule.first_slot[probe + 1]
        for slot in range(begin, end):
            rounds = rounds_of(schedule.measurements[probe], end - begin, slot - begin)
            per_target[schedule.target[slot]] += rounds
            for round_ in range(rounds):
                hours[(moment(schedule, probe, slot, round_) % seconds) // 3_600] += 1


@kernel
def fill(schedule, begin_second, end_second, seconds, probes, slots, rounds, times):
    """Fill in all measurements with begin_second <= time < end_second, by probe. Returns their number."""
    size = 0
    for probe in range(len(schedule.measurements)):
        interval = np.int64(schedule.interval[probe])
        begin, end = schedule.first_slot[probe], schedule.first_slot[probe + 1]
        most = rounds_of(schedule.measurements[probe], end - begin, 0)
        start = schedule.start[probe]
        # Check the period once for each time the probe's schedule wraps around: usually once or twice.
        for wrapped in range(0, start + most * interval + LATE_MOST, seconds):
            low, high = begin_second + wrapped, end_second + wrapped
            if start >= high or start + most * interval + LATE_MOST < low:
                continue
            for slot in range(begin, end):
                here = rounds_of(schedule.measurements[probe], end - begin, slot - begin)
                offset = start + schedule.phase[slot]
                first = max(np.int64(0), (low - offset - LATE_MOST) // interval)
                last = min(here, (high - offset) // interval + 1)
                for round_ in range(first, last):
                    time = moment(schedule, probe, slot, round_)
                    if low <= time < high:
                        probes[size] = probe
                        slots[size] = slot
                        rounds[size] = round_
                        times[size] = time - wrapped
                        size += 1
    return size
