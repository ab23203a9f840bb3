"""The whole evaluation on small data: resumable, in one piece, and with a model and a truth in it."""

import html
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.answer.methods.registry import make
from ping_llm.answer.model import Model
from ping_llm.answer.network import Asking, curves, ways
from ping_llm.cli import app
from ping_llm.cli import evaluate as evaluate_cli
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate import fields
from ping_llm.evaluate.inputs import EvaluateOptions, evenly_spaced
from ping_llm.evaluate.metrics import Bootstrap
from ping_llm.evaluate.report import cells, compare
from ping_llm.evaluate.run import evaluate
from ping_llm.evaluate.verdict import headline
from ping_llm.measurements.addresses import is_ipv4
from ping_llm.measurements.history import History
from ping_llm.measurements.parquet import read_measurements, write_measurements
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine
from ping_llm.model.random import random_tensors
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import SplitOptions
from ping_llm.tokens import vocab
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.vocab import BYTE0, Field

OPTIONS = EvaluateOptions(
    splits=SplitOptions(sources=0.2, pairs=0.2),
    queries=150,
    replicates=20,
    source_context=(0, 2),
    baselines=("global", "pair last", "by source"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    simulate(folder, WorldOptions(measurements=6000, probes=60, targets=15, days=2, seed=1))
    return folder


@pytest.fixture(scope="module")
def report(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return out, evaluate(world, out, OPTIONS, world=world)


def test_the_report_is_whole(report):
    out, result = report
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(result))
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 4
    assert "http" not in page  # nothing is fetched
    assert html.escape(headline(result)[0]) in page
    for test, methods in result["splits"].items():
        assert set(methods) == {"global", "pair last", "by source", "truth"}
        for name, part in methods.items():
            low, high = part["intervals"]["bits"]
            assert low <= part["bits"] <= high, (test, name)
            assert methods["truth"]["bits"] <= part["bits"], (test, name)
        # The truth's score tends to its entropy, which is exact.
        low, high = methods["truth"]["intervals"]["bits"]
        assert low - 0.3 < methods["truth"]["entropy_bits"] < high + 0.3, test
        assert result["data"]["asked"][test]["questions"] == methods["global"]["measurements"]
    assert result["data"]["tests"]["pairs"]["pair_in_train"] == 0


def test_run_again_it_only_fills_gaps(report, world):
    out, result = report
    part = out / "parts" / "pair-last-4" / "later.npz"
    kept = out / "parts" / "global" / "later.npz"
    part.unlink()
    before = kept.stat().st_mtime_ns
    again = evaluate(world, out, OPTIONS, world=world)
    assert again == result
    assert kept.stat().st_mtime_ns == before
    assert set(json.loads((out / "seconds.json").read_text())) == {"pair last"}
    with pytest.raises(UsageError, match="other data or with other options"):
        evaluate(world, out, EvaluateOptions(queries=99, baselines=("global",)))


def test_time_is_stored_where_only_a_test_with_more_to_learn_was_missing(world, tmp_path):
    """Tests with known measurements of a new destination fit a method of their own."""
    options = replace(OPTIONS, queries=40, baselines=("global",), destination_context=(2,))
    result = evaluate(world, tmp_path, options)
    (tmp_path / "parts" / "global" / "destinations-2-known.npz").unlink()
    (tmp_path / "seconds.json").unlink()
    assert evaluate(world, tmp_path, options) == result
    assert set(json.loads((tmp_path / "seconds.json").read_text())) == {"global"}


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 7, 8, 9])
def test_no_more_questions_are_taken_than_asked_for(world, number):
    data = read_measurements(world).sorted_by_time().take(slice(0, number))
    taken = evenly_spaced(data, 4)
    assert len(taken) == min(number, 4)
    assert set(taken.time.tolist()) <= set(data.time.tolist())
    if number == 8:
        assert (taken.time == data.time[::2]).all()


