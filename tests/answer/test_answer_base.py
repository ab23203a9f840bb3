"""`base`, the packaged model: contexts across sources, and answers about data that it has never seen."""

import json
import math
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save
from typer.testing import CliRunner

import ping_llm
from ping_llm.answer.base import BaseModel, _part_sizes
from ping_llm.answer.context import Context, Question
from ping_llm.answer.crossed import Crossed, CrossedQuestion, Result, crossed_prompts, own_results
from ping_llm.answer.methods.base import FLOOR_MS
from ping_llm.answer.methods.relations import Relations
from ping_llm.answer.past import pair_last
from ping_llm.answer.recipe import FEW, Recipe
from ping_llm.answer.report import results
from ping_llm.answer.show import rtt_text
from ping_llm.cli import app, decide
from ping_llm.cli import query as query_commands
from ping_llm.contexts.crossing import MOST_OWN
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.addresses import Prefix, pack_one, parse_prefix
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.measurements.schema import Measurement
from ping_llm.model.packaged import ERRORS, base_folder, packaged
from ping_llm.tokens import reference
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.vocab import Field

query_commands.register(app)
decide.register(app)

COMPACT = rtt_encoding("compact", 1000.0)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def _columns(rows):
    """(source, destination, rtt, minutes after noon) → columns."""
    packed = [np.frombuffer(b"".join(pack_one(row[end]) for row in rows), np.uint8) for end in (0, 1)]
    time = [int((NOON + timedelta(minutes=row[3])).timestamp()) * 1_000_000 for row in rows]
    rtt = np.array([row[2] for row in rows], np.float64)
    return Columns(np.array(time, np.int64), packed[0].reshape(-1, 16), packed[1].reshape(-1, 16), rtt)


def _plane(sources=12, destinations=8, seed=0, left_out=()):
    """Hosts on a plane; the RTT is the distance and an access delay. Each pair once, in random order."""
    random = np.random.default_rng(seed)
    here, there = random.uniform(0, 100, (sources, 2)), random.uniform(0, 100, (destinations, 2))
    delay = random.uniform(1, 20, sources)
    rows = []
    for s in range(sources):
        for d in range(destinations):
            if (s, d) not in left_out:
                rtt = float(np.linalg.norm(here[s] - there[d]) + delay[s])
                rows.append((f"20.{s}.1.7", f"50.{d}.1.9", rtt, int(random.integers(0, 600))))
    return rows


def _packed(text):
    return np.frombuffer(pack_one(text), np.uint8)


# Contexts.


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), known=st.integers(0, 6))
def test_the_nearest_sources_are_those_of_a_plain_search(seed, known):
    rows = _plane(seed=seed)
    crossed = Crossed(_columns([row for row in rows if row[0] != "20.0.1.7"]))
    asked = "50.3.1.9"
    mine = {row[1]: row[2] for row in rows if row[0] == "20.0.1.7" and row[1] != asked}
    own = [Result(pack_one("20.0.1.7"), pack_one(dst), mine[dst]) for dst in sorted(mine)[:known]]

    def distance(other):
        theirs = {row[1]: row[2] for row in rows if row[0] == other}
        shared = [d for d in sorted(mine)[:known] if d in theirs]
        total = sum(abs(math.log(mine[d] + FLOOR_MS) - math.log(theirs[d] + FLOOR_MS)) for d in shared)
        common = 13 if other.split(".")[1] != "0" else 14  # bytes of ::ffff:20.x
        return (total + 0.5 - 0.03 * common) / (len(shared) + 1)

    others = sorted({row[0] for row in rows} - {"20.0.1.7"}, key=lambda other: (distance(other), other))
    groups = crossed.groups(_packed("20.0.1.7"), _packed(asked), own, room=16)
    found = [group[0].src for group in groups][::-1]
    assert found == [pack_one(other) for other in others[: len(found)]] or known == 0
    assert len(found) >= 3
    for group in groups:
        assert group[-1].dst == pack_one(asked)
        assert {result.dst for result in group[:-1]} <= {result.dst for result in own}
    assert sum(1 + len(group) for group in groups) <= 16


