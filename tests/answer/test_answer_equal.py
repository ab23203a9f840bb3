"""What is evaluated is what a user gets: evaluate, Python, the command line and an export answer alike."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.answer.context import Context, Question
from ping_llm.answer.model import Model
from ping_llm.answer.past import Data
from ping_llm.answer.show import inverse_values, rtt_values
from ping_llm.cli import app
from ping_llm.cli import query as query_commands
from ping_llm.evaluate.inputs import EvaluateOptions, evaluation_data
from ping_llm.evaluate.run import evaluate_data
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.model import export
from ping_llm.tokens.statement import whole

query_commands.register(app)

KEYS = ("failure", "point", "bits", "crps")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, run, world):
    """Every kind of question: (tests, answers as `evaluate --answers` writes them)."""
    out = tmp_path_factory.mktemp("out")
    options = EvaluateOptions(
        queries=10, source_context=(0, 1, 10), context_sizes=(), address_questions=0, baselines=()
    )
    data = evaluation_data(world, options)
    evaluate_data(data, out, options, run, answers=out / "answers.jsonl")
    lines = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(lines) == sum(len(test.asked) for test in data.tests)
    return data.tests, lines


def questions_of(test) -> list[Question]:
    """A test's questions as a user would put them; where the past is limited, it is given as context."""
    past = test.context.of_source(test.queries())
    out = []
    for index in range(len(test.asked)):
        known = past.columns.take(slice(past.low[index], past.high[index]))
        out.append(
            Question(
                whole(test.asked.src[index].tobytes()),
                whole(test.asked.dst[index].tobytes()),
                int(test.asked.time[index]),
                Context.of(test.asked.src[index], known.dst, known.time, known.rtt)
                if test.kind == "sources"
                else None,
            )
        )
    return out


def assert_equal(answer, line) -> None:
    assert answer.failure == pytest.approx(line["failure"], abs=1e-9)
    assert answer.distribution.point == pytest.approx(line["point"], abs=1e-9)
    for level, value in line["quantiles"].items():
        assert answer.distribution.quantile(float(level)) == pytest.approx(value, abs=1e-9), level


def test_the_tests_hold_every_kind_of_question(evaluated):
    tests, lines = evaluated
    names = {"later", "pairs", "sources, 0 known", "sources, 1 known", "sources, 10 known", "destinations"}
    assert {test.name for test in tests} == names
    assert {":" in line["src_addr"] for line in lines} == {True, False}
    assert any(line["rtt"] == NO_REPLY for line in lines)


def test_python_answers_as_evaluated(evaluated, run, rows):
    tests, lines = evaluated
    model = Model.load(run, data=rows)
    at = 0
    for test in tests:
        answers = model.rtt_many(questions_of(test))
        for answer in answers:
            assert answer.method == "stack"
            assert answer.calibrated
            assert_equal(answer, lines[at])
            at += 1
    # The same asked alone, or the other way round, to the last bit.
    questions = [question for test in tests for question in questions_of(test)]
    backwards = model.rtt_many(questions[::-1])[::-1]
    for question, there, line in list(zip(questions, backwards, lines, strict=True))[::7]:
        alone = model.rtt_many([question])[0]
        np.testing.assert_array_equal(alone.distribution.levels, there.distribution.levels)
        assert_equal(alone, line)


def test_the_command_answers_as_evaluated(evaluated, run, rows, tmp_path):
    tests, lines = evaluated
    whole_past = [test.kind != "sources" for test in tests for _ in range(len(test.asked))]
    wanted = [line for line, usual in zip(lines, whole_past, strict=True) if usual]
    pairs = tmp_path / "pairs.jsonl"
    keys = ("src_addr", "dst_addr", "event_time", "rtt")
    pairs.write_text("".join(json.dumps({key: line[key] for key in keys}) + "\n" for line in wanted))
    arguments = ["query", "rtt", str(run), "--data", str(rows), "--pairs", str(pairs), "--json"]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout.splitlines()
    assert len(printed) == len(wanted)
    for text, line in zip(printed, wanted, strict=True):
        values = json.loads(text)
        assert {key: values[key] for key in keys} == {key: line[key] for key in keys}
        for key in KEYS:
            assert values[key] == (None if line[key] is None else pytest.approx(line[key], abs=1e-9)), key
        for level, value in line["quantiles"].items():
            assert values["quantiles"][level] == pytest.approx(value, abs=1e-9)


def test_an_export_answers_as_evaluated(evaluated, run, rows, tmp_path):
    tests, lines = evaluated
    shutil.copytree(run / "export", tmp_path / "alone")
    shutil.copytree(run / "stack", tmp_path / "alone" / "stack")
    exported = export.export(tmp_path / "alone", tmp_path / "again")
    model = Model.load(exported, data=rows)
    at = 0
    for test in tests:
        for answer in model.rtt_many(questions_of(test)[:3]):
            assert_equal(answer, lines[at])
            at += 1
        at += len(test.asked) - min(3, len(test.asked))