def _damage(path, how):
    content = path.read_bytes()
    if how == "cut":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = b""
    else:
        content = content[:200] + bytes([content[200] ^ 1]) + content[201:]
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "empty", "one bit"])
def test_a_damaged_part_is_made_anew(report, world, how, capsys):
    out, result = report
    parts = [out / "parts" / "pair-last-4" / "later.npz", out / "parts" / "truth" / "entropy.json"]
    whole = [part.read_bytes() for part in parts]
    _damage(parts[0], how)
    _damage(parts[1], "cut" if how == "one bit" else how)  # a digit would be as good JSON as before
    assert evaluate(world, out, OPTIONS, world=world) == result
    said = capsys.readouterr().err
    for part, before in zip(parts, whole, strict=True):
        assert f"warning: {part} is damaged" in said
        assert "it is computed again" in said
        assert part.suffix == ".npz" or part.read_bytes() == before


def test_a_part_of_other_questions_is_made_anew(report, world, capsys):
    out, result = report
    part = out / "parts" / "global" / "later.npz"
    with np.load(part) as stored:
        fewer = {name: stored[name][:-1] for name in stored}
    np.savez_compressed(part, **fewer)
    assert evaluate(world, out, OPTIONS, world=world) == result
    assert "it must hold" in capsys.readouterr().err


def test_parts_that_nobody_knows_are_not_used(report, world):
    key = report[0] / "parts" / "key.json"
    whole = key.read_bytes()
    key.write_bytes(whole[:10])
    with pytest.raises(PingError, match=r"key.json is damaged .* remove"):
        evaluate(world, report[0], OPTIONS, world=world)
    key.write_bytes(whole)


# Kills itself when a second file is about to be moved to parts/prefixes: the first is whole by then.
KILLED_IN_THE_MIDDLE = """
import os, signal, sys
moved = []
def watch(event, arguments):
    if event == "os.rename" and "/parts/prefixes/" in os.fspath(arguments[1]):
        moved.append(arguments[1])
        if len(moved) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
from ping_llm.cli import main; main()
"""


@pytest.mark.slow
def test_killed_and_run_again_it_gives_the_same_report(world, tmp_path):
    """SIGKILL leaves whole parts: the second run ends with the very bytes of an untroubled one."""
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()"]
    words = ["evaluate", "--data", str(world), "--world", str(world), "--queries", "60"]
    words += ["--baselines", "global,prefixes,neighbours,pair last"]
    killed, untroubled = tmp_path / "killed", tmp_path / "untroubled"
    dying = [sys.executable, "-c", KILLED_IN_THE_MIDDLE, *words, "--out", str(killed)]
    done = subprocess.run(dying, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(killed.glob("parts/prefixes/*.npz"))) == 1
    assert not (killed / "report.json").exists()
    for out in (killed, untroubled):
        subprocess.run([*program, *words, "--out", str(out)], check=True, capture_output=True)
    assert (killed / "report.json").read_bytes() == (untroubled / "report.json").read_bytes()
    assert (killed / "report.html").read_bytes() == (untroubled / "report.html").read_bytes()


def test_compare_and_evaluate_from_the_command_line(report, world, tmp_path):
    out, result = report
    evaluate_cli.register(app)
    runner = CliRunner()
    asked = [
        "--data",
        str(world),
        "--out",
        str(tmp_path / "other"),
        "--baselines",
        "global",
        "--queries",
        "50",
    ]
    answer = runner.invoke(app, ["evaluate", *asked])
    assert answer.exit_code == 0, answer.output
    verdict = answer.output.index("No run was evaluated: these are the simple methods only.")
    sentence = answer.output.index(
        "For pairs seen in training, the best method is one histogram of all results"
    )
    assert verdict < sentence < answer.output.index("Bits per result (* best)")
    answer = runner.invoke(app, ["compare", str(out), str(tmp_path / "other"), "--metric", "bits", "--json"])
    assert answer.exit_code == 0, answer.output
    compared = json.loads(answer.output)
    row = next(r for r in compared["rows"] if r["split"] == "later" and r["method"] == "global")
    assert row["values"][0] == result["splits"]["later"]["global"]["bits"]
    assert row["intervals"][0] == result["splits"]["later"]["global"]["intervals"]["bits"]
    assert not compared["same_data"]
    best = min(row["values"])
    marked = [value for value, text in zip(row["values"], cells(row), strict=True) if "*" in text]
    assert marked == [best]
    with pytest.raises(PingError, match="not a report"):
        compare([tmp_path], "bits")