def test_a_prompt_states_the_groups_and_then_the_question():
    theirs = [Result(pack_one("20.1.1.7"), pack_one(dst), 10.0) for dst in ("50.1.1.9", "50.2.1.9")]
    own = [Result(pack_one("20.0.1.7"), pack_one("50.1.1.9"), -1.0)]
    asked = CrossedQuestion(
        Prefix.of(_packed("20.0.1.7")), Prefix.of(_packed("50.2.1.9")), [*theirs, *own], 1
    )
    (prompt,) = crossed_prompts([asked], np.array([5], np.uint64), COMPACT, 300)
    statements = reference.decode(prompt.context.tolist())
    assert [Field.SRC in s.order for s in statements] == [True, False, True]
    assert [s.rtt for s in statements] == [10.0, 10.0, -1.0]
    assert statements[0].dst == statements[2].dst != statements[1].dst
    stated = prompt.ids[prompt.context_ids :].tolist()
    assert stated == [1, *reference.encode_address(Field.DST, statements[1].dst), 9]
    (other,) = crossed_prompts([asked], np.array([6], np.uint64), COMPACT, 300)
    assert other.ids.tolist() != prompt.ids.tolist()


def test_a_question_without_own_results_states_its_source():
    asked = CrossedQuestion(Prefix.of(_packed("2001:db8::1")), Prefix.of(_packed("2001:db8:1::1")), [], 0)
    (prompt,) = crossed_prompts([asked], np.array([5], np.uint64), COMPACT, 300)
    assert prompt.context_ids == 0
    assert len(prompt.ids) == 1 + 6 + 6 + 1  # short pseudonyms


def test_each_destination_of_the_source_is_stated_once():
    past = _columns([("20.0.1.7", "50.1.1.9", 5.0, 1), ("20.0.1.7", "50.1.1.9", 6.0, 2)])
    (only,) = own_results(past, pack_one("20.0.1.7"), np.array([1, 0]))
    assert only.rtt == 6.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([-1.0, 5.0, 6.0, 7.0])), max_size=120))
def test_own_results_are_those_of_the_plain_rule(results):
    past = _columns([("20.0.1.7", f"50.1.1.{n}", rtt, at + 1) for at, (n, rtt) in enumerate(results)])
    order = np.random.default_rng(0).permutation(len(results))
    plain: dict[bytes, float] = {}
    for index in order.tolist():
        dst, rtt = past.dst[index].tobytes(), float(past.rtt[index])
        if (dst not in plain and len(plain) < MOST_OWN) or plain.get(dst) == -1.0:
            plain[dst] = rtt
    assert [(r.dst, r.rtt) for r in own_results(past, b"", order)] == list(plain.items())


# Answers.


@pytest.fixture(scope="module")
def base():
    return BaseModel.packaged()


@pytest.fixture(scope="module")
def plane(base):
    return base.about(_columns(_plane(left_out={(0, 3), (1, 4), (2, 5)})))


def test_answers_do_not_depend_on_what_is_asked_together(plane):
    questions = [
        Question.of("20.0.1.7", "50.3.1.9"),
        Question.of("20.1.1.7", "50.1.1.9", NOON + timedelta(days=1)),
        Question.of("20.99.1.7", "50.1.1.9"),
        Question.of("20.2.1.7", "50.99.1.9"),
        Question.of("20.2.1.0/24", "50.5.1.9"),
    ]
    together = plane.rtt_many(questions)
    for question, one in zip(questions, together, strict=True):
        (alone,) = plane.rtt_many([question])
        for level in (0.05, 0.5, 0.95):
            assert float(one.distribution.quantile(level)) == pytest.approx(
                float(alone.distribution.quantile(level)), rel=1e-6
            )
        assert one.failure == pytest.approx(alone.failure, rel=1e-6)
        assert one.rests_on["packaged"]