def test_an_answer_says_what_it_rests_on(evaluated, run, rows, world):
    tests, _ = evaluated
    model = Model.load(run, data=rows)
    by_name = {test.name: test for test in tests}
    known = model.rtt_many(questions_of(by_name["later"]))
    assert {answer.rests_on["kind"] for answer in known} == {"known pair"}
    for answer in known:
        src, dst = (np.frombuffer(end.packed, np.uint8) for end in (answer.question.src, answer.question.dst))
        past = world.visible.take(
            (world.visible.src == src).all(axis=1) & (world.visible.time < answer.question.time)
        )
        assert answer.rests_on["source_measurements"] == len(past)
        mine = past.take((past.dst == dst).all(axis=1))
        assert answer.rests_on["pair_measurements"] == len(mine)
        replies = mine.rtt[mine.replied]
        if len(replies):
            observed = {"median": np.median(replies), "min": replies.min(), "max": replies.max()}
            assert answer.rests_on["pair_observed"] == observed
        assert answer.rests_on["destination_measurements"] == (world.train.dst == dst).all(axis=1).sum()
    for answer in model.rtt_many(questions_of(by_name["pairs"])):
        assert answer.rests_on["pair_measurements"] == 0
        assert answer.rests_on["source_trained"]
        assert answer.rests_on["destination_trained"]
    for answer in model.rtt_many(questions_of(by_name["destinations"])):
        assert answer.rests_on["kind"] == "new destination"
    one = known[0]
    asked = (one.question.src, one.question.dst, one.question.time / 1e6)
    given = Model.load(run, data=False).rtt(*asked, data=rows)
    np.testing.assert_array_equal(given.distribution.levels, one.distribution.levels)
    nowhere = model.rtt("198.51.100.1", "203.0.113.7")
    assert nowhere.rests_on["kind"] == "new ends"
    assert not nowhere.rests_on["source_network_trained"]


