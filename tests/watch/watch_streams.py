"""Streams of results for tests: pairs at a steady interval, with known changes."""

import numpy as np

from ping_llm.measurements.addresses import pack_one
from ping_llm.measurements.columns import Columns

START = 1_700_000_000_000_000
MINUTE = 60_000_000


def addresses(count, network, third=0):
    return [pack_one(f"{network}.{third}.{number + 1}") for number in range(count)]


def steady(sources, destinations, rounds, seed=0, minutes=10):
    """Every source pings every destination in every round: log-normal RTTs around the pair's own level."""
    random = np.random.default_rng(seed)
    pairs = [(src, dst) for src in sources for dst in destinations]
    level = random.uniform(20, 200, len(pairs))
    spread = random.uniform(0.01, 0.1, len(pairs))
    times, src, dst, rtt = [], [], [], []
    for round_ in range(rounds):
        jitter = random.integers(0, 1_000_000, len(pairs))
        times.append(np.sort(START + round_ * minutes * MINUTE + jitter))
        rtt.append(level * np.exp(spread * random.standard_normal(len(pairs))))
        src += [pair[0] for pair in pairs]
        dst += [pair[1] for pair in pairs]
    packed = [np.frombuffer(b"".join(ends), np.uint8).reshape(-1, 16) for ends in (src, dst)]
    return Columns(np.concatenate(times), *packed, np.concatenate(rtt))


def fed(watcher, columns, batch=512):
    """(results, events) of a stream."""
    seen, events = [], []
    for start in range(0, len(columns), batch):
        out = watcher.add(columns.take(slice(start, start + batch)))
        seen += out.seen
        events += out.events
    return seen, events
