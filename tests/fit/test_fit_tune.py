"""`ping-llm fit --minutes 0`: the packaged model, tuned to data without training a transformer."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.answer.base import BaseModel, read_data
from ping_llm.answer.context import Context, Question
from ping_llm.answer.methods import relation_network
from ping_llm.answer.model import Model
from ping_llm.answer.questions import AMOUNTS, CELLS, UNSEEN_NETWORK, Evidence
from ping_llm.answer.recipe import Recipe
from ping_llm.answer.weights import Held, moved_weights
from ping_llm.cli import app
from ping_llm.cli import query as query_commands
from ping_llm.errors import UsageError
from ping_llm.fit.options import FitOptions
from ping_llm.fit.run import fit
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model.export import export
from ping_llm.model.packaged import packaged
from ping_llm.splits.novelty import Novelty

query_commands.register(app)

pytestmark = pytest.mark.usefixtures("trained_shortly")

OPTIONS = FitOptions(minutes=0, stack_questions=8, queries=6, baselines=("by destination", "pair last"))


@pytest.fixture(scope="module")
def tuned(table, tmp_path_factory, trained_shortly):
    run = tmp_path_factory.mktemp("tuned") / "run"
    said = []
    result = fit([str(table)], run, OPTIONS, said.append)
    return run, result, said


def _questions(data):
    ends = {
        (unpack_one(s.tobytes()), unpack_one(d.tobytes())) for s, d in zip(data.src, data.dst, strict=True)
    }
    known = sorted(ends)[::17]
    crossed = [(known[0][0], next(dst for _, dst in known[1:] if (":" in dst) == (":" in known[0][0])))]
    return [Question.of(src, dst) for src, dst in [*known, *crossed]]


def test_a_tuned_model_answers_from_its_own_data(tuned, table):
    run, result, said = tuned
    assert {"stack", "network", *OPTIONS.baselines} == set(result["splits"]["pairs"])
    assert any("no transformer" in line for line in said)
    assert not (run / "checkpoints").exists()
    loaded = Model.load(run)
    assert isinstance(loaded, BaseModel)
    assert loaded.data is not None
    questions = _questions(read_measurements(run / "measurements"))
    asked = loaded.rtt_many(questions)
    # The methods that were kept are those that would be fitted.
    again = BaseModel.at(run, data=False).about(read_data(run / "rows")).rtt_many(questions)
    for kept, made in zip(asked, again, strict=True):
        np.testing.assert_allclose(kept.distribution.levels, made.distribution.levels, atol=1e-9)
        assert kept.rests_on == made.rests_on


def test_the_recipe_was_moved_and_says_so(tuned):
    run, _, _ = tuned
    ours, theirs = Recipe.load(run), Recipe.load(packaged())
    assert ours.components == (*theirs.components, "relations tuned")
    assert not np.allclose(ours.many.weights[:, :-1], theirs.many.weights)
    # Of few measurements the network trained on takes a share of what the packaged one has, and no more.
    related = theirs.components.index("relations")
    mine = ours.few.weights[:, :-1].copy()
    mine[:, related] += ours.few.weights[:, -1]
    np.testing.assert_allclose(mine, theirs.few.weights, rtol=1e-12)
    assert (ours.few.weights[:, -1] > ours.few.weights[:, related])[theirs.few.weights[:, related] > 0].all()
    assert ours.about["tuned_to"]["measurements"] > 1000
    assert (run / "model.safetensors").read_bytes() == (packaged() / "model.safetensors").read_bytes()


def test_a_tuned_run_is_not_trained_again_when_it_is_asked(tuned, table, monkeypatch):
    run, _, _ = tuned
    recipe = Recipe.load(run)
    assert not np.array_equal(recipe.tuned_relations["result"], recipe.relations["result"])

    def train(*arguments, **options):
        raise AssertionError("a question must not train a network")

    monkeypatch.setattr(relation_network, "train", train)
    loaded, other = Model.load(run), Model.load(run, data=False)
    known = read_measurements(run / "measurements")
    question = _questions(known)[0]
    context = known.take(slice(0, 200))
    for stack in (loaded.stack, loaded.about(context).stack, other.about(context).stack):
        assert stack.methods["relations tuned"].weights["result"].tolist() == (
            recipe.tuned_relations["result"].tolist()
        )
    alone = other.rtt_many([replace(question, context=Context.of_columns(context))])[0]
    assert alone.distribution.median > 0
    assert loaded.explain(question, left_out=2).answer.distribution.median > 0


def test_the_command_of_a_tuned_run(tuned):
    run, result, _ = tuned
    one = result["examples"][0]
    arguments = ["query", "rtt", str(run), "--src", one["src"], "--dst", one["dst"], "--at", one["at"]]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert printed.exit_code == 0, printed.output
    assert "tuned to these data" in printed.stdout
    assert "other studies" not in printed.stdout
    assert "in the data: pair yes, source yes, destination yes" in printed.stdout


def test_the_examples_of_a_tuned_run_say_that_it_knows_them(tuned):
    """Its data hold what the report held out."""
    run, result, _ = tuned
    model = Model.load(run)
    for one in result["examples"]:
        answer = model.rtt(one["src"], one["dst"], one["at"])
        assert answer.rests_on["pair_measurements"] > 0
        assert "known pair" in one["about"] or "now in the run's data" in one["about"]


def test_what_a_tuned_run_lacks_is_said_of_it(tuned):
    run, result, _ = tuned
    one = result["examples"][0]
    with pytest.raises(UsageError, match="this run was tuned with --minutes 0 and knows no addresses"):
        Model.load(run).inverse(one["src"], 10, 20)
    with pytest.raises(UsageError, match=r"tuned with --minutes 0 answers from measurements.*--data"):
        Model.load(run, data=False).rtt(one["src"], one["dst"])


def test_an_export_of_it_answers_as_it_does(tuned, tmp_path):
    run, _, _ = tuned
    export(run, tmp_path / "export")
    questions = _questions(read_measurements(run / "measurements"))
    there = Model.load(tmp_path / "export", data=run / "rows").rtt_many(questions)
    for one, other in zip(Model.load(run).rtt_many(questions), there, strict=True):
        np.testing.assert_allclose(one.distribution.levels, other.distribution.levels, atol=1e-9)
        assert other.rests_on["tuned"]


def test_a_second_start_changes_nothing(tuned, table):
    run, _, _ = tuned
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    fit([str(table)], run, OPTIONS)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"final": True}, "--final"),
        ({"config": "menog"}, "--config"),
        ({"minutes": -1.0}, "at least 0"),
    ],
)
def test_what_needs_training_is_refused(changes, words, table, tmp_path):
    with pytest.raises(UsageError, match=words):
        fit([str(table)], tmp_path / "run", replace(OPTIONS, **changes))
    assert not (tmp_path / "run").exists()


def test_only_a_model_that_answers_about_any_data_is_tuned(table, tmp_path):
    with pytest.raises(UsageError, match="can only tune the packaged model"):
        fit([str(table)], tmp_path / "run", OPTIONS, start=tmp_path)


def _held(good: int, ends: int, kind: int = Novelty.NEW_PAIR, of_source: int = 30) -> Held:
    """Questions of a kind; one of three components is right, the others are wide."""
    count = 4 * ends
    zeros, ones = np.zeros(count, np.int64), np.ones(count, bool)
    known = Evidence(zeros, zeros + of_source, ~ones, ones, ones, ones, ones, zeros + kind)
    below = np.zeros((count, 3, 3))
    below[:, :, 1] = 0.01
    below[:, good, 1] = 0.5
    products = np.tile(np.diag([9.0, 9.0, 9.0]), (count, 1, 1))
    products[:, good, good] = 1.0
    return Held(
        np.full(count, 20.0),
        known,
        np.repeat(np.arange(ends), 4),
        np.zeros((count, 3)),
        below,
        products,
        None,
    )


def test_weights_move_with_the_number_of_ends():
    usual = np.tile([0.8, 0.1, 0.1], (CELLS, 1))
    few, many = (moved_weights(_held(1, ends), usual, 10.0) for ends in (2, 200))
    cell = Novelty.NEW_PAIR * AMOUNTS + 3  # new pairs with much to look back on
    assert usual[cell, 1] < few[cell, 1] < many[cell, 1]
    assert many[cell, 1] > 0.8
    asked = np.zeros(CELLS, bool)
    asked[4:8] = True
    np.testing.assert_allclose(many[~asked], usual[~asked])


def test_sources_of_an_unseen_network_follow_others_with_as_many_measurements():
    """And not questions of their own kind about sources of which nothing is known."""
    usual = np.tile([0.8, 0.1, 0.1], (CELLS, 1))
    held = Held.concatenate([_held(1, 100, Novelty.NEW_SOURCE), _held(2, 100, UNSEEN_NETWORK, of_source=0)])
    moved = moved_weights(held, usual, 30.0)[UNSEEN_NETWORK * AMOUNTS :]
    assert moved[0, 2] > 0.6 > 0.2 > moved[0, 1]
    assert moved[3, 1] > 0.6 > 0.2 > moved[3, 2]