def test_a_copy_of_it_answers_alike_wherever_it_is(plane, tmp_path):
    """An export with a recipe is a model of this kind, under any name."""
    folder = tmp_path / "mine"
    shutil.copytree(packaged(), folder)
    ingested = tmp_path / "pings.csv"
    rows = [
        (s, d, r, NOON + timedelta(minutes=m)) for s, d, r, m in _plane(left_out={(0, 3), (1, 4), (2, 5)})
    ]
    lines = [f"{src},{dst},{rtt},{when.isoformat()}" for src, dst, rtt, when in rows]
    ingested.write_text("\n".join(["src_addr,dst_addr,rtt,event_time", *lines]) + "\n")
    copied = ping_llm.load(folder, data=ingested).rtt("20.0.1.7", "50.3.1.9")
    assert copied.distribution.median == plane.rtt("20.0.1.7", "50.3.1.9").distribution.median
    assert copied.rests_on["packaged"]


def test_a_folder_named_base_that_holds_no_model_is_not_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    assert base_folder("base") == packaged()
    (tmp_path / "base" / "checkpoints").mkdir()
    assert base_folder("base") is None


def test_a_measured_pair_is_answered_near_its_past(plane):
    rtt = next(row[2] for row in _plane() if row[:2] == ("20.4.1.7", "50.4.1.9"))
    answer = plane.rtt("20.4.1.7", "50.4.1.9", NOON + timedelta(days=1))
    assert answer.distribution.point == pytest.approx(rtt, rel=0.15)
    assert answer.rests_on["pair_measurements"] == 1


def test_nothing_later_than_the_question_is_used(base):
    rows = [("20.0.1.7", "50.1.1.9", 10.0, minute) for minute in range(30)]
    later = [("20.0.1.7", "50.1.1.9", 900.0, 100 + minute) for minute in range(30)]
    early = base.about(_columns(rows + later)).rtt(
        "20.0.1.7", "50.1.1.9", NOON + timedelta(minutes=50), raw=True
    )
    assert early.distribution.median == pytest.approx(10.0, rel=0.1)
    assert early.context_given == 30


def test_a_context_of_many_sources_is_answered_from(base):
    rows = _plane(left_out={(0, 3)})
    context = [
        ping_llm.Measurement(event_time=NOON, src_addr=src, dst_addr=dst, rtt=rtt)
        for src, dst, rtt, _ in rows
    ]
    answer = base.rtt("20.0.1.7", "50.3.1.9", context=context)
    assert answer.rests_on["source_measurements"] == 7
    assert answer.rests_on["destination_measurements"] == 11


def test_a_question_before_all_measurements_says_that_none_is_used(base):
    known = base.about(_columns([("20.0.1.7", "50.1.1.9", 10.0, minute) for minute in range(5)]))
    early, at_the_first, later = (
        known.rtt("20.0.1.7", "50.1.1.9", NOON + timedelta(minutes=minute)) for minute in (-1, 0, 1)
    )
    for answer in (early, at_the_first):
        assert answer.rests_on["pair_measurements"] == 0
        assert "none of the 5 measurements given is earlier than the question" in answer.notes[0]
    assert later.notes == known.rtt("20.0.1.7", "50.1.1.9").notes == ()


def test_a_pair_that_was_measured_the_other_way_has_a_note(base):
    rows = [("20.0.1.7", "50.1.1.9", rtt, minute) for minute, rtt in enumerate((10.0, 14.0, -1.0, 90.0))]
    known = base.about(_columns([*rows, ("20.0.1.7", "50.2.1.9", -1.0, 0)]))
    at = NOON + timedelta(minutes=3)
    asked = [
        Question.of("50.1.1.9", "20.0.1.7", at),  # the last reply is not earlier
        Question.of("50.2.1.9", "20.0.1.7", at),
        Question.of("50.3.1.9", "20.0.1.7", at),
        Question.of("20.0.1.7", "50.1.1.9", at),
        Question.of("50.1.1.0/24", "20.0.1.7", at),
    ]
    notes = [answer.notes for answer in known.rtt_many(asked)]
    assert notes[0] == ("the reverse pair was measured: 2 replies, median 12 ms",)
    assert notes[1] == ("the reverse pair was measured: 0 replies",)
    assert notes[2:] == [(), (), ()]


