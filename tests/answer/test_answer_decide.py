"""`rank`, `explain` and `matrix` on a run with random weights and a real stack."""

import base64
import csv
import json
import re
import subprocess
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ping_llm.answer import matrix as matrices
from ping_llm.answer.context import Context, Question
from ping_llm.answer.distribution import RttDistribution
from ping_llm.answer.explain import divergence
from ping_llm.answer.model import Model
from ping_llm.cli import app, decide
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import unpack_one

decide.register(app)


@pytest.fixture(scope="module")
def asked(world, run, rows):
    """(model with data, a source of the training data, four of its destinations)."""
    train = world.train
    of_version = (train.src[:, :12] == train.src[0, :12]).all(axis=1)
    own = train.take(of_version & (train.src == train.src[0]).all(axis=1))
    found = [unpack_one(dst.tobytes()) for dst in np.unique(own.dst, axis=0)[:4]]
    return Model.load(run, data=rows), unpack_one(train.src[0].tobytes()), found


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_ranking_rests_on_the_same_answers(asked, run, rows):
    model, src, candidates = asked
    made = model.rank(src, candidates, objective_ms=50.0)
    answers = {dst: model.rtt(src, dst) for dst in candidates}
    for candidate in made.candidates:
        assert candidate.answers[0].distribution.median == answers[candidate.dst].distribution.median
        below = answers[candidate.dst].distribution
        assert candidate.below == pytest.approx((1 - below.failure) * float(below.cdf(50.0)), abs=1e-9)
    assert sum(candidate.fastest for candidate in made.candidates) + made.nobody == pytest.approx(1)
    printed = json.loads(invoke("rank", run, "--src", src, "--dst", ",".join(candidates), "--slo", 50,
                                "--data", rows, "--json"))  # fmt: skip
    assert [one["dst"] for one in printed["candidates"]] == [c.dst for c in made.candidates]
    assert printed["candidates"][0]["fastest"] == pytest.approx(made.candidates[0].fastest, abs=1e-9)
    assert f"choose {made.candidates[0].dst}" in invoke(
        "rank", run, "--src", src, "--dst", ",".join(candidates), "--data", rows
    )


def test_an_explanation_leaves_out_one_measurement_at_a_time(asked):
    model, src, candidates = asked
    question = Question.of(src, candidates[0])
    made = model.explain(question, left_out=3)
    past = model.data.context(question, 2000)
    assert made.answer.distribution.median == pytest.approx(model.rtt(src, candidates[0]).distribution.median)
    assert len(made.measurements) == min(3, len(past))
    first = made.measurements[0]
    assert [each.bits for each in made.measurements] == sorted(
        (each.bits for each in made.measurements), reverse=True
    )
    assert first.moved_ms == pytest.approx(made.answer.distribution.median - first.answer.distribution.median)
    without = model.rtt_many([replace(question, context=Context.empty())])[0]
    assert made.alternatives[0].rests_on == "no measurements of the source"
    assert made.alternatives[0].answer.distribution.median == without.distribution.median


def test_the_divergence_of_known_distributions():
    def even(low, high, failure=0.0):
        return RttDistribution(np.array([low, high], float), np.array([0.0, 1.0]), failure)

    assert divergence(even(0, 8), even(0, 8)) == pytest.approx(0)
    assert divergence(even(0, 8), even(0, 16)) == pytest.approx(1)
    assert divergence(even(0, 8, 0.5), even(0, 8, 0.25)) == pytest.approx(0.5 + 0.5 * np.log2(0.5 / 0.75))