def test_a_model_is_one_more_method(world):
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=64, max_length=128)
    model = Model(Engine(config, random_tensors(config)), rtt_encoding("compact"), {})
    data = read_measurements(world)
    asked = data.take(slice(-6, None))
    history = History(data)
    asking = Asking(size=3)
    answers = curves(model, asked.queries(), history, None, asking).distributions()
    questions = [question for (question,) in ways(asked.queries(), history, asking)]
    exact = model.rtt_scores(questions, asked.rtt, (0.25, 0.75))
    small = asked.rtt < 2000
    np.testing.assert_allclose(answers.bits(asked.rtt)[small], exact.bits[small], atol=1e-4)
    np.testing.assert_allclose(answers.failure, exact.failure, atol=1e-6)
    # The grid is 2 % wide above two seconds, where an untrained model puts much.
    np.testing.assert_allclose(answers.quantile([0.25, 0.75]), exact.quantiles, rtol=0.03, atol=0.2)


def test_fields_add_up_in_every_order(world):
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=64, max_length=128)
    model = Model(Engine(config, random_tensors(config)), rtt_encoding("compact"), {})
    asked = read_measurements(world).take(slice(0, 12))
    bits = fields.by_order(model, asked)
    assert len(bits["with_time"]["by_order"]) == 24
    assert len(bits["without_time"]["by_order"]) == 6
    for part in bits["with_time"]["by_order"].values():
        # The rest is the token that begins a measurement.
        assert 0 < part["total"] - sum(part[f] for f in ("src", "dst", "time", "result")) < 40
    assert bits["with_time"]["any_order"] < min(p["total"] for p in bits["with_time"]["by_order"].values())
    # The same by hand for one measurement: src, dst, result.
    one = asked.take(slice(0, 1))
    ids = fields._tokens(model, one, (Field.SRC, Field.DST, Field.RESULT))[0]
    logits = model.engine.logits(
        np.concatenate([[0], ids[:-1]])[None].astype(np.int32),
        np.arange(len(ids), dtype=np.int32)[None],
        np.ones((1, len(ids)), np.int32),
    )[0].astype(np.float64)
    log2 = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))) / np.log(2)
    expected = -log2[np.arange(len(ids)), ids].sum()
    found = fields.by_order(model, one)["without_time"]["by_order"]["src dst result"]["total"]
    assert found == pytest.approx(expected, rel=1e-4)
    addresses = fields.address_bytes(model, asked)
    for name, part in addresses.items():
        width = 4 if "IPv4" in name else 16
        assert len(part["byte_accuracy"]) == len(part["greedy_exact_match"]) == width
        assert part["greedy_exact_match"][-1] == part["byte_accuracy"][-1]


def test_exact_matches_are_those_of_the_listed_completions(world):
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=64, max_length=128)
    model = Model(Engine(config, random_tensors(config)), rtt_encoding("compact"), {})
    data = read_measurements(world)
    asked = data.take(np.flatnonzero(is_ipv4(data.src))[:3])
    found = fields.exact_matches(model, asked, 3, {4: (2, 3), 6: (8,)})
    assert set(found) == {"src IPv4", "dst IPv4"}
    for part in found.values():
        assert part["questions"] == 3
        assert list(part["by_known_bytes"]) == ["2", "3"]
        for shares in part["by_known_bytes"].values():
            assert shares["at_1"] <= shares["at_5"] <= shares["at_10"]
    # With three bytes known the last one's 256 chances can be ranked by hand.
    places = []
    for src, dst in zip(asked.src, asked.dst, strict=True):
        ids = [vocab.MEASUREMENT, vocab.SRC_IPV4, *(BYTE0 + src[12:].astype(int))]
        ids += [vocab.DST_IPV4, *(BYTE0 + dst[12:15].astype(int))]
        inputs = np.array([[0, *ids]], np.int32)
        logits = model.engine.logits(inputs, np.arange(len(ids) + 1)[None], np.ones_like(inputs))
        last = logits[0, -1, BYTE0:]
        places.append(int((last > last[dst[15]]).sum()))
    shares = found["dst IPv4"]["by_known_bytes"]["3"]
    for at in (1, 5, 10):
        assert shares[f"at_{at}"] == np.mean([place < at for place in places])


