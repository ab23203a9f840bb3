"""The hold-out check: the model's answers against the truth and against the simple ways."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.addresses import unpack
from ping_llm.demo.options import DemoOptions
from ping_llm.demo.picture import draw_answer
from ping_llm.evaluate.asking import Asking, ways
from ping_llm.evaluate.baselines.global_ import Global
from ping_llm.evaluate.baselines.pair_history import PairHistory
from ping_llm.evaluate.columns import Columns, read_measurements
from ping_llm.evaluate.history import History
from ping_llm.evaluate.metrics import median_absolute_error
from ping_llm.query.context import Question
from ping_llm.query.model import Model
from ping_llm.simulate.world import World


@dataclass(frozen=True)
class HoldOut:
    """Held-out measurements of sources that were trained on, and what may be known of each beforehand."""

    train: Columns
    asked: Columns
    questions: list[Question]


def choose(train: Columns, held: Columns, options: DemoOptions) -> HoldOut:
    """Draw the questions, asked as an evaluation asks them."""
    seen = np.isin(_keys(held.src), _keys(train.src))
    candidates = np.flatnonzero(seen)
    generator = np.random.default_rng(options.seed)
    chosen = np.sort(generator.permutation(candidates)[: options.questions])
    asked = held.take(chosen)
    asking = Asking(size=options.context)
    questions = [question for (question,) in ways(asked.queries(), History(train), asking)]
    return HoldOut(train, asked, questions)


def _keys(packed: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(packed).view("V16").ravel()


def check(run: Path, world: World, split: Path, options: DemoOptions) -> dict[str, Any]:
    """The figures of the last screen, and the picture of one answer at run/answer.png."""
    train, held = (read_measurements(split / name) for name in ("train.parquet", "holdout.parquet"))
    hold_out = choose(train, held, options)
    asked = hold_out.asked
    model = Model.load(run)
    scores = model.rtt_scores(hold_out.questions, asked.rtt)
    truth = world.truth(asked.src, asked.dst, asked.time)
    past = History(train)
    order0 = Global().fit(train).predict(asked.queries(), past)
    pair = PairHistory("median").fit(train).predict(asked.queries(), past)
    replied = asked.replied

    def medae(medians: np.ndarray) -> float:
        return median_absolute_error(medians[replied], asked.rtt[replied])

    return {
        "bits_per_measurement": float(scores.bits.mean()),
        "true_entropy_bits": float(truth.bits(asked.rtt).mean()),
        "order0_bits": float(order0.bits(asked.rtt).mean()),
        "medae_ms": medae(scores.quantiles[:, 0]),
        "global_median_medae_ms": medae(np.full(len(asked), np.median(train.rtt[train.replied]))),
        "pair_history_medae_ms": medae(pair.point),
        "questions": len(asked),
        "example": _example(run, model, world, hold_out),
    }


def _example(run: Path, model: Model, world: World, hold_out: HoldOut) -> dict[str, Any]:
    """The first question that got a reply: the model's distribution beside the true one."""
    asked = hold_out.asked
    index = int(np.flatnonzero(asked.replied)[0])
    one = slice(index, index + 1)
    truth = world.truth(asked.src[one], asked.dst[one], asked.time[one])
    answer = model.rtt_many([hold_out.questions[index]])[0].distribution
    levels = np.array([0.1, 0.5, 0.9])
    ours, true = answer.quantile(levels), truth.quantile(levels[None])[0]
    source, destination = unpack(np.stack([asked.src[index], asked.dst[index]])).to_pylist()
    at = str(np.datetime64(int(asked.time[index] // 1_000_000), "s")) + "Z"

    low = np.floor(min(answer.quantile(0.01), true[0]))
    high = np.ceil(max(answer.quantile(0.97), true[2], asked.rtt[index]) + 1)
    edges = np.linspace(low, high, int(min(max(high - low, 40), 120)) + 1)
    draw_answer(
        run / "answer.png",
        f"{source} → {destination}",
        edges,
        np.diff(answer.cdf(edges)),
        np.diff(truth.cdf(edges[None])[0]),
        float(asked.rtt[index]),
    )
    return {
        "src": source,
        "dst": destination,
        "at": at,
        "measured_ms": float(asked.rtt[index]),
        "model_p10_ms": float(ours[0]),
        "model_median_ms": float(ours[1]),
        "model_p90_ms": float(ours[2]),
        "model_failure": answer.failure,
        "true_p10_ms": float(true[0]),
        "true_median_ms": float(true[1]),
        "true_p90_ms": float(true[2]),
        "true_failure": float(truth.failure_probability[0]),
    }
