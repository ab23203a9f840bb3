"""The evaluation itself: every method on every test, kept part by part, then the report.

A part is one method's answers to one test. Run again after an interruption, only missing parts are made.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.evaluate import report
from ping_llm.evaluate.asking import ALSO_UNNAMED, STRANGE_SOURCE, Asking
from ping_llm.evaluate.baselines.base import Baseline
from ping_llm.evaluate.baselines.every import make
from ping_llm.evaluate.bootstrap import Bootstrap
from ping_llm.evaluate.calibration import Calibration
from ping_llm.evaluate.columns import Columns
from ping_llm.evaluate.data import EvaluationData, Test, read
from ping_llm.evaluate.ids import Ids
from ping_llm.evaluate.options import EvaluateOptions
from ping_llm.evaluate.scores import Scores, sources_of, strata, summary
from ping_llm.files import write_json
from ping_llm.progress import Progress

#: Of the parts and of report.json.
FORMAT = 1

#: Answers are made and scored this many at a time: distributions are large, scores are not.
CHUNK = 4096
MODEL_CHUNK = 128


def evaluate(
    data_path: Path,
    out: Path,
    options: EvaluateOptions,
    run: Path | None = None,
    world: Path | None = None,
    calibrated: bool = True,
) -> dict:
    """Evaluate and write report.json, report.html and PNGs below `out`; returns the report.

    A run that has a calibration answers with it unless `calibrated` is False.
    """
    data = read(data_path, options)
    _claim(out, data, options)
    methods: list[tuple[str, str, Callable[[], Baseline]]] = [
        (name, _baseline_folder(name), partial(make, name)) for name in options.baselines
    ]
    if world is not None:
        methods.append(("truth", "truth", lambda: _truth(world)))
    context, whole, calibration = {}, {}, None
    if run is not None:
        calibration = Calibration.load(run) if calibrated else None
        folder = f"model-{_weights_digest(run)}-{_manner_digest(calibration)}"
        load = _loader(run, data.train, calibration)
        methods.append(("model", folder, load))
    total = len(methods) * len(data.tests)
    scores: dict[str, dict[str, Scores]] = {test.name: {} for test in data.tests}
    seconds: dict[str, float] = {}
    with Progress("evaluate", total, "parts") as progress:
        for name, folder, build in methods:
            method: Baseline | None = None
            started = time.monotonic()
            for test in data.tests:
                path = out / "parts" / folder / f"{_folder(test.name)}.npz"
                if not path.exists():
                    method = method or build().fit(data.train)
                    chunk = MODEL_CHUNK if name == "model" else CHUNK
                    answer(method, test, chunk).save(path)
                scores[test.name][name] = Scores.load(path)
                progress.advance(note=f"{name} · {test.name}")
            if method is not None:
                seconds[name] = round(time.monotonic() - started, 1)
    if run is not None:
        context = _by_context_size(load, out / "parts" / folder, data, options)
        whole = _whole_measurements(load, out / "parts" / folder, data, options)
    result = _result(data, options, scores, context, run, calibration) | whole
    if world is not None:
        for name, bits in _true_entropies(world, out / "parts" / "truth", data).items():
            result["splits"][name]["truth"]["entropy_bits"] = bits
    if seconds:
        write_json(out / "seconds.json", seconds)  # not in the report, which is the same whenever it is made
    report.write(out, result, scores, {test.name: test.asked for test in data.tests})
    return result


def answer(method: Baseline, test: Test, chunk: int = CHUNK) -> Scores:
    """Ask and score, a chunk at a time."""
    parts = []
    for start in range(0, len(test.asked), chunk):
        part = test.asked.take(slice(start, start + chunk))
        parts.append(Scores.of(method.predict(part.queries(), test.context), part.rtt))
    return Scores.concatenate(parts)


def calibrate(run: Path, data_path: Path, options: EvaluateOptions) -> Calibration:
    """Fit a run's calibration on questions that its training has not seen, and put it into the run."""
    from ping_llm.evaluate.model_method import GRID

    data = read(data_path, options)
    tests = [test for test in data.tests if test.kind == "later"]
    # What is new to a run is so at all times: without the cut in time there is many times as much of it.
    tests += [
        test
        for test in read(data_path, replace(options, splits=replace(options.splits, time=1.0))).tests
        if test.kind != "later"
    ]
    method = _loader(run, data.train)()
    manners: list[tuple[Test, Any, int | None]] = [(test, method, None) for test in tests]
    if method.model.knows_unnamed_sources:
        # Few held-out sources are strange; all can be asked about as if they were.
        manners += [(test, method.as_strangers(), STRANGE_SOURCE) for test in tests if test.kind == "sources"]
    parts = []
    with Progress("calibrate", sum(len(test.asked) for test, *_ in manners), "questions") as progress:
        for test, asking, kind in manners:
            for start in range(0, len(test.asked), MODEL_CHUNK):
                asked = test.asked.take(slice(start, start + MODEL_CHUNK))
                levels, failure, _ = asking.raw(asked.queries(), test.context)
                of_asked = asking.kinds(asked.queries()) if kind is None else np.full(len(asked), kind)
                parts.append((levels, failure, of_asked, asked))
                progress.advance(len(asked))
    levels, failure, of_asked = (np.concatenate([part[i] for part in parts]) for i in range(3))
    asked = Columns.concatenate([part[3] for part in parts])
    calibration = Calibration.fit(GRID, levels, failure, asked, of_asked, data.train)
    calibration.save(run)
    return calibration


