"""The evaluation: scores of every method on every test, stored part by part, then the report.

A part is the scores of one method on one test. After an interruption only missing parts are made.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ping_llm.answer import network
from ping_llm.answer.base import BaseModel
from ping_llm.answer.methods.base import Answering
from ping_llm.answer.methods.registry import full_name, make
from ping_llm.answer.model import Model
from ping_llm.answer.stack import CHUNK
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate import report
from ping_llm.evaluate.by_place import Located
from ping_llm.evaluate.inputs import EvaluateOptions, EvaluationData, Test, evenly_spaced, read
from ping_llm.evaluate.metrics import Bootstrap
from ping_llm.evaluate.parts import FORMAT, baseline_folder, claim, folder_of, places_of, plain
from ping_llm.evaluate.scores import ANSWER_LEVELS, LEVELS, Scores, say_damaged, sources_of, strata, summary
from ping_llm.evaluate.seen import notes, shares, warning
from ping_llm.files import whole_file, write_json
from ping_llm.ingest.tabled import as_tables
from ping_llm.locks import only_writer
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.ids import Ids
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.measurements.times import moment_text
from ping_llm.model import export
from ping_llm.model.packaged import base_folder
from ping_llm.progress import Progress
from ping_llm.splits.novelty import Novelty
from ping_llm.tables import counted

if TYPE_CHECKING:
    from ping_llm.evaluate.subjects import NetworkMethod

#: Number of answers that are made and scored at a time: distributions are large, scores are not.
METHOD_CHUNK = 4096


def evaluate(
    data_path: Path,
    out: Path,
    options: EvaluateOptions,
    run: Path | None = None,
    world: Path | None = None,
    answers: Path | None = None,
) -> dict:
    """Evaluate and write report.json, report.html and PNGs below `out`; returns the report.

    A run is judged by its stack, which users query by default. Its network alone is a method of the report.

    Args:
      data_path: measurements, any input of `ingest`, or a folder that holds splits.
      world: folder of the simulation if the data are simulated; it adds the truth.
      answers: a file to write every question and its answer to, one JSON object per line.
    """
    if run is not None and base_folder(run) is None:
        options = replace(options, destination_context=())
    every_column = world is not None or (run is not None and export.optional_fields(run) != ())
    with as_tables([str(data_path)], out) as (table,):
        data = read(Path(table), options, every_column)
    return evaluate_data(data, out, options, run, world, answers)


def evaluate_data(
    data: EvaluationData,
    out: Path,
    options: EvaluateOptions,
    run: Path | None = None,
    world: Path | None = None,
    answers: Path | None = None,
) -> dict:
    """Evaluate as `evaluate`, with data that are split already."""
    if answers is not None and run is None:
        raise UsageError("--answers needs a run")
    _check_amount(data)
    load = _loader(run, data)
    # Errors in the run and the world are raised before anything is written.
    places = {} if run is None else places_of(run, load)
    truth = None if world is None else _truth(world)
    with only_writer(out, "evaluate"):
        return _evaluate(data, out, options, run, world, answers, load, places, truth)


def _check_amount(data: EvaluationData) -> None:
    """Refuse data that leave nothing to ask about, or nothing to learn from."""
    if len(data.train) and data.tests:
        return
    asked = sum(len(test.asked) for test in data.tests)
    raise PingError(
        f"too little to evaluate: {counted(len(data.train), 'measurement')} to learn from and "
        f"{counted(asked, 'question')} about held-out ones, and an evaluation needs both: give more "
        "measurements, a few hundred of several sources and destinations"
    )


def _evaluate(
    data: EvaluationData,
    out: Path,
    options: EvaluateOptions,
    run: Path | None,
    world: Path | None,
    answers: Path | None,
    load: Callable[[], Model],
    places: dict[str, str],
    truth: Answering | None,
) -> dict:
    claim(out, data, options)
    methods: list[tuple[str, str, Callable[[], Answering]]] = [
        (name, baseline_folder(name), partial(make, name)) for name in map(full_name, options.baselines)
    ]
    located = Located(options.places) if options.places else None
    if located is not None and located.can_boost:
        methods.append(("distance", located.folder, located.method))
    if truth is not None:
        methods.append(("truth", "truth", lambda: truth))
    scores: dict[str, dict[str, Scores]] = {test.name: {} for test in data.tests}
    seconds: dict[str, float] = {}
    with Progress("evaluate", (len(methods) + len(places)) * len(data.tests), "parts") as progress:
        for name, place, build in methods:
            method: Answering | None = None
            answered = False
            started = time.monotonic()
            for test in data.tests:
                path = out / "parts" / place / f"{folder_of(test.name)}.npz"
                part = Scores.stored(path, len(test.asked))
                if part is None:
                    if len(test.learned):
                        part = answer(build().fit(data.learned(test)), test)
                    else:
                        method = method or build().fit(data.train)
                        part = answer(method, test)
                    part.save(path)
                    answered = True
                scores[test.name][name] = part
                progress.advance(note=f"{name} · {test.name}")
            if answered:
                seconds[name] = round(time.monotonic() - started, 1)
        started = time.monotonic()
        for test in data.tests if places else ():
            paths = {
                name: out / "parts" / place / f"{folder_of(test.name)}.npz" for name, place in places.items()
            }
            found = {name: Scores.stored(path, len(test.asked)) for name, path in paths.items()}
            known = {name: part for name, part in found.items() if part is not None}
            if len(known) < len(paths):
                known = answer_by_run(load(), test, data)
                for name, part in known.items():
                    part.save(paths[name])
                seconds["run"] = round(time.monotonic() - started, 1)
            scores[test.name] |= known
            progress.advance(len(paths), note=f"run · {test.name}")
    context, whole = {}, {}
    if run is not None and base_folder(run) is None:
        folder = out / "parts" / places["network"]
        context = _by_context_size(load, folder, data, options)
        whole = _whole_measurements(load, folder, data, options)
    result = _result(data, options, scores, context, run, load, located) | whole
    if world is not None:
        for name, bits in _true_entropies(world, out / "parts" / "truth", data).items():
            result["splits"][name]["truth"]["entropy_bits"] = bits
    if seconds:
        write_json(out / "seconds.json", seconds)  # not in the report, which has the same bytes each time
    report.write(out, result, scores, {test.name: test.asked for test in data.tests})
    if answers is not None:
        subject = "stack" if "stack" in places else "network"
        conditions = [name for name in load().optional_columns if name != "packet_error_count"]
        parts = {name: parts[subject] for name, parts in scores.items()}
        write_answers(answers, data.tests, parts, conditions)
    return result


def answer_by_run(model: Model, test: Test, data: EvaluationData) -> dict[str, Scores]:
    """Score the network, and the stack with the same answers of the network, which are computed once."""
    stack = model.stack
    trained = Novelty.of(data.train) if stack is None else stack.network_trained
    parts: dict[str, list[Scores]] = {}
    queries = test.queries()
    if isinstance(model, BaseModel):
        return _answer_by_base(model.about(data.learned(test)) if len(test.learned) else model, test)
    for start in range(0, len(queries), CHUNK):
        rows = slice(start, start + CHUNK)
        asked, rtt = queries.take(rows), test.asked.rtt[rows]
        own = network.curves(model, asked, test.context, trained)
        parts.setdefault("network", []).append(Scores.of(own.distributions(), rtt))
        if stack is not None:
            made = stack.answer_with(stack.capped(own), asked, test.context)
            parts.setdefault("stack", []).append(Scores.of(made.distributions, rtt))
    return {name: Scores.concatenate(several) for name, several in parts.items()}


def _answer_by_base(model: BaseModel, test: Test) -> dict[str, Scores]:
    """Score the packaged model, whose network is a component of its stack like any other."""
    stack, name = model.stack, model.recipe.network
    assert stack is not None
    parts: dict[str, list[Scores]] = {"network": [], "stack": []}
    queries = test.queries()
    for start in range(0, len(queries), CHUNK):
        rows = slice(start, start + CHUNK)
        asked, rtt = queries.take(rows), test.asked.rtt[rows]
        context = test.context.for_some(rows)
        own = stack.methods[name].predict(asked, context)
        parts["network"].append(Scores.of(own, rtt))
        made = stack.answer_with(None, asked, context, {name: own})
        parts["stack"].append(Scores.of(made.distributions, rtt))
    return {name: Scores.concatenate(several) for name, several in parts.items()}


def write_answers(
    path: Path, tests: Sequence[Test], scores: dict[str, Scores], conditions: Sequence[str] = ()
) -> None:
    """Write one JSON object per question: the query, the result and the answer, in ms.

    Args:
      conditions: columns that the questions state.
    """
    with whole_file(path) as aside, aside.open("w", encoding="utf-8") as file:
        for test in tests:
            asked, answers = test.asked, scores[test.name]
            stated = {name: column for name in conditions if (column := getattr(asked, name)) is not None}
            ends = [unpack(asked.src).to_pylist(), unpack(asked.dst).to_pylist()]
            for index in range(len(asked)):
                quantiles = zip(LEVELS, answers.quantiles[index].tolist(), strict=True)
                values = {
                    "src_addr": ends[0][index],
                    "dst_addr": ends[1][index],
                    "event_time": moment_text(int(asked.time[index])) if test.timed else None,
                    "test": test.name,
                    "rtt": float(asked.rtt[index]),
                    "failure": float(answers.failure[index]),
                    "point": float(answers.point[index]),
                    "quantiles": {f"{level:g}": q for level, q in quantiles if level in ANSWER_LEVELS},
                    "bits": float(answers.bits[index]),
                    "crps": float(answers.crps[index]) if asked.rtt[index] != NO_REPLY else None,
                }
                values |= {
                    name: column[index].item() for name, column in stated.items() if column[index] >= 0
                }
                file.write(json.dumps(values) + "\n")


def answer(method: Answering, test: Test, chunk: int = METHOD_CHUNK) -> Scores:
    """Score the answers of a method to a test, one chunk at a time."""
    parts = []
    queries = test.queries()
    for start in range(0, len(queries), chunk):
        rows = slice(start, start + chunk)
        parts.append(Scores.of(method.predict(queries.take(rows), test.context), test.asked.rtt[rows]))
    return Scores.concatenate(parts)


def _by_context_size(load: Callable, folder: Path, data: EvaluationData, options: EvaluateOptions) -> dict:
    """Return the network's figures by number of context measurements, on the same questions."""
    out: dict = {}
    tests = [test for test in data.tests if test.kind in ("later", "pairs", "destinations")]
    with Progress("by context size", len(tests) * len(options.context_sizes), "parts") as progress:
        for test in tests:
            asked = evenly_spaced(test.asked, options.context_queries)
            smaller = replace(test, asked=asked)
            for size in options.context_sizes:
                path = folder / f"{folder_of(test.name)}-context-{size}.npz"
                part = Scores.stored(path, len(asked))
                if part is None:
                    part = answer(_network(load()).fit(data.train).sized(size), smaller, CHUNK)
                    part.save(path)
                figures = summary(part, asked)
                kept = ("measurements", *(key for key, _, _ in report.HEADLINES))
                out.setdefault(test.name, {})[str(size)] = {k: figures[k] for k in kept if k in figures}
                progress.advance()
    return out