def test_intervals_widen_with_likeness_inside_sources():
    random = np.random.default_rng(0)
    sources = np.repeat(np.arange(20), 50)
    alike = random.normal(0, 1, 20)[sources]
    apart = random.normal(0, 1, 1000)
    bootstrap = Bootstrap(sources)
    wide, narrow = bootstrap.mean(alike), bootstrap.mean(apart)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])
    median = bootstrap.median(apart)
    assert median[0] < np.median(apart) < median[1]
    assert Bootstrap(np.zeros(1000, int)).mean(apart) is None  # one source says nothing about others


@pytest.mark.parametrize(("count", "hosts"), [(2, 1), (4, 1), (4, 4), (8, 2)])
def test_data_that_leave_nothing_to_ask_are_refused(count, hosts, tmp_path):
    given = tmp_path / "pings.csv"
    rows = [f"2024-05-01T12:0{n}:00Z,20.0.1.{n % hosts},50.1.1.{n % hosts},1{n}.5" for n in range(count)]
    given.write_text("\n".join(["event_time,src_addr,dst_addr,rtt", *rows]) + "\n")
    with pytest.raises(PingError, match=r"too little to evaluate.* measurements? to learn from"):
        evaluate(given, tmp_path / "out", OPTIONS)
    assert list(tmp_path.iterdir()) == [given]


def test_an_unknown_method_is_named():
    with pytest.raises(UsageError, match="no method 'magic'"):
        make("magic")


def test_figures_by_kind_where_there_is_more_than_one(world, tmp_path):
    every = read_measurements(world)
    mixed = replace(every, kind=(np.arange(len(every)) % 3).astype(np.uint8))
    write_measurements(mixed, tmp_path / "mixed" / "measurements.parquet")
    options = replace(OPTIONS, baselines=("global",))
    result = evaluate(tmp_path / "mixed", tmp_path / "report", options)
    for methods in result["splits"].values():
        parts = methods["global"]["strata"]["kind"]
        assert list(parts) == ["ping", "hop", "last"]
        assert sum(part["measurements"] for part in parts.values()) == methods["global"]["measurements"]
    parts = result["splits"]["later"]["global"]["strata"]["kind"]
    assert len({part["medae_ms"] for part in parts.values()}) == 3
    assert "By kind of measurement" in (tmp_path / "report" / "report.html").read_text()
    plain = evaluate(world, tmp_path / "plain", options)
    assert all("kind" not in methods["global"]["strata"] for methods in plain["splits"].values())
    # The kinds change nothing else.
    assert plain["data"]["fingerprint"] == result["data"]["fingerprint"]
    assert "By kind of measurement" not in (tmp_path / "plain" / "report.html").read_text()


def test_places_add_errors_by_distance_and_country_and_a_baseline(world, tmp_path):
    """The simulator's RTTs follow distance: what knows only places is better than what knows nothing."""
    located = world / "places.csv"
    prefixes = [line.split(",")[0] for line in located.read_text().splitlines()[1:]]
    countries = tmp_path / "countries.csv"
    lines = [f"{prefix},{'NL' if n % 2 else 'DE'}\n" for n, prefix in enumerate(prefixes)]
    countries.write_text("prefix,country\n" + "".join(lines))
    options = replace(OPTIONS, baselines=("global",), places=(str(located), str(countries)))
    result = evaluate(world, tmp_path / "report", options)
    methods = result["splits"]["pairs"]
    assert methods["distance"]["bits"] < methods["global"]["bits"]
    strata = methods["distance"]["strata"]
    asked = methods["distance"]["measurements"]
    assert sum(part["measurements"] for part in strata["distance"].values()) == asked
    assert strata["distance"]["unknown"]["measurements"] == 0
    assert set(strata["country_pair"]) <= {"NL→NL", "NL→DE", "DE→NL", "DE→DE"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert "By distance and by pair of countries" in page
    # Without places the report is as it was.
    plain = evaluate(world, tmp_path / "plain", replace(OPTIONS, baselines=("global",)))
    assert all("distance" not in methods for methods in plain["splits"].values())