def _by_context_size(load: Callable, folder: Path, data: EvaluationData, options: EvaluateOptions) -> dict:
    """The model's figures by the number of measurements it is given, on the same questions."""
    out: dict = {}
    tests = [test for test in data.tests if test.kind in ("later", "pairs", "destinations")]
    with Progress("by context size", len(tests) * len(options.context_sizes), "parts") as progress:
        for test in tests:
            asked = test.asked.take(slice(None, None, max(1, len(test.asked) // options.context_queries)))
            smaller = Test(test.name, test.kind, asked, test.context)
            for size in options.context_sizes:
                path = folder / f"{_folder(test.name)}-context-{size}.npz"
                if not path.exists():
                    answer(load().sized(size), smaller, MODEL_CHUNK).save(path)
                figures = summary(Scores.load(path), asked)
                kept = ("measurements", *(key for key, _, _ in report.HEADLINES))
                out.setdefault(test.name, {})[str(size)] = {k: figures[k] for k in kept if k in figures}
                progress.advance()
    return out


def _whole_measurements(load: Callable, folder: Path, data: EvaluationData, options: EvaluateOptions) -> dict:
    """Bits by field and order, and addresses, on the first test's questions: {"likelihood", "addresses"}."""
    from ping_llm.evaluate import completions, likelihood

    whole = data.tests[0].asked
    asked = whole.take(slice(None, None, max(1, len(whole) // options.context_queries)))
    makers: dict[str, Callable[[], dict]] = {
        "whole-measurements": lambda: {
            "likelihood": likelihood.by_order(load().model, asked),
            "addresses": likelihood.address_bytes(load().model, asked),
        },
        f"completions-{options.address_questions}": lambda: completions.exact_matches(
            load().model, asked, options.address_questions
        ),
    }
    parts = []
    for name, make_part in makers.items():
        path = folder / f"{name}.json"
        if not path.exists():
            write_json(path, make_part())
        parts.append(json.loads(path.read_text()))
    out, matches = parts
    for name, part in matches.items():
        out["addresses"].setdefault(name, {})["exact_match"] = part
    return out


def _true_entropies(world: Path, folder: Path, data: EvaluationData) -> dict[str, float]:
    """Of each test, the exact mean entropy of its results in bits: what the truth's own score tends to."""
    from ping_llm.simulate.world import World

    path = folder / "entropy.json"
    if not path.exists():
        truth = World.load(world).truth
        asked = {test.name: test.asked for test in data.tests}
        write_json(path, {n: float(truth(a.src, a.dst, a.time).entropy().mean()) for n, a in asked.items()})
    return json.loads(path.read_text())


def _result(data, options, scores, context, run, calibration) -> dict:
    tests: dict = {}
    for test in data.tests:
        bootstrap = Bootstrap(sources_of(test.asked), options.replicates, options.seed)
        tests[test.name] = {
            name: summary(part, test.asked, bootstrap) | {"strata": strata(part, test.asked)}
            for name, part in scores[test.name].items()
        }
    return {
        "format": FORMAT,
        "run": None if run is None else str(run),
        "calibration": None if calibration is None else calibration.as_dict(),
        "data": {
            "fingerprint": data.fingerprint,
            **data.proof,
            "asked": {
                test.name: {"questions": len(test.asked), "sources": len(Ids(test.asked.src))}
                for test in data.tests
            },
        },
        "options": _plain(options),
        "splits": tests,
        "by_context_size": context,
    }


def _claim(out: Path, data: EvaluationData, options: EvaluateOptions) -> None:
    """Parts of other data or options are not mixed with these."""
    settings = _plain(options)
    # Which baselines run, and how intervals are drawn, changes no part.
    for free in ("baselines", "replicates", "source_context", "context_sizes", "address_questions"):
        settings.pop(free)
    key = {"format": FORMAT, "data": data.fingerprint, "options": settings}
    path = out / "parts" / "key.json"
    if path.exists():
        if json.loads(path.read_text()) != json.loads(json.dumps(key)):
            raise UsageError(
                f"{out} holds the parts of an evaluation on other data or with other options: "
                "name another --out, or remove it"
            )
    else:
        write_json(path, key)


def _plain(options: EvaluateOptions) -> dict:
    return json.loads(json.dumps(asdict(options)))


def _folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _baseline_folder(name: str) -> str:
    revision = make(name).revision
    return _folder(name) + (f"-{revision}" if revision > 1 else "")


def _loader(run: Path, train: Columns, calibration: Calibration | None = None) -> Callable:
    loaded: list = []

    def load():
        if not loaded:
            from ping_llm.evaluate.model_method import ModelMethod

            loaded.append(ModelMethod.load(run, calibration).fit(train))
        return loaded[0]

    return load


def _truth(world: Path) -> Baseline:
    from ping_llm.evaluate.truth_method import TruthMethod
    from ping_llm.simulate.world import World

    return TruthMethod(World.load(world))


def _manner_digest(calibration: Calibration | None) -> str:
    """Of how a run is asked and what is made of its answers."""
    return hashlib.sha256(repr((Asking(), ALSO_UNNAMED, calibration)).encode()).hexdigest()[:8]


def _weights_digest(run: Path) -> str:
    """Of the exported weights; of a run without an export, of its newest checkpoint's name and time."""
    for candidate in (run / "model.safetensors", run / "export" / "model.safetensors"):
        if candidate.exists():
            with candidate.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    steps = sorted((run / "checkpoints").glob("*"), key=lambda p: p.stat().st_mtime) if run.exists() else []
    if not steps:
        raise UsageError(f"{run}: neither an export nor a run with checkpoints")
    return hashlib.sha256(f"{steps[-1]}{steps[-1].stat().st_mtime_ns}".encode()).hexdigest()[:12]
