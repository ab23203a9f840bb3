"""`ping-llm fit` from a table to a run that can be asked, small and real."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import ping_llm
from ping_llm.answer.methods.registry import usable
from ping_llm.answer.model import Model
from ping_llm.answer.stack import Stack
from ping_llm.answer.stacking import fit_stack
from ping_llm.cli import app
from ping_llm.cli import fit as fit_commands
from ping_llm.cli import query as query_commands
from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate.scores import Scores
from ping_llm.fit.held_out import held_out
from ping_llm.fit.options import FitOptions
from ping_llm.fit.run import RANDOM, check_amount, choose_config, first_weights, fit
from ping_llm.fit.screen import summary_text
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.parquet import read_measurements
from ping_llm.splits.holdout import SplitOptions, is_timeless, split
from ping_llm.splits.questions import questions_of
from ping_llm.train import settings

query_commands.register(app)
fit_commands.register(app)

pytestmark = pytest.mark.usefixtures("trained_shortly")

# The fewest steps that a training can have; addresses are completed in the test of the demo.
OPTIONS = FitOptions(
    minutes=0.001,
    final=True,
    stack_questions=20,
    queries=20,
    address_questions=0,
    context_queries=4,
    baselines=("global", "by destination", "pair recent", "pair last"),
)


#: One narrow layer in the place of menog's four: each of the two trainings takes seconds less.
NARROW = {"base_num_decoder_layers": 1, "base_emb_dim": 32, "base_mlp_dim": 64, "head_dim": 8}


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    lines = settings.find("menog").read_text().splitlines()
    lines = [line for line in lines if line.partition(":")[0] not in NARROW]
    config = tmp_path_factory.mktemp("config") / "narrow.yml"
    config.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in NARROW.items())]) + "\n")
    return replace(OPTIONS, config=str(config))


@pytest.fixture(scope="module")
def fitted(table, options, tmp_path_factory, trained_shortly):
    run = tmp_path_factory.mktemp("fit") / "run"
    return run, fit([str(table)], run, options)


def content(folder) -> dict:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_fit_can_be_asked_as_it_says(fitted):
    run, result = fitted
    assert {"stack", "network", *OPTIONS.baselines} == set(result["splits"]["later"])
    text = summary_text(result, run)
    commands = [line.split("#")[0] for line in text.splitlines() if "query rtt" in line]
    assert len(commands) >= 2
    for command in commands:
        arguments = [*shlex.split(command)[1:], "--json"]
        printed = CliRunner().invoke(app, arguments, catch_exceptions=False)
        values = json.loads(printed.stdout)
        assert values["method"] == "stack"
        assert values["calibrated"]
        assert values["quantiles"]["0.05"] <= values["point"] <= values["quantiles"]["0.95"]
    known = json.loads(
        CliRunner().invoke(app, [*shlex.split(commands[0])[1:], "--json"], catch_exceptions=False).stdout
    )
    assert known["rests_on"]["pair_measurements"] > 0  # found without --data: the run remembers
    alone = [*shlex.split(commands[0])[1:], "--json", "--no-data"]
    without = json.loads(CliRunner().invoke(app, alone, catch_exceptions=False).stdout)
    assert without["rests_on"]["pair_measurements"] == 0
    assert without["rests_on"]["pair_trained"]


@pytest.mark.slow
def test_a_final_model_knows_everything_and_keeps_its_calibration(fitted, table):
    run, result = fitted
    data = read_measurements(run / "measurements")
    stack = Stack.load(run / "stack")
    assert stack.about["trained_on"]["measurements"] == len(data)
    assert stack.trained.pairs.has(pairs_of(data.src, data.dst)).all()
    assert stack.network_trained.sources.has(data.src).all()
    assert "held_out" in stack.about
    assert "are of the model before" in summary_text(result, run)
    final, given = (load_file(folder / "export" / "model.safetensors") for folder in (run / "final", run))
    assert all((final[name] == given[name]).all() for name in final)
    exported = Model.load(run / "export")
    assert exported.stack.about == stack.about
    assert (run / "export" / "README.md").exists()


@pytest.mark.slow
def test_the_same_command_again_changes_nothing(fitted, table, options):
    run, result = fitted
    before = content(run)
    again = fit([str(table)], run, options)
    assert again["splits"] == result["splits"]
    assert content(run) == before


@pytest.mark.slow
def test_other_options_are_refused_and_change_nothing(fitted, table, options):
    run, _ = fitted
    before = content(run)
    with pytest.raises(UsageError, match="a fit with other options"):
        fit([str(table)], run, FitOptions(minutes=3))
    with pytest.raises(UsageError, match="a fit with other inputs"):
        fit([str(table), str(table)], run, options)
    assert content(run) == before


def _columns(count: int, sources: int, destinations: int) -> Columns:
    packed = np.zeros((count, 16), np.uint8)
    packed[:, 10:12] = 255
    src, dst = packed.copy(), packed.copy()
    src[:, 15], dst[:, 15] = np.arange(count) % sources, np.arange(count) // 7 % destinations
    dst[:, 14] = 9
    return Columns(np.arange(count) * 60_000_000, src, dst, 20.0 + np.arange(count) % 13)


def test_too_little_is_said_in_a_sentence_that_names_a_way_out():
    check_amount(_columns(400, 4, 5))
    for few, words in (
        (_columns(40, 4, 5), "40 measurements"),
        (_columns(400, 1, 5), "1 source to"),
        (_columns(400, 4, 1), "1 destination,"),
        (Columns(*(*vars(_columns(400, 4, 5)).values(),)[:3], np.full(400, -1.0)), "0 with a reply"),
    ):
        with pytest.raises(PingError, match=words) as error:
            check_amount(few)
        assert "`ping-llm query rtt --data FILE" in str(error.value)


def test_nothing_of_the_held_out_ends_is_trained_on():
    data = _columns(6000, 40, 30)
    options = SplitOptions(0.9, 0.1, 0.15, 0.15, 1)
    train, tests = held_out(data, options, 50)
    kinds = {test.kind: test for test in tests}
    assert set(kinds) == {"later", "pairs", "sources", "destinations"}
    pairs = Ids(pairs_of(train.src, train.dst))
    assert pairs.has(pairs_of(kinds["later"].asked.src, kinds["later"].asked.dst)).all()
    assert kinds["later"].asked.time.min() > train.time.max()
    for kind in ("pairs", "sources", "destinations"):
        assert not pairs.has(pairs_of(kinds[kind].asked.src, kinds[kind].asked.dst)).any()
    assert not Ids(train.src).has(kinds["sources"].asked.src).any()
    assert not Ids(train.dst).has(kinds["destinations"].asked.dst).any()


def test_data_without_times_are_asked_about_without_a_cut():
    data = _columns(3000, 40, 30)
    data = Columns(np.full(3000, 10**15), data.src, data.dst, data.rtt)
    splits = split(data, SplitOptions(1.0))
    _, tests = held_out(splits.train, SplitOptions(0.9, 0.1, 0.15, 0.15, 1), 50)
    assert tests
    for test in tests:
        assert not test.timed
        assert test.kind != "later"
    asked = next(test for test in tests if test.kind == "pairs")
    assert (asked.context.of_source(asked.queries()).count > 0).all()


def _odd(kind: str) -> Columns:
    """Data as people have them: few ends, one time, one IP version, pairs that never answer."""
    data = _columns(2000, 12, 9)
    if kind == "few destinations":
        data = _columns(2000, 30, 2)
    elif kind == "few sources":
        data = _columns(2000, 2, 30)
    elif kind == "IPv6 only":
        data.src[:, :12] = data.dst[:, :12] = np.frombuffer(bytes.fromhex("20010db8" + "00" * 8), np.uint8)
    elif kind == "all at one time":
        data = Columns(np.full(2000, 10**15), data.src, data.dst, data.rtt)
    elif kind == "pairs without replies":
        silent = (data.src[:, 15] % 3 == 0) & (data.dst[:, 15] % 2 == 0)
        data = Columns(data.time, data.src, data.dst, np.where(silent, -1.0, data.rtt))
    elif kind == "a source without replies":
        data = Columns(data.time, data.src, data.dst, np.where(data.src[:, 15] == 3, -1.0, data.rtt))
    return data


@pytest.mark.parametrize(
    "kind",
    [
        "few destinations", "few sources", "IPv6 only", "all at one time", "pairs without replies",
        "a source without replies",
    ],
)  # fmt: skip
def test_odd_data_are_split_stacked_and_answered(kind):
    """Everything of a fit but the network, which does not care."""
    data = _odd(kind)
    check_amount(data)
    splits = split(data, SplitOptions(1.0) if is_timeless(data) else SplitOptions())
    options = SplitOptions(0.9, 0.08, 0.08, 0.08, 1)
    network_train, tests = held_out(splits.train, options, 40)
    assert len(network_train)
    names = tuple(name for name in usable() if name != "boosted")
    stack = fit_stack(None, network_train, tests, splits.train, names)
    for test in questions_of(splits, 40):
        made = stack.answer(None, test.queries(), test.context)
        scores = Scores.of(made.distributions, test.asked.rtt)
        for values in (scores.point, scores.failure, scores.bits, scores.crps, scores.quantiles):
            assert np.isfinite(values).all()
        assert (np.diff(scores.quantiles, axis=1) >= 0).all()
        assert (made.distributions.failure >= 0).all()
        assert (made.distributions.failure <= 1).all()


def test_a_config_is_picked_for_the_budget():
    name, overrides = choose_config(FitOptions(minutes=1), 10_000)
    assert name == "menog"
    assert any(word.startswith("warmup_steps_fraction=0.001") for word in overrides)
    assert choose_config(FitOptions(config="tiny"), 10_000) == ("tiny", [])


def test_a_fit_begins_with_the_packaged_network_where_it_fits(tmp_path):
    automatic, chosen = FitOptions(), FitOptions(config="tiny")
    assert first_weights(None, automatic, "menog") == Path("base")
    assert first_weights(None, automatic, "20m") is None  # another shape
    assert first_weights(None, chosen, "tiny") is None
    assert first_weights(RANDOM, automatic, "menog") is None
    assert first_weights(tmp_path, chosen, "tiny") == tmp_path


@pytest.mark.parametrize(("queries", "addresses"), [("20", 0), ("500", 10), ("0", 10)])
def test_a_quick_fit_completes_no_addresses(queries, addresses, table, tmp_path, monkeypatch):
    """On two cores ten addresses of each kind took 162 of the 166 s of a report with 20 questions."""
    asked = []
    monkeypatch.setattr(
        sys.modules["ping_llm.fit.run"], "_fit", lambda inputs, run, options, *rest: asked.append(options)
    )
    run = str(tmp_path / "run")
    CliRunner().invoke(app, ["fit", str(table), "--run", run, "--queries", queries, "--json"])
    ping_llm.fit(table, run, queries=int(queries))
    assert [options.address_questions for options in asked] == [addresses, addresses]
