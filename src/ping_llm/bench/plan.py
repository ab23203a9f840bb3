"""Quality of answers after planned measurements, compared with random ones.

A replay has pairs that were measured twice. The first result of a pair is the result of measuring it; the
second is queried. Besides the training, which may have the same pairs, answers use only the first results of
the chosen pairs of their source.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.model import Model
from ping_llm.bench.rank import write_untrained
from ping_llm.fit.calibrate import calibrate_columns
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.parquet import read_measurements
from ping_llm.measurements.schema import HOUR_US, NO_REPLY
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import SplitOptions

#: Number of draws of the random choice.
_RANDOM = 5

#: Methods of the stack on the simulated world: those that need no training of a network.
_METHODS = ("by source", "by destination", "prefixes", "vivaldi", "neighbours", "pair recent", "pair last")


@dataclass(frozen=True)
class Replay:
    """n pairs: the result of measuring each, and the later result that is queried."""

    first: Columns
    second: Columns

    def questions(self) -> list[Question]:
        ends = zip(self.second.src, self.second.dst, self.second.time.tolist(), strict=True)
        return [Question(Prefix.of(src), Prefix.of(dst), time) for src, dst, time in ends]

    def answered(self, model: Model, chosen: Sequence[int]) -> dict[str, float]:
        """Return mean CRPS (ms) and bits of the second results, given the first ones of `chosen` pairs."""
        known = self.first.take(np.array(sorted(chosen), np.int64))
        asked = []
        for question, src in zip(self.questions(), self.second.src, strict=True):
            own = known.take((known.src == src).all(axis=1))
            asked.append(replace(question, context=Context.of(src, own.dst, own.time, own.rtt)))
        answers = [answer.distribution for answer in model.rtt_many(asked)]
        crps, bits = [], []
        for answer, rtt in zip(answers, self.second.rtt.tolist(), strict=True):
            bits.append(answer.bits(rtt))
            if rtt != NO_REPLY:
                made = RttDistributions(answer.edges[None], answer.levels[None], np.array([answer.failure]))
                crps.append(float(made.crps(np.array([rtt]))[0]))
        return {"crps_ms": round(float(np.mean(crps)), 3), "bits": round(float(np.mean(bits)), 3)}


def of_stream(columns: Columns, sources: int, destinations: int, seed: int = 0) -> Replay:
    """Take the first two replies of pairs, of sources that measured several destinations twice."""
    columns = columns.take(columns.replied).sorted_by_time()
    pair, source = Ids(pairs_of(columns.src, columns.dst)).of_rows, Ids(columns.src).of_rows
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    counts = np.diff(np.append(starts, len(order)))
    first, second = order[starts[counts > 1]], order[starts[counts > 1] + 1]
    random = np.random.default_rng(seed)
    kept = []
    numbers, held = np.unique(source[first], return_counts=True)
    for number in random.permutation(numbers[held >= max(3, destinations // 2)])[:sources]:
        own = np.flatnonzero(source[first] == number)
        kept += random.permutation(own)[:destinations].tolist()
    # Measurements must precede the questions: all questions of a source have the time of its last one.
    chosen = np.array(kept, np.int64)
    later = columns.take(second[chosen])
    time = later.time.copy()
    for number in np.unique(source[first[chosen]]):
        own = source[first[chosen]] == number
        time[own] = max(int(columns.time[first[chosen]][own].max()) + 2_000_000, int(time[own].max()))
    return Replay(columns.take(first[chosen]), replace(later, time=time))


def simulated(sources: int, destinations: int, seed: int) -> tuple[Model, Replay]:
    """Return a stack of simple methods, fitted to a small simulated world, and later results of its pairs.

    Pairs are not chosen by whether they were measured in the training: with seed 0, a fifth were.
    """
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as name:
        folder = Path(name)
        options = WorldOptions(measurements=30_000, probes=250, targets=40, days=6, seed=seed, ipv6_share=0.0)
        world = simulate(folder / "world", options)
        train = read_measurements(folder / "world")
        write_untrained(folder / "run")
        calibrate_columns(folder / "run", train, SplitOptions(0.8, 0.15, 0.2, 0.2, 2), 60, _METHODS)
        model = Model.load(folder / "run", data=False)
    random = np.random.default_rng(seed)
    probes = random.choice(world.probes, sources, replace=False)
    src = np.repeat(world.sources[probes], destinations, axis=0)
    targets = np.concatenate([random.choice(world.targets, destinations, replace=False) for _ in probes])
    dst = world.destinations[2 * targets]
    start = int(train.time.max()) + HOUR_US
    drawn = []
    for later in (0, HOUR_US):
        time = np.full(len(src), start + later, np.int64)
        rtt = world.truth(src, dst, time).quantile(random.random(len(src)))
        drawn.append(Columns(time, src, dst, rtt))
    return model, Replay(*drawn)


def measure(model: Model, replay: Replay, budget: int, seed: int = 0) -> dict[str, Any]:
    """Return figures after no measurement, `budget` random ones (mean of five draws), planned ones, all."""
    questions = replay.questions()
    place = {(question.src, question.dst): number for number, question in enumerate(questions)}
    random = np.random.default_rng(seed)
    out: dict[str, Any] = {"pairs": len(questions), "budget": budget, "none": replay.answered(model, [])}
    draws = [
        replay.answered(model, random.choice(len(questions), budget, replace=False).tolist())
        for _ in range(_RANDOM)
    ]
    out["random"] = {key: round(float(np.mean([draw[key] for draw in draws])), 3) for key in draws[0]}
    for by in ("crps", "bits"):
        planned = model.plan(questions, budget, by=by)
        names = {(str(src), str(dst)): number for (src, dst), number in place.items()}
        chosen = [names[each.src, each.dst] for each in planned.measurements]
        out[f"planned by {by}"] = replay.answered(model, chosen)
    out["all"] = replay.answered(model, list(range(len(questions))))
    return out