def test_whether_a_prefix_is_in_the_data_is_not_said(plane):
    """Only whole addresses are listed, so \"pair no\" contradicted the earlier measurements of the pair."""
    whole, prefix = (plane.rtt(src, "50.4.1.9") for src in ("20.4.1.7", "20.4.1.0/24"))
    assert prefix.rests_on["pair_measurements"] == whole.rests_on["pair_measurements"] == 1
    assert "in the data: pair yes" in rtt_text(whole)
    assert "in the data: " not in rtt_text(prefix)


def _as_dictionaries():
    return [
        {"event_time": NOON + timedelta(minutes=minute), "src_addr": src, "dst_addr": dst, "rtt": rtt}
        for src, dst, rtt, minute in _plane(left_out={(0, 3)})
    ]


@pytest.mark.parametrize(
    "form",
    [
        pandas.DataFrame,
        polars.DataFrame,
        pa.Table.from_pylist,
        list,
        lambda rows: [Measurement(**r) for r in rows],
    ],
)
def test_measurements_are_taken_in_any_form(form, base, file):
    expected = ping_llm.load("base", data=file).rtt("20.0.1.7", "50.3.1.9")
    given = form(_as_dictionaries())
    for answer in (
        ping_llm.load("base", data=given).rtt("20.0.1.7", "50.3.1.9"),
        base.rtt("20.0.1.7", "50.3.1.9", context=given),
        base.rtt("20.0.1.7", "50.3.1.9", context=file),
        base.rtt("20.0.1.7", "50.3.1.9", context=str(file)),
    ):
        assert answer.distribution.median == pytest.approx(expected.distribution.median, rel=1e-9)
        assert answer.rests_on == expected.rests_on


@pytest.mark.parametrize(
    "given", [3, [3], ["pings.csv"], [Measurement(NOON, "20.0.1.7", "50.1.1.9", 3.0), None]]
)
def test_what_is_no_measurement_is_refused_by_its_type(given, base):
    with pytest.raises(UsageError, match=r"(int|str|NoneType) cannot be read as measurements: give a path"):
        base.rtt("20.0.1.7", "50.3.1.9", context=given)
    with pytest.raises(UsageError, match="must hold nothing else"):
        base.rtt("20.0.1.7", "50.3.1.9", context=[{"rtt": 1.0}, 3])


def test_without_measurements_there_is_nothing_to_answer_from(base):
    with pytest.raises(UsageError, match="never seen your network"):
        base.rtt("20.0.1.7", "50.3.1.9")
    with pytest.raises(PingError, match="at least one measurement"):
        base.about(Columns.empty())


def test_times_may_be_unknown(base):
    columns = _columns(_plane())
    timeless = Columns(np.full(len(columns), NO_TIME), columns.src, columns.dst, columns.rtt)
    answer = base.about(timeless).rtt("20.4.1.7", "50.4.1.9")
    assert 0 < answer.distribution.median < 1000


def test_a_recipe_mixes_few_and_many_by_their_number(base):
    recipe = Recipe.load(packaged())
    for sources in (1, 60):
        columns = _columns(_plane(sources=sources))
        share = len(columns) / (len(columns) + FEW)
        mixed = share * recipe.many.weights + (1 - share) * recipe.few.weights
        stack = recipe.stack(columns, base)
        assert set(stack.components) == set(stack.methods)
        for number, name in enumerate(recipe.components):
            if name in stack.components:
                # Weights below 0.01 are dropped, so the others grow a little.
                own = stack.weights[:, stack.components.index(name)]
                np.testing.assert_allclose(own, mixed[:, number], atol=0.01, rtol=0.1)
            else:
                assert (mixed[:, number] < 0.01).all()
        np.testing.assert_allclose(stack.weights.sum(axis=1), 1.0)