def test_raw_and_components_can_be_asked_alone(run, rows, world):
    model = Model.load(run, data=rows)
    asked = world.test("later")
    question = Question(whole(asked.src[0].tobytes()), whole(asked.dst[0].tobytes()), int(asked.time[0]))
    stack, raw = model.rtt_many([question])[0], model.rtt_many([question], raw=True)[0]
    assert not raw.calibrated
    assert raw.distribution.median != stack.distribution.median
    context = Data(rows).context(question, model.config.max_length // 11)
    bare = model.rtt_many([replace(question, context=context)], raw=True)[0]
    np.testing.assert_array_equal(bare.distribution.levels, raw.distribution.levels)
    for name in ("network", *(name for name in model.stack.components if name != "network")):
        answer = model.rtt_many([question], method=name)[0]
        assert answer.method == name
        assert answer.distribution.levels[-1] == 1.0


@pytest.mark.parametrize("count", [1, 7, 30])
def test_an_answer_follows_the_history_of_its_pair(count, run, rows, world):
    """Also where the pair is far from whatever was trained on, and with or without a time."""
    model = Model.load(run, data=rows)
    known = world.visible.take(slice(0, 1))
    end = int(world.visible.time.max())
    past = Context.of(
        known.src[0],
        np.repeat(known.dst, count, axis=0),
        end - np.arange(count)[::-1] * 240_000_000,
        np.random.default_rng(count).uniform(455, 465, count),
    )
    for time in (None, end + 240_000_000):
        question = Question(whole(known.src[0].tobytes()), whole(known.dst[0].tobytes()), time, past)
        answer = dict(model.rtt_stream([question]))[0]
        assert 450 < answer.distribution.median < 470
        # The 5 % quantile of a single result is that of whatever else the pair may be.
        assert answer.distribution.quantile(0.05) > (400 if count > 1 else 0)
        assert answer.rests_on["pair_measurements"] == count
        seen = answer.rests_on["pair_observed"]
        assert 455 <= seen["min"] <= seen["median"] <= seen["max"] <= 465


def test_a_time_does_not_wreck_an_answer(run, world):
    """Without any history, the error over many pairs is about the same with and without the time."""
    model = Model.load(run, data=False)
    test = world.test("later")
    chosen = test.take(np.flatnonzero(test.replied)[:80])
    errors = []
    for timed in (False, True):
        asked = [
            Question(whole(src.tobytes()), whole(dst.tobytes()), int(time) if timed else None)
            for src, dst, time in zip(chosen.src, chosen.dst, chosen.time, strict=True)
        ]
        found = dict(model.rtt_stream(asked))
        medians = np.array([found[index].distribution.median for index in range(len(asked))])
        errors.append(float(np.abs(medians - chosen.rtt).mean()))
    assert errors[1] < 1.1 * errors[0]


def test_a_prefix_at_several_times_is_answered_as_at_each_alone(run, rows, world):
    model = Model.load(run, data=rows)
    times = np.quantile(world.visible.time, [0.001, 0.003, 0.01, 1.0]).astype(np.int64)
    one = int(np.argmax(world.visible.src[:, 0] > 0))  # IPv6: all sources share a first byte
    src, dst = Prefix.of(world.visible.src[one], 1), Prefix.of(world.visible.dst[one])
    asked = [Question(src, dst, int(time)) for time in times]
    together = dict(model.rtt_stream(asked))
    alone = [next(iter(model.rtt_stream([question])))[1] for question in asked]
    assert len({answer.distribution.median for answer in alone}) > 1
    for index, answer in enumerate(alone):
        assert rtt_values(together[index]) == rtt_values(answer)
        assert together[index].question == asked[index]


def test_rows_that_are_gone_are_said_to_be_gone(run, rows, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    kept = {"rows": str(rows), "fingerprint": Data(rows).fingerprint}
    (folder / "run.json").write_text(json.dumps({"format": 1, "context_data": kept}))
    assert Model.load(folder).data.path == rows
    assert Model.load(folder, data=False).data is None
    (folder / "run.json").write_text(json.dumps({"format": 1, "context_data": kept | {"rows": "/nowhere"}}))
    gone = Model.load(folder)
    assert gone.data is None
    assert "not at /nowhere" in gone.data_note
    (folder / "run.json").write_text(json.dumps({"format": 1, "context_data": kept | {"fingerprint": "0"}}))
    assert "has changed since the run" in Model.load(folder).data_note


def test_inverse_weighs_candidates_by_calibrated_answers(run, rows, world):
    model = Model.load(run, data=rows)
    asked = world.test("later")
    src = whole(asked.src[0].tobytes())
    answer = model.inverse(src, 10, 120, count=5)
    shares = [one.probability for one in answer.completions.best]
    assert shares == sorted(shares, reverse=True)
    assert answer.completions.covered <= 1 + 1e-9
    for one in answer.completions.best:
        expected = model.rtt(src, one.address)
        inside = (1 - expected.failure) * float(expected.distribution.between(10, 120))
        assert one.in_range == pytest.approx(inside, abs=1e-12)
    # What is known of a pair stands beside its probability.
    dst = whole(asked.dst[0].tobytes())
    near = model.inverse(src, 0, 500, within=Prefix.of(asked.dst[0], len(dst.known_bytes) - 1), count=256)
    one = next(one for one in near.completions.best if one.address == dst)
    expected = model.rtt(src, dst).rests_on
    assert one.measured == expected["pair_measurements"] > 0
    assert one.observed == expected["pair_observed"]
    assert inverse_values(near, None, 500)["completions"][0].keys() >= {"in_range", "pair_observed"}
    raw = model.inverse(src, 10, 120, count=5, raw=True)
    assert all(one.in_range is None for one in raw.completions.best)


def test_an_answer_names_the_method_that_its_run_lost_to(run, rows, world, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    loss = {"method": "pair last", "metric": "crps_ms", "ours": 3.0, "theirs": 2.0}
    (folder / "stack" / "verdict.json").write_text(json.dumps({"lost_to": {"later": loss}}))
    model = Model.load(folder, data=rows)
    asked, new = world.test("later"), world.test("pairs")
    questions = [
        Question(whole(part.src[0].tobytes()), whole(part.dst[0].tobytes()), int(part.time[0]))
        for part in (asked, new)
    ]
    known, other = model.rtt_many(questions)
    assert "`pair last` was better" in known.notes[-1]
    assert "--method selects it" in known.notes[-1]
    assert other.notes == ()
    alone = model.rtt_many(questions, method="network")[0]
    assert not any("was better" in note for note in alone.notes)
    shutil.copytree(folder / "stack", folder / "export" / "stack")
    assert Model.load(folder / "export", data=rows).lost_to == {"later": loss}
    model.lost_to = {"later": loss | {"method": "embeddings"}}
    assert "embeddings" not in model.stack.methods
    (note,) = (note for note in model.rtt_many(questions)[0].notes if "was better" in note)
    assert "`embeddings` was better" in note
    assert "--method" not in note


def test_a_run_looks_back_on_a_table_as_on_rows(run, rows, world):
    asked = world.test("later")
    question = Question(whole(asked.src[0].tobytes()), whole(asked.dst[0].tobytes()), int(asked.time[0]))
    by_rows = Model.load(run, data=rows)
    (expected,) = by_rows.rtt_many([question])
    (made,) = Model.load(run, data=by_rows.data.columns().to_arrow()).rtt_many([question])
    assert made.rests_on == expected.rests_on
    assert made.rests_on["pair_measurements"] > 0
    np.testing.assert_allclose(made.distribution.levels, expected.distribution.levels)
