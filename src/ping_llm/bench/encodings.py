"""RTT encodings compared: the same small model, budget and questions with each, in bits over the same bins.

A step has the same number of tokens with every encoding, so with an RTT of eight bytes training sees fewer
measurements: that is a part of its cost. Only the result is compared: bits of the failure or of its
millisecond bin, given addresses, time and earlier measurements of the source.
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.methods.base import Answering
from ping_llm.answer.methods.registry import make
from ping_llm.answer.model import Model
from ping_llm.answer.network import Asking, ways
from ping_llm.errors import UsageError
from ping_llm.evaluate.metrics import Bootstrap
from ping_llm.files import write_json
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Ids
from ping_llm.measurements.parquet import read_measurements
from ping_llm.measurements.schema import MAX_RTT_MS, NO_REPLY
from ping_llm.progress import Progress
from ping_llm.simulate.options import WorldOptions
from ping_llm.splits.holdout import Splits, split, write_training_part
from ping_llm.tokens.rtt import RTT_ENCODINGS, RttEncoding

#: The tests: pairs with earlier measurements, and pairs without.
TESTS = ("later", "pairs")


@dataclass(frozen=True)
class EncodingsBench:
    """Options of the benchmark.

    Attributes:
        encodings: names of the encodings.
        steps: number of steps per training.
        batch: number of sequences of 256 tokens per step.
        layers, width: sizes of the model.
        questions: largest number per test.
        context: largest number of earlier measurements of the source in a question's context.
    """

    encodings: tuple[str, ...] = tuple(RTT_ENCODINGS)
    steps: int = 200
    batch: int = 8
    layers: int = 2
    width: int = 96
    questions: int = 120
    context: int = 12

    def words(self) -> list[str]:
        """Return overrides of the config `tiny`; contexts resemble questions, so a small budget suffices."""
        return [
            f"steps={self.steps}",
            f"network_batch_size={self.batch}",
            f"base_num_decoder_layers={self.layers}",
            f"base_emb_dim={self.width}",
            f"base_mlp_dim={3 * self.width}",
            f"head_dim={self.width // 2}",
            "remat_policy=none",
            "scan_layers=false",
            "learning_rate=3.e-3",
            "network_ordered_fields=0.8",
            "network_timestamps_all=0.85",
            "network_timestamps_part=0.05",
            "network_repeat_source=0.0",
            "network_prefix_probability=0.0",
            "network_focus_probability=0.7",
            "network_focus_destinations=2",
            "network_measurements_per_context=16",
            "network_max_contexts_per_row=1000",
            f"checkpoint_period={self.steps}",
        ]


def measure(bench: EncodingsBench, data: Path | None = None, keep: Path | None = None) -> dict[str, Any]:
    """Train and evaluate with each encoding.

    Args:
        bench: what to measure.
        data: measurements; None: a simulated world, whose truth is measured too.
        keep: a folder for the trainings, which resume there when interrupted; None: all is removed.
    """
    for name in bench.encodings:
        if name not in RTT_ENCODINGS:
            raise UsageError(f"there is no RTT encoding {name!r}; choose from: {', '.join(RTT_ENCODINGS)}")
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ping-llm-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        simulated = data is None
        measurements = data or _world(folder / "world")
        splits = split(read_measurements(measurements))
        rows = _rows(measurements, folder)
        tests = {name: _drawn(splits.test(name), bench.questions) for name in TESTS}
        tests = {name: test for name, test in tests.items() if len(test)}
        result: dict[str, Any] = {
            "data": "simulated" if simulated else str(data),
            "train": int(splits.is_train.sum()),
            "questions": {name: len(test) for name, test in tests.items()},
            "bench": asdict(bench),
            "tokens": bench.steps * bench.batch * 256,
            "reference": _reference(splits, tests, folder / "world" if simulated else None),
            "encodings": {},
        }
        with Progress("bench encodings", len(bench.encodings), "trainings") as progress:
            for name in bench.encodings:
                result["encodings"][name] = _one(bench, name, rows, splits, tests, folder / name)
                progress.advance(note=name)
                write_json(folder / "encodings.json", result)
    return result


def _world(folder: Path) -> Path:
    from ping_llm.simulate import simulate

    if not (folder / "world.json").exists():
        simulate(folder, WorldOptions(measurements=100_000, probes=150, targets=30, days=7, seed=1))
    return folder


def _rows(measurements: Path, folder: Path) -> Path:
    from ping_llm.rows.build import RowOptions, build
    from ping_llm.splits.holdout import SplitOptions

    rows = folder / "rows"
    if not (rows / "manifest.json").exists():
        if not (folder / "train" / "split.json").exists():
            write_training_part(measurements, folder / "train", SplitOptions())
        build([str(folder / "train")], rows, RowOptions())
    return rows


def _drawn(test: Columns, count: int) -> Columns:
    if len(test) <= count:
        return test
    return test.take(np.sort(np.random.default_rng(0).choice(len(test), count, replace=False)))


def _one(
    bench: EncodingsBench, name: str, rows: Path, splits: Splits, tests: dict[str, Columns], run: Path
) -> dict[str, Any]:
    from ping_llm.train import records
    from ping_llm.train.run import train

    train("tiny", [*bench.words(), f"network_rtt_encoding={name}"], run=run, rows=rows)
    made = list(records.read(run / "metrics.jsonl"))
    model = Model.load(run)
    out: dict[str, Any] = {
        "bytes": model.encoding.bytes,
        "seconds_training": round(sum(record["seconds"] for record in made), 1),
    }
    history, asking = History(splits.visible), Asking(size=bench.context)
    for test, asked in tests.items():
        questions = [several[0] for several in ways(asked.queries(), history, asking)]
        started = time.monotonic()
        scores = model.rtt_scores(questions, asked.rtt, levels=(0.5,))
        bits = scores.bits + beyond_bits(model.encoding, asked.rtt)
        error = np.abs(scores.quantiles[:, 0] - asked.rtt)[asked.replied]
        out[test] = _figures(bits, error, asked) | {
            "seconds_per_question": round((time.monotonic() - started) / len(asked), 4)
        }
    return out


def beyond_bits(encoding: RttEncoding, rtt: np.ndarray) -> np.ndarray:
    """Return the bits that state the bin of an RTT that is encoded only as "above the limit"."""
    limit = encoding.clip_limit_ms
    if not limit:
        return np.zeros(len(rtt))
    return np.where(rtt > limit, np.log2(MAX_RTT_MS - limit), 0.0)


def _reference(splits: Splits, tests: dict[str, Columns], world: Path | None) -> dict[str, Any]:
    """Score the training marginal, the pair's last value and the truth (if any) on the same questions."""
    methods: dict[str, Answering] = {name: make(name).fit(splits.train) for name in ("global", "pair last")}
    if world is not None:
        from ping_llm.evaluate.subjects import TruthMethod
        from ping_llm.simulate.world import World

        methods["truth"] = TruthMethod(World.load(world))
    history = History(splits.visible)
    out: dict[str, Any] = {}
    for name, method in methods.items():
        for test, asked in tests.items():
            answers = method.predict(asked.queries(), history)
            error = np.abs(answers.point - asked.rtt)[asked.replied]
            out.setdefault(name, {})[test] = _figures(answers.bits(asked.rtt), error, asked)
    return out


def _figures(bits: np.ndarray, error: np.ndarray, asked: Columns) -> dict[str, Any]:
    failed = asked.rtt == NO_REPLY
    return {
        "bits": float(bits.mean()),
        "interval": Bootstrap(Ids(asked.src).of_rows).mean(bits),
        "bits_of_replies": float(bits[~failed].mean()) if not failed.all() else None,
        "medae_ms": float(np.median(error)) if len(error) else None,
    }
