"""The demo: `ping-llm fit` on a simulated Internet, with the true distribution for comparison.

runs/demo-world   the simulation
runs/demo         the run of the fit; summary.json and answer.png are added by the demo
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.files import whole_file, write_json
from ping_llm.fit.options import FitOptions
from ping_llm.fit.run import Journal, check_options, fit
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.parquet import read_measurements
from ping_llm.pages import tidy_figure
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.world import World
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import Splits, split
from ping_llm.tables import table


def draw_answer(
    path: Path,
    title: str,
    edges: np.ndarray,
    model: np.ndarray,
    truth: np.ndarray,
    observed: float,
) -> None:
    """Draw the probabilities of RTT bins given a reply, of the model and of the truth.

    Args:
      edges: [n + 1], ms.
      model, truth: [n], probability of each bin.
      observed: the held-out RTT, ms; -1: no reply.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), dpi=120, layout="constrained")
    axes.stairs(model, edges, fill=True, alpha=0.45, color="#1f77b4", label="model")
    axes.stairs(truth, edges, color="#d62728", linewidth=1.5, label="truth")
    if observed >= 0:
        axes.axvline(observed, color="black", linestyle=":", label=f"measured: {observed:.1f} ms")
    axes.set(xlabel="RTT, ms", ylabel="probability of each bin", title=title, xlim=(edges[0], edges[-1]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    tidy_figure(figure)
    with whole_file(path) as aside:
        figure.savefig(aside, format="png")
    pyplot.close(figure)


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo, with every default.

    The world is small and dense, about 60 measurements per pair, so that a model of 0.7M parameters can learn
    it in minutes. With four minutes of training the demo took 616 s on two cores.
    """

    measurements: int = 200_000
    probes: int = 150
    targets: int = 30
    days: int = 14
    seed: int = 1
    minutes: float = 3.0
    #: Number of questions per test, and per kind of question that the stack is fitted on.
    questions: int = 300
    #: Number of addresses per end and IP version that are completed.
    address_questions: int = 2


def run_demo(run: Path, options: DemoOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Simulate, fit, and compare one answer with the truth; return the content of summary.json."""
    summary_path = run / "summary.json"
    if summary_path.exists():
        say(f"{summary_path} is there: the demo was finished before. Remove {run} to run it again.")
        return json.loads(summary_path.read_text())
    world = run.with_name(f"{run.name}-world")
    fit_options = FitOptions(
        minutes=options.minutes,
        stack_questions=options.questions,
        queries=options.questions,
        address_questions=options.address_questions,
        context_queries=20,
    )
    world_options = WorldOptions(
        measurements=options.measurements,
        probes=options.probes,
        targets=options.targets,
        days=options.days,
        seed=options.seed,
    )
    check_options(fit_options)
    Journal(run, [str(world)], fit_options, None)  # refuses other options before anything is written
    say(f"simulate an Internet: {options.measurements:,} measurements")
    simulate(world, world_options)
    result = fit([str(world)], run, fit_options, say, world=world)
    splits = split(read_measurements(world), fit_options.splits)
    summary = {
        "options": asdict(options),
        "seconds": round(sum(result["seconds"].values()), 1),
        "seconds_by_step": result["seconds"],
        "tests": {name: _figures(methods) for name, methods in result["splits"].items()},
        "example": _example(run, world, splits),
    }
    write_json(summary_path, summary)
    return summary


def _figures(methods: dict[str, Any]) -> dict[str, Any]:
    """Return bits, median error, CRPS and entropy of every method on one test."""
    return {
        name: {key: part[key] for key in ("bits", "medae_ms", "crps_ms", "entropy_bits") if key in part}
        for name, part in methods.items()
    }


#: Number of newest measurements that the packaged model answers from.
_FOR_BASE = 20_000


def _example(run: Path, world_path: Path, splits: Splits) -> dict[str, Any]:
    """Answer a held-out question that got a reply, as for a user, and compare the answer with the truth.

    The packaged model answers it too, without training, from the newest measurements.
    """
    from ping_llm.answer.base import BaseModel
    from ping_llm.answer.context import Question
    from ping_llm.answer.model import Model
    from ping_llm.tokens.statement import whole

    known = splits.test("later")
    index = int(np.flatnonzero(known.replied)[0])
    src, dst, time = known.src[index], known.dst[index], int(known.time[index])
    one = slice(index, index + 1)
    truth = World.load(world_path).truth(known.src[one], known.dst[one], known.time[one])
    question = Question(whole(src.tobytes()), whole(dst.tobytes()), time)
    answer = Model.load(run).rtt_many([question])[0].distribution
    newest = splits.train.sorted_by_time().take(slice(-_FOR_BASE, None))
    untrained = BaseModel.packaged().about(newest).rtt_many([question])[0].distribution
    levels = np.array([0.1, 0.5, 0.9])
    before = untrained.quantile(levels)
    ours, true = answer.quantile(levels), truth.quantile(levels[None])[0]
    source, destination = unpack_one(src.tobytes()), unpack_one(dst.tobytes())
    low = np.floor(min(answer.quantile(0.01), true[0]))
    high = np.ceil(max(answer.quantile(0.97), true[2], known.rtt[index]) + 1)
    edges = np.linspace(low, high, int(min(max(high - low, 40), 120)) + 1)
    draw_answer(
        run / "answer.png",
        f"{source} → {destination}",
        edges,
        np.diff(answer.cdf(edges)),
        np.diff(truth.cdf(edges[None])[0]),
        float(known.rtt[index]),
    )
    return {
        "src": source,
        "dst": destination,
        "at": str(np.datetime64(time // 1_000_000, "s")) + "Z",
        "measured_ms": float(known.rtt[index]),
        "model_p10_ms": float(ours[0]),
        "model_median_ms": float(ours[1]),
        "model_p90_ms": float(ours[2]),
        "model_failure": answer.failure,
        "base_p10_ms": float(before[0]),
        "base_median_ms": float(before[1]),
        "base_p90_ms": float(before[2]),
        "true_p10_ms": float(true[0]),
        "true_median_ms": float(true[1]),
        "true_p90_ms": float(true[2]),
        "true_failure": float(truth.failure_probability[0]),
    }


_TITLES = {
    "later": "a known pair, later",
    "pairs": "a new pair of known ends",
    "sources, 10 known": "a new source with 10 measurements",
    "destinations": "a new destination",
}


def last_screen(summary: dict[str, Any], run: str) -> str:
    """Return the demo's output: scores beside the truth and one histogram, an example, and next commands."""
    known = summary["tests"]["later"]
    ratio = known["global"]["medae_ms"] / known["stack"]["medae_ms"]
    verdict = (
        f"For known pairs, the model's median error is {ratio:.1f} times smaller than that of the global "
        "median: it has learned."
        if ratio >= 2
        else f"For known pairs, the model's median error is only {ratio:.1f} times smaller than that of the "
        "global median. This demo expects at least 2 times: it has NOT learned enough."
    )
    bits, errors = [], []
    for test, title in _TITLES.items():
        methods = summary["tests"].get(test)
        if methods is None or "bits" not in methods["stack"]:
            continue
        others = {n: m for n, m in methods.items() if n not in ("stack", "network", "truth") and "bits" in m}
        best = {key: min((m[key], name) for name, m in others.items())[1] for key in ("bits", "medae_ms")}
        bits.append(
            (
                title,
                *(f"{methods[name]['bits']:.2f}" for name in ("truth", "stack", "network")),
                f"{others[best['bits']]['bits']:.2f} ({best['bits']})",
                f"{methods['global']['bits']:.2f}",
            )
        )
        errors.append(
            (
                title,
                *(f"{methods[name]['medae_ms']:.2f}" for name in ("truth", "stack", "network")),
                f"{others[best['medae_ms']]['medae_ms']:.2f} ({best['medae_ms']})",
                f"{methods['global']['medae_ms']:.2f}",
            )
        )
    columns = ("truth", "ping-llm", "network alone", "best simple method", "one histogram")
    example = summary["example"]
    return "\n".join(
        [
            "",
            f"ping-llm demo · a simulated Internet, held-out questions · {summary['seconds']:.0f} s in all",
            "",
            table(bits, ("bits per result, for", *columns)),
            "",
            table(errors, ("median error in ms, for", *columns)),
            "",
            verdict,
            "",
            f"An example: {example['src']} → {example['dst']} at {example['at']}",
            f"  base      median {example['base_median_ms']:.1f} ms, 80 % between "
            f"{example['base_p10_ms']:.1f} and {example['base_p90_ms']:.1f}, before any training",
            f"  ping-llm  median {example['model_median_ms']:.1f} ms, 80 % between "
            f"{example['model_p10_ms']:.1f} and {example['model_p90_ms']:.1f}, "
            f"P(no reply) {example['model_failure']:.3f}",
            f"  truth     median {example['true_median_ms']:.1f} ms, 80 % between "
            f"{example['true_p10_ms']:.1f} and {example['true_p90_ms']:.1f}, "
            f"P(no reply) {example['true_failure']:.3f}",
            f"  picture: {run}/answer.png · report: {run}/report/report.html",
            "",
            "What to try next",
            f"  .venv/bin/ping-llm query rtt {run} --src {example['src']} --dst {example['dst']}"
            f" --at {example['at']}",
            "  .venv/bin/ping-llm fit YOUR-PINGS --run runs/mine",
            "  .venv/bin/ping-llm --help",
            "",
        ]
    )
