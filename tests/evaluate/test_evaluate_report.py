"""The whole evaluation on small data: resumable, in one piece, and with a model and a truth in it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.addresses import is_ipv4
from ping_llm.cli import app
from ping_llm.cli import evaluate as evaluate_cli
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate import completions, likelihood
from ping_llm.evaluate.asking import Asking, ways
from ping_llm.evaluate.baselines.every import make
from ping_llm.evaluate.bootstrap import Bootstrap
from ping_llm.evaluate.columns import read_measurements
from ping_llm.evaluate.compare import cells, compare
from ping_llm.evaluate.history import History
from ping_llm.evaluate.model_method import ModelMethod
from ping_llm.evaluate.options import EvaluateOptions
from ping_llm.evaluate.run import evaluate
from ping_llm.evaluate.splits import SplitOptions
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine
from ping_llm.model.random import random_tensors
from ping_llm.query.model import Model
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
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
    part = out / "parts" / "pair-last" / "later.npz"
    kept = out / "parts" / "global" / "later.npz"
    part.unlink()
    before = kept.stat().st_mtime_ns
    again = evaluate(world, out, OPTIONS, world=world)
    assert again == result
    assert kept.stat().st_mtime_ns == before
    assert set(json.loads((out / "seconds.json").read_text())) == {"pair last"}
    with pytest.raises(UsageError, match="other data or with other options"):
        evaluate(world, out, EvaluateOptions(queries=99, baselines=("global",)))


@pytest.mark.slow
def test_killed_and_run_again_it_gives_the_same_report(world, tmp_path):
    """SIGKILL leaves whole parts: the second run ends with the very bytes of an untroubled one."""
    program = [
        sys.executable,
        "-c",
        "from ping_llm.cli import main; main()",
        "evaluate",
        "--data",
        str(world),
    ]
    words = ["--world", str(world), "--queries", "60", "--baselines", "global,prefixes,neighbours,pair last"]
    killed, untroubled = tmp_path / "killed", tmp_path / "untroubled"
    with subprocess.Popen([*program, "--out", str(killed), *words], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(killed.glob("parts/prefixes/*.npz")):
            time.sleep(0.005)
        process.kill()
    assert not (killed / "report.json").exists()
    for out in (killed, untroubled):
        subprocess.run([*program, "--out", str(out), *words], check=True, capture_output=True)
    assert (killed / "report.json").read_bytes() == (untroubled / "report.json").read_bytes()
    assert (killed / "report.html").read_bytes() == (untroubled / "report.html").read_bytes()
    assert not list(killed.rglob("*.tmp*"))


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
    assert "Bits per result" in answer.output
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
    answers = ModelMethod(model, asking=asking).predict(asked.queries(), history)
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
    bits = likelihood.by_order(model, asked)
    assert len(bits["with_time"]["by_order"]) == 24
    assert len(bits["without_time"]["by_order"]) == 6
    for part in bits["with_time"]["by_order"].values():
        # The rest is the token that begins a measurement.
        assert 0 < part["total"] - sum(part[f] for f in ("src", "dst", "time", "result")) < 40
    assert bits["with_time"]["any_order"] < min(p["total"] for p in bits["with_time"]["by_order"].values())
    # The same by hand for one measurement: src, dst, result.
    one = asked.take(slice(0, 1))
    ids = likelihood._tokens(model, one, (Field.SRC, Field.DST, Field.RESULT))[0]
    logits = model.engine.logits(
        np.concatenate([[0], ids[:-1]])[None].astype(np.int32),
        np.arange(len(ids), dtype=np.int32)[None],
        np.ones((1, len(ids)), np.int32),
    )[0].astype(np.float64)
    log2 = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))) / np.log(2)
    expected = -log2[np.arange(len(ids)), ids].sum()
    found = likelihood.by_order(model, one)["without_time"]["by_order"]["src dst result"]["total"]
    assert found == pytest.approx(expected, rel=1e-4)
    addresses = likelihood.address_bytes(model, asked)
    for name, part in addresses.items():
        width = 4 if "IPv4" in name else 16
        assert len(part["byte_accuracy"]) == len(part["greedy_exact_match"]) == width
        assert part["greedy_exact_match"][-1] == part["byte_accuracy"][-1]


def test_exact_matches_are_those_of_the_listed_completions(world):
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=64, max_length=128)
    model = Model(Engine(config, random_tensors(config)), rtt_encoding("compact"), {})
    data = read_measurements(world)
    asked = data.take(np.flatnonzero(is_ipv4(data.src))[:3])
    found = completions.exact_matches(model, asked, 3, {4: (2, 3), 6: (8,)})
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


def test_an_unknown_method_is_named():
    with pytest.raises(UsageError, match="no method 'magic'"):
        make("magic")