def _whole_measurements(load: Callable, folder: Path, data: EvaluationData, options: EvaluateOptions) -> dict:
    """Return {"likelihood", "addresses"} of the first test: bits by field and order, and address figures."""
    from ping_llm.evaluate import fields

    whole = data.tests[0].asked
    asked = evenly_spaced(whole, options.context_queries)
    makers: dict[str, Callable[[], dict]] = {
        "whole-measurements": lambda: {
            "likelihood": fields.by_order(load(), asked),
            "addresses": fields.address_bytes(load(), asked),
        },
        f"completions-{options.address_questions}": lambda: fields.exact_matches(
            load(), asked, options.address_questions
        ),
    }
    parts = []
    for name, make_part in makers.items():
        parts.append(_stored_json(folder / f"{name}.json", make_part))
    out, matches = parts
    for name, part in matches.items():
        out["addresses"].setdefault(name, {})["exact_match"] = part
    return out


def _true_entropies(world: Path, folder: Path, data: EvaluationData) -> dict[str, float]:
    """Return the exact mean entropy of each test's results in bits, the limit of the truth's own score."""
    from ping_llm.simulate.world import World

    def entropies() -> dict[str, float]:
        truth = World.load(world).truth
        asked = {test.name: test.asked for test in data.tests}
        return {n: float(truth(a.src, a.dst, a.time, a.size).entropy().mean()) for n, a in asked.items()}

    return _stored_json(folder / "entropy.json", entropies)