def test_two_targets_with_a_few_pings_each_are_told_apart(base):
    """Ten pings each of 23 and 40 ms: the network alone hesitates between both."""
    near = [("20.0.1.7", "50.1.1.9", 23 + 0.3 * (k % 5), k) for k in range(10)]
    far = [("20.0.1.7", "60.1.1.9", 40 + 0.3 * (k % 5), k) for k in range(10)]
    known = base.about(_columns(near + far))
    for dst, low, high in (("50.1.1.9", 20, 28), ("60.1.1.9", 36, 46)):
        answer = known.rtt("20.0.1.7", dst).distribution
        assert low < answer.quantile(0.1) <= answer.quantile(0.9) < high


def test_four_pings_give_neither_a_single_value_nor_everything(base):
    known = base.about(_columns([("20.0.1.7", "50.1.1.9", 23.5 + 0.2 * k, k) for k in range(4)]))
    low, high = known.rtt("20.0.1.7", "50.1.1.9").distribution.quantile([0.05, 0.95])
    assert 0.5 < high - low < 25


def test_pings_without_any_reply_are_answered_from(base):
    answer = base.about(_columns([("20.0.1.7", "50.1.1.9", -1.0, k) for k in range(5)])).rtt(
        "20.0.1.7", "50.1.1.9"
    )
    assert answer.failure > 0.5
    assert np.isfinite(answer.distribution.median)