def test_a_matrix_goes_on_where_it_stopped(asked, run, rows, tmp_path):
    model, src, candidates = asked
    sources = [src, src.rsplit(".", 1)[0] + ".0/24" if "." in src else "2001:db8::/32"]
    answered = []

    def ask(questions):
        answered.append(len(questions))
        if len(answered) == 2:
            raise KeyboardInterrupt
        return model.rtt_stream(questions)

    with pytest.raises(KeyboardInterrupt):
        matrices.matrix(ask, sources, candidates, tmp_path / "out")
    assert not (tmp_path / "out" / "matrix.parquet").exists()
    table = matrices.matrix(ask, sources, candidates, tmp_path / "out")
    assert answered == [4, 4, 4]  # the first source was not asked again
    rows_of = pq.read_table(table).to_pylist()
    assert [row["src"] for row in rows_of] == [sources[0]] * 4 + [sources[1]] * 4
    for row in rows_of[:4]:
        expected = model.rtt(src, row["dst"]).distribution
        assert row["q50"] == pytest.approx(expected.median)
        assert row["no_reply"] == pytest.approx(expected.failure)
    with pytest.raises(UsageError, match="the matrix of another request"):
        matrices.matrix(ask, sources[:1], candidates, tmp_path / "out")
    printed = json.loads(invoke("matrix", run, "--src", src, "--dst", ",".join(candidates), "--data", rows,
        "--out", tmp_path / "second", "--csv", "--netem", "--simulator", "--html", "--json"))  # fmt: skip
    assert len(printed["files"]) == 5
    page = (tmp_path / "second" / "matrix.html").read_text()
    packed = re.search('id="medians">([^<]+)<', page)[1]
    shown = np.frombuffer(base64.b64decode(packed), "<u2") / 10
    names, _, expected = matrices.medians(tmp_path / "second" / "matrix.parquet")
    assert names == [src]
    assert shown == pytest.approx(expected[0], abs=0.051)
    assert "http" not in page
    with (tmp_path / "second" / "matrix.csv").open() as file:
        lines = list(csv.DictReader(file))
    exact = pq.read_table(tmp_path / "second" / "matrix.parquet").to_pylist()
    assert [line["dst"] for line in lines] == [row["dst"] for row in exact]
    for line, row in zip(lines, exact, strict=True):
        for name, digits in (("no_reply", 5), ("point", 3), ("q05", 3), ("q95", 3)):
            assert float(line[name]) == round(row[name], digits)
            assert len(line[name].partition(".")[2]) <= digits
    simulator = json.loads((tmp_path / "second" / "simulator.json").read_text())
    assert [pair["dst"] for pair in simulator["pairs"]] == candidates
    assert simulator["pairs"][0]["rtt"] == sorted(simulator["pairs"][0]["rtt"])
    script = tmp_path / "second" / "netem.sh"
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert script.read_text().count("netem limit") == 4
    refused = subprocess.run(["sh", script, "203.0.113.9"], capture_output=True, check=False)
    assert refused.returncode == 2


def test_what_a_matrix_refuses(tmp_path):
    with pytest.raises(UsageError, match="at least one source"):
        matrices.matrix(iter, [], ["192.0.2.1"], tmp_path)
    with pytest.raises(UsageError, match="listed twice"):
        matrices.matrix(iter, ["192.0.2.1", "192.0.2.1"], ["192.0.2.1"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_option_that_is_wrong_is_named_with_what_it_may_be(run, rows):
    words = ["rank", run, "--data", rows, "--src", "192.0.2.1"]
    for more, said in (
        (["--dst", "198.51.100.7", "--slo", "-5"], "--slo must be a number of ms above 0, not -5"),
        (["--dst", "198.51.100.7", "--timeout", "nan"], "--timeout must be a number of ms above 0, not nan"),
        (["--dst", "no such/missing.txt"], "and there is no file no such/missing.txt"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            invoke(*words, *more)
    with pytest.raises(UsageError, match="and there is no file missing"):
        invoke("matrix", run, "--data", rows, "--src", "192.0.2.1", "--dst", "missing txt", "--out", "never")


def test_a_ranking_says_of_which_ends_nothing_is_known(asked, run, rows):
    model, src, candidates = asked
    assert model.rank(src, candidates).notes == ()
    (note,) = model.rank("192.0.2.1", candidates if "." in src else ["198.51.100.7"]).notes[:1]
    assert note == "unknown source 192.0.2.1: nothing has been measured from it"
    nobody = "203.0.113.9" if "." in src else "2001:db8::9"
    (note,) = model.rank(src, [*candidates, nobody]).notes
    assert (
        note == f"1 of {len(candidates) + 1} destinations are unknown, they have not been measured: {nobody}"
    )
    text = invoke("rank", run, "--data", rows, "--src", "192.0.2.1", "--dst", "203.0.113.9,198.51.100.7")
    assert "note: unknown source 192.0.2.1: nothing has been measured from it" in text