def _stored_json(path: Path, make: Callable[[], dict]) -> dict:
    """Read a part that is stored as JSON; make it if it is missing or damaged."""
    if path.exists():
        try:
            content = json.loads(path.read_bytes())
            if isinstance(content, dict):
                return content
            say_damaged(path, "it must hold an object")
        except ValueError as error:
            say_damaged(path, error)
    write_json(path, make())
    return json.loads(path.read_bytes())


def _result(data, options, scores, context, run, load, located) -> dict:
    stack = None if run is None else load().stack
    seen = None if run is None else shares(run, data, stack)
    tests: dict = {}
    for test in data.tests:
        bootstrap = Bootstrap(sources_of(test.asked), options.replicates, options.seed)
        tests[test.name] = {
            name: summary(part, test.asked, bootstrap) | {"strata": strata(part, test.asked)}
            for name, part in scores[test.name].items()
        }
        if located is not None:
            located.add_strata(tests[test.name], test.asked, scores[test.name])
    return {
        "format": FORMAT,
        "run": None if run is None else str(run),
        "stack": None if stack is None else stack.as_dict(),
        "seen": seen,
        "warning": warning(seen),
        "notes": notes(data, run, seen),
        "data": {
            "fingerprint": data.fingerprint,
            **data.proof,
            "asked": {
                test.name: {"questions": len(test.asked), "sources": len(Ids(test.asked.src))}
                for test in data.tests
            },
        },
        "options": plain(options),
        "splits": tests,
        "by_context_size": context,
    }


def _loader(run: Path | None, data: EvaluationData) -> Callable[[], Model]:
    loaded: list[Model] = []

    def load() -> Model:
        if not loaded:
            assert run is not None
            model = Model.load(run, data=False)
            # The packaged model answers from the measurements that the simple methods learn from.
            loaded.append(model.about(data.train) if isinstance(model, BaseModel) else model)
        return loaded[0]

    return load


def _network(model: Model) -> "NetworkMethod":
    from ping_llm.evaluate.subjects import NetworkMethod

    return NetworkMethod(model)


def _truth(world: Path) -> Answering:
    from ping_llm.evaluate.subjects import TruthMethod
    from ping_llm.simulate.world import World

    return TruthMethod(World.load(world))