def test_a_recipe_without_or_with_wrong_errors_is_refused(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(packaged(), folder)
    errors = load_file(folder / ERRORS)
    errors["neighbours/residuals"][0, 0] = np.nan
    (folder / ERRORS).write_bytes(save(errors))
    with pytest.raises(PingError, match="'neighbours'"):
        Recipe.load(folder)
    (folder / ERRORS).unlink()
    with pytest.raises(PingError, match="not a recipe"):
        Recipe.load(folder)


def test_the_network_alone_is_the_method_relations(plane):
    alone = plane.rtt("20.0.1.7", "50.3.1.9", method="network")
    method = Relations().fit(_columns(_plane(left_out={(0, 3), (1, 4), (2, 5)})))
    question = Question.of("20.0.1.7", "50.3.1.9")
    from ping_llm.answer.answering import as_queries

    made = method.predict(as_queries([question]), plane.data.history([question]))
    assert float(alone.distribution.quantile(0.5)) == pytest.approx(float(made.quantile([0.5])[0, 0]))


# Commands.


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.csv"
    lines = ["event_time,src_addr,dst_addr,rtt"]
    lines += [
        f"{(NOON + timedelta(minutes=minute)).isoformat()},{src},{dst},{rtt}"
        for src, dst, rtt, minute in _plane(left_out={(0, 3)})
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_query_needs_no_run(file):
    asked = ["query", "rtt", "--context", str(file), "--src", "20.0.1.7", "--dst", "50.3.1.9", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["rests_on"]["packaged"]
    again = CliRunner().invoke(app, [*asked[:2], "base", "--data", *asked[3:]])
    assert json.loads(again.stdout) == values
    text = CliRunner().invoke(app, asked[:-1]).stdout
    assert "base, the packaged model" in text
    assert "in the data: pair no, source yes, destination yes" in text


def test_rows_are_data_too(file, tmp_path):
    """The documentation names them first. Methods that draw at random see another order: 1 % apart."""
    ingested, rows = tmp_path / "measurements", tmp_path / "rows"
    ping_llm.ingest([file], ingested)
    ping_llm.build_rows([ingested], rows)
    wanted = _printed("query", "rtt", "base", "--data", file, "--src", "20.0.1.7", "--dst", "50.3.1.9")
    for data in (ingested, rows):
        made = _printed("query", "rtt", "base", "--data", data, "--src", "20.0.1.7", "--dst", "50.3.1.9")
        assert made["quantiles"] == pytest.approx(wanted["quantiles"], rel=0.05)


def test_a_simple_method_without_a_run_reads_what_base_reads(file, tmp_path):
    """Rows, or a file after --data or --context."""
    ping_llm.build_rows(file, tmp_path / "rows")
    asked = ["--src", "20.0.1.7", "--dst", "50.1.1.9", "--method", "last"]
    by_rows = _printed("query", "rtt", "--data", tmp_path / "rows", *asked)
    assert by_rows["rests_on"]["pair_measurements"] == 1
    for option in ("--data", "--context"):
        assert _printed("query", "rtt", option, file, *asked) == by_rows


@pytest.mark.parametrize("option", ["--data", "--context"])
def test_an_unknown_method_without_a_run_is_named(option, file):
    asked = ["query", "rtt", option, str(file), "--src", "20.0.1.7", "--dst", "50.1.1.9", "--method", "xyz"]
    with pytest.raises(UsageError, match="xyz"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_query_without_anything_says_what_is_missing():
    result = CliRunner().invoke(app, ["query", "rtt", "--src", "20.0.1.7", "--dst", "50.3.1.9"])
    assert result.exit_code != 0
    assert "never seen your network" in str(result.exception) + result.output


def _printed(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in (*arguments, "--json")])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_rank_needs_no_run(file):
    asked = ["--src", "20.0.1.7,20.1.1.7", "--dst", "50.3.1.9,50.2.1.9,50.1.1.9"]
    made = _printed("rank", "--context", file, *asked)
    assert made == _printed("rank", "base", "--data", file, *asked)
    model = ping_llm.load("base", data=file)
    assert made == json.loads(json.dumps(model.rank(asked[1].split(","), asked[3].split(",")).as_dict()))


def test_a_ranking_rests_on_the_measurements_of_all_sources(base):
    context = [
        ping_llm.Measurement(event_time=NOON, src_addr=src, dst_addr=dst, rtt=rtt)
        for src, dst, rtt, _ in _plane(left_out={(0, 3)})
    ]
    made = base.rank("20.0.1.7", ["50.3.1.9", "50.2.1.9"], context=context)
    first = next(candidate for candidate in made.candidates if candidate.dst == "50.3.1.9")
    assert first.answers[0].rests_on["destination_measurements"] == 11


def test_explain_needs_no_run_and_tells_what_other_sources_did(base, file):
    asked = ["--src", "20.0.1.7", "--dst", "50.3.1.9", "--top", 2]
    made = _printed("explain", "--context", file, *asked)
    words = [each["rests_on"] for each in made["measurements"]]
    assert len(words) == 2 + 5  # --top of the source, and of five other sources
    assert sum("all but 1 measurement of 20." in each for each in words) == 5
    alone = made["alternatives"][-1]
    assert alone["rests_on"] == "nothing of other sources"
    own = base.about(_columns([row for row in _plane(left_out={(0, 3)}) if row[0] == "20.0.1.7"]))
    assert alone["median_ms"] == pytest.approx(own.rtt("20.0.1.7", "50.3.1.9").distribution.median, rel=1e-4)


def test_an_explanation_from_a_context_is_that_from_the_same_data(base):
    rows = [row for row in _plane(left_out={(0, 3)}) if row[0] == "20.0.1.7"]
    columns = _columns(rows)
    context = Context.of(columns.src, columns.dst, columns.time, columns.rtt)
    given = base.explain(Question.of("20.0.1.7", "50.3.1.9", context=context), left_out=1)
    known = base.about(columns).explain(Question.of("20.0.1.7", "50.3.1.9"), left_out=1)
    assert given.as_dict() == known.as_dict()
    with pytest.raises(UsageError, match="never seen your network"):
        base.explain(Question.of("20.0.1.7", "50.3.1.9"))


def test_plan_needs_no_run(base, file):
    made = _printed("plan", "--data", file, "--src", "20.0.1.7", "--dst", "50.3.1.9,50.2.1.9", "--budget", 1)
    assert len(made["measurements"]) == 1
    questions = [Question.of("20.0.1.7", dst) for dst in ("50.3.1.9", "50.2.1.9")]
    assert json.loads(json.dumps(base.plan(questions, 1, data=file).as_dict())) == made


def test_results_of_a_file_are_scored_by_the_rest_of_it(file):
    result = CliRunner().invoke(app, ["query", "score", "base", str(file), "--json"])
    assert result.exit_code == 0, result.output
    values = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(values) == 95
    assert all(value["bits"] > 0 for value in values)


def test_what_needs_addresses_is_refused(plane):
    with pytest.raises(UsageError, match="knows no addresses"):
        plane.complete("20.0.1.7")
    with pytest.raises(UsageError, match="knows no addresses"):
        plane.inverse("20.0.1.7", 10, 20)


def test_the_weights_are_small():
    assert sum(entry.stat().st_size for entry in packaged().iterdir()) < 4_000_000


def test_an_explanation_names_the_other_sources_that_mattered(base):
    rows = [("20.0.1.7", "50.1.1.9", 12.0, k) for k in range(4)]
    rows += [("20.9.1.7", "60.1.1.9", 80.0 + k, 10 + k) for k in range(3)]
    rows += [("20.9.1.7", "50.1.1.9", 20.0, 20), ("20.9.1.7", "70.1.1.9", 30.0, 21)]
    known = base.about(_columns(rows))
    made = known.explain(Question.of("20.0.1.7", "60.1.1.9"), left_out=5)
    (theirs,) = [each for each in made.measurements if "20.9.1.7" in each.rests_on]
    assert theirs.rests_on == "all but 3 measurements of 20.9.1.7 to 60.1.1.9"
    assert theirs.bits > 0.05
    without = base.about(_columns([row for row in rows if row[:2] != ("20.9.1.7", "60.1.1.9")]))
    only = base.about(_columns(rows[4:7])).explain(Question.of("20.0.1.7", "60.1.1.9"))
    assert only.measurements == ()
    assert theirs.answer.distribution.median == without.rtt("20.0.1.7", "60.1.1.9").distribution.median


# What is not known yet is not used, and what a file holds is said.


def test_a_result_is_scored_by_what_came_before_it(base):
    """The methods of base are fitted to the file that is scored: not to its later part, nor to the result."""
    rows = [("20.0.1.7", f"50.{k % 3}.1.9", 10.0 + k % 3, k) for k in range(30)]
    unseen = ("20.0.1.7", "60.9.1.9", 400.0, 40)
    apart = next(iter(results(base.about(_columns(rows)), _columns([unseen]))))
    every = _columns([*rows, unseen])
    (within,) = results(base.about(every), every, np.array([30]))
    assert within.kind == ["new destination"]
    assert within.tail[0] < 0.02
    assert within.tail[0] == pytest.approx(apart.tail[0], rel=0.5)
    first = next(iter(results(base.about(every), every, np.array([0]))))
    assert first.kind == ["new ends"]


def test_results_come_in_the_order_of_the_file(base):
    rows = [("20.0.1.7", f"50.{k % 3}.1.9", 10.0 + k % 3, 100 - k) for k in range(60)]
    columns = _columns(rows)
    model = base.about(columns)
    (part,) = results(model, columns)
    assert part.row.tolist() == list(range(60))
    for row in (0, 30, 59):
        (one,) = results(model, columns, np.array([row]))
        assert one.bits[0] == pytest.approx(part.bits[row], rel=1e-9)
        assert one.kind == [part.kind[row]]


def test_a_time_before_all_data_is_answered_from_nothing(plane):
    answer = plane.rtt("20.4.1.7", "50.4.1.9", NOON - timedelta(days=1000))
    assert answer.rests_on["kind"] == "new ends"
    assert answer.rests_on["pair_measurements"] == 0
    low, high = answer.distribution.quantile([0.05, 0.95])
    assert high / low > 20


def test_parts_of_the_data_grow_to_all_of_it():
    for count in (1, 2, 9, 2000, 300_001):
        sizes = _part_sizes(count)
        assert sizes[0] == 0
        assert sizes[-1] == count
        assert (np.diff(sizes) > 0).all()
        assert len(sizes) < 60


def test_a_lost_packet_does_not_hide_how_far_a_destination_is():
    columns = _columns([("20.0.1.7", "50.1.1.9", 95.0, 0), ("20.0.1.7", "50.1.1.9", -1.0, 1)])
    (known,) = own_results(columns, pack_one("20.0.1.7"), np.array([1, 0]))
    assert known.rtt == 95.0
    lost = _columns([("20.0.1.7", "50.1.1.9", -1.0, 1)])
    assert own_results(lost, pack_one("20.0.1.7"), np.array([0]))[0].rtt == -1.0


PINGED = """PING 203.0.113.5 (203.0.113.5) 56(84) bytes of data.
64 bytes from 203.0.113.5: icmp_seq=1 ttl=57 time=12.4 ms
64 bytes from 203.0.113.5: icmp_seq=2 ttl=57 time=12.9 ms
64 bytes from 203.0.113.5: icmp_seq=3 ttl=57 time=12.2 ms
"""


def test_what_ping_printed_is_a_context(tmp_path):
    file = tmp_path / "ping.txt"
    file.write_text(PINGED)
    asked = ["query", "rtt", "--src", "192.0.2.10", "--dst", "203.0.113.5", "--json"]
    done = CliRunner().invoke(app, [*asked, "--context", str(file)], catch_exceptions=False)
    answer = json.loads(done.stdout)
    assert answer["rests_on"]["pair_measurements"] == 3
    assert answer["point"] == pytest.approx(12.4, abs=0.5)
    with pytest.raises(PingError, match="output of ping, fping or mtr"):
        CliRunner().invoke(app, [*asked, "--data", str(file)], catch_exceptions=False)


def test_another_unit_is_suspected(base):
    assert not base.about(_columns([("20.0.1.7", "50.1.1.9", 12.0, 0)])).doubts
    for rtt, unit in ((0.012, "seconds"), (12_000.0, "microseconds")):
        (doubt,) = base.about(_columns([("20.0.1.7", "50.1.1.9", rtt, 0)])).doubts
        assert f"are they {unit}?" in doubt


def test_a_choice_that_is_not_the_fastest_is_explained(tmp_path):
    lines = ["event_time,src_addr,dst_addr,rtt"]
    for k in range(10):
        lines.append(f"2024-05-01T12:0{k}:00Z,20.0.1.7,50.1.1.9,{-1 if k == 5 else 20}")
        lines.append(f"2024-05-01T12:0{k}:00Z,20.0.1.7,60.1.1.9,50")
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(lines) + "\n")
    asked = ["rank", "--data", str(file), "--src", "20.0.1.7", "--dst", "50.1.1.9,60.1.1.9"]
    text = CliRunner().invoke(app, asked, catch_exceptions=False).stdout
    assert text.startswith("choose 60.1.1.9")
    assert "50.1.1.9 is the fastest more often" in text
    text = CliRunner().invoke(app, [*asked, "--timeout", "60"], catch_exceptions=False).stdout
    assert text.startswith("choose 50.1.1.9")
    assert "more often" not in text


def test_the_pair_and_its_network_are_read_last():
    texts = ["198.51.100.7", "203.0.113.1", "198.51.100.9", "192.0.2.1", "198.51.100.7"]
    start = datetime(2024, 1, 1, tzinfo=UTC)
    known = [
        Measurement(start + timedelta(minutes=minute), "192.0.2.77", text, 10.0 + minute)
        for minute, text in enumerate(texts)
    ]
    moved = pair_last(Context.from_measurements(known), parse_prefix("198.51.100.7"))
    assert moved.rtt.tolist() == [11.0, 13.0, 10.0, 12.0, 14.0]
    assert moved.rank.tolist() == [3, 1, 4, 2, 0]  # what is left out first is as it was
