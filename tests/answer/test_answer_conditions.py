"""Conditions of questions: stated before the RTT where a network was trained on them, refused elsewhere."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ping_llm.answer import network
from ping_llm.answer.conditions import Conditions
from ping_llm.answer.context import Context, Question
from ping_llm.answer.methods.base import FailureRates
from ping_llm.answer.methods.registry import make
from ping_llm.answer.model import Model
from ping_llm.answer.past import Data
from ping_llm.answer.questions import CELLS, KINDS
from ping_llm.answer.remote import _question_values
from ping_llm.answer.report import print_scores
from ping_llm.answer.score import NAMES
from ping_llm.answer.show import generated_text, generated_values, rtt_values
from ping_llm.answer.stack import Stack
from ping_llm.cli import app, decide
from ping_llm.cli import query as query_commands
from ping_llm.contexts.memory_rows import rows_of_columns
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.schema import Measurement
from ping_llm.model import export
from ping_llm.model.random import random_tensors
from ping_llm.serve.requests import RttBody, body_of, question_of
from ping_llm.splits.novelty import Novelty
from ping_llm.tokens import vocab
from ping_llm.tokens.reference import decode
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.tokens.statement import whole
from ping_llm.tokens.vocab import Field

query_commands.register(app)
decide.register(app)

SRC, DST = "192.0.2.1", "198.51.100.7"
FIELDS = "src,dst,rtt,time,size,errors,msm_id,probe_id,throughput"
AT = 1_714_521_600


@pytest.fixture(scope="module")
def knowing(engine) -> Model:
    """Random weights that are said to have been trained on everything."""
    return Model(engine, rtt_encoding("compact"), {"context": {"fields": FIELDS}})


@pytest.fixture(scope="module")
def knowing_run(tmp_path_factory, engine, world):
    """The same as a run, with a stack of equal parts of the network and the distribution of all RTTs."""
    folder = tmp_path_factory.mktemp("knowing")
    tokens = export.token_schema({"fields": FIELDS})
    export.write(engine.config, random_tensors(engine.config, seed=5, scale=3.0), tokens, folder / "export")
    stack_of(world.train).save(folder / "stack")
    return folder


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory, engine, world):
    """One that was trained on the usual fields."""
    folder = tmp_path_factory.mktemp("plain")
    export.write(engine.config, random_tensors(engine.config, seed=5, scale=3.0), {}, folder / "export")
    stack_of(world.train).save(folder / "stack")
    return folder


def stack_of(train: Columns) -> Stack:
    trained = Novelty.of(train)
    return Stack(
        ("network", "global"), {"global": make("global").fit(train)}, np.full((CELLS, 2), 0.5),
        np.zeros(KINDS), np.zeros(KINDS), np.ones(KINDS), np.zeros(KINDS), 5000.0, FailureRates(train),
        trained, trained,
    )  # fmt: skip


def earlier(count: int = 5, size: int | None = 64) -> list[Measurement]:
    times = [datetime.fromtimestamp(AT - 600 * (count - n), UTC) for n in range(count)]
    return [
        Measurement(
            time, SRC, f"198.51.100.{n}", 10.0 + n, size=size, msm_id=7, probe_id=9, throughput_mbps=94.3
        )
        for n, time in enumerate(times)
    ]


def test_the_prompt_states_conditions_and_those_of_its_context(knowing):
    given = {"throughput": 0.2, "probe_id": 6012, "msm_id": 2**40, "size": 1000}
    asked = Question.of(SRC, DST, AT, earlier(), given)
    (prompt,) = knowing.prompts([asked])
    *context, question = decode([*prompt.ids.tolist(), vocab.BYTE0, vocab.BYTE0])
    conditions = (Field.SIZE, Field.MSM_ID, Field.PROBE_ID, Field.THROUGHPUT)
    assert question.order == (Field.DST, Field.TIME, *conditions, Field.RESULT)
    assert {name: getattr(question, name) for name in given} == given
    assert [(one.size, one.msm_id, one.errors, one.probe_id) for one in context] == [(64, 7, None, 9)] * 5
    assert {one.throughput for one in context} == {94.208}  # 7 bits of mantissa
    assert all(one.order[-1] is Field.RESULT for one in context)


def test_a_model_without_fields_states_what_it_always_did(model):
    plain, also = (
        model.prompts([Question.of(SRC, DST, AT, known)])[0].ids for known in (earlier(size=None), earlier())
    )
    np.testing.assert_array_equal(plain, also)
    assert not {vocab.SIZE, vocab.MSM_ID} & set(plain.tolist())


@pytest.mark.parametrize("count", [5, 40])
def test_a_context_that_does_not_fit_loses_its_least_relevant(knowing, count):
    given = {"size": 1, "errors": 2, "msm_id": 3, "probe_id": 4, "throughput": 5}
    asked = Question.of(SRC, DST, AT, earlier(count), given)
    (prompt,) = knowing.prompts([asked])
    assert len(prompt.ids) <= prompt.room <= knowing.config.max_length
    assert prompt.given == count
    assert (prompt.used == count) == (count == 5)
    decode([*prompt.ids.tolist(), vocab.BYTE0, vocab.BYTE0])


def test_conditions_change_the_answer_by_every_way_of_asking(knowing_run, rows, tmp_path):
    loaded = Model.load(knowing_run, data=rows)
    src, dst = (str(address_of(column)) for column in ends(loaded))
    for how in ({"raw": True}, {"method": "network"}, {}):
        small, large = (
            loaded.rtt(src, dst, AT, conditions={"size": size}, **how).distribution for size in (64, 1000)
        )
        assert np.abs(small.levels - large.levels).max() > 1e-6, how
        slow, fast = (
            loaded.rtt(src, dst, AT, conditions={"throughput": mbps}, **how).distribution
            for mbps in (0.25, 0.5)  # whole numbers would be one
        )
        assert np.abs(slow.levels - fast.levels).max() > 1e-6, how
    (note,) = [
        note for note in loaded.rtt(src, dst, AT, conditions={"size": 64}).notes if "conditions" in note
    ]
    assert "50%" in note

    given = {"size": 1000, "msm_id": 7, "probe_id": 9, "throughput": 94.3}
    expected = loaded.rtt(src, dst, AT, conditions=given)
    words = ["query", "rtt", str(knowing_run), "--data", str(rows), "--json"]
    one = ["--src", src, "--dst", dst, "--at", str(AT), "--size", "1000", "--msm-id", "7", "--probe", "9"]
    one += ["--throughput", "94.3"]
    printed = json.loads(CliRunner().invoke(app, [*words, *one], catch_exceptions=False).stdout)
    assert printed == json.loads(json.dumps(rtt_values(expected)))
    assert printed["conditions"] == given

    pairs = tmp_path / "pairs.csv"
    head = "src,dst,time,size,msm_id,probe_id,throughput_mbps"
    pairs.write_text(f"{head}\n{src},{dst},{AT},1000,7,9,94.3\n{src},{dst},{AT},,,,\n")
    result = CliRunner().invoke(app, [*words, "--pairs", str(pairs)], catch_exceptions=False)
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["quantiles"] == printed["quantiles"]
    assert second["quantiles"] == rtt_values(loaded.rtt(src, dst, AT))["quantiles"]
    assert "conditions" not in second

    table = pa.table(
        {
            "src_addr": [src],
            "dst_addr": [dst],
            "event_time": [AT],
            "size": [1000],
            "msm_id": [7],
            "probe_id": [9],
            "throughput_mbps": [94.3],
        }
    )
    assert loaded.rtt(table)["q0.5"][0].as_py() == expected.distribution.quantile(0.5)


def ends(model: Model) -> tuple[np.ndarray, np.ndarray]:
    block = model.data.store.read([0])
    return block.src[0], block.dst[0]


def address_of(packed: np.ndarray):
    return whole(packed.tobytes())


def test_earlier_measurements_of_rows_bring_their_fields(knowing):
    store = rows_of_columns(measured(6))
    asked = Question.of(SRC, DST, AT)
    context = Data("memory", store, knowing.optional_columns).context(asked, 6)
    assert context.column("size").tolist() == [-1, 64, 64, 64, 64, -1]
    assert context.column("packet_error_count").tolist() == [0, 1, 2, 0, 1, 2]
    assert not Data("memory", store).context(asked, 6).also


def test_held_out_questions_state_what_the_network_was_trained_on(world):
    test = world.visible.take(slice(0, 3))
    sized = replace(test, size=np.array([64, -1, 1000]), packet_error_count=np.array([1, 1, 1]))
    made = network.ways(sized.queries(), History(world.visible), network.Asking(), None, ("size", "errors"))
    assert [ways[0].conditions for ways in made] == [Conditions(64), Conditions(), Conditions(1000)]
    plain = network.ways(sized.queries(), History(world.visible), network.Asking())
    assert not any(ways[0].conditions for ways in plain)


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"ttl": 3}, "no condition 'ttl'"),
        ({"size": 65_536}, "size must be a whole number from 0 to 65535, not 65536"),
        ({"size": -1}, "not -1"),
        ({"msm_id": 1.5}, "not 1.5"),
        ({"errors": True}, "not True"),
        ({"throughput": True}, "not True"),
        ({"throughput": -0.5}, "throughput must be a number of Mbit/s from 0 to 100000000, not -0.5"),
        ({"throughput": float("nan")}, "not nan"),
        ({"throughput": "fast"}, "not 'fast'"),
    ],
)
def test_what_cannot_be_is_refused(conditions, words):
    with pytest.raises(UsageError, match=words):
        Question.of(SRC, DST, conditions=conditions)


def test_a_model_that_was_not_trained_on_a_field_says_so(model, plain_run, rows, tmp_path):
    for ask in (
        lambda: model.rtt(SRC, DST, conditions={"size": 64}),
        lambda: model.rank(SRC, [DST], conditions={"size": 64}),
        lambda: model.complete(SRC, conditions={"size": 64}),
        lambda: model.complete(dst=DST, field="src", conditions={"size": 64}),
        lambda: model.inverse(SRC, 1, 100, conditions={"size": 64}),
    ):
        with pytest.raises(UsageError, match=r"not trained on size.*src,dst,rtt,time"):
            ask()
    with pytest.raises(UsageError, match="not trained on throughput"):
        model.rtt(SRC, DST, conditions={"throughput": 64})
    one = ["query", "rtt", str(plain_run), "--data", str(rows), "--src", SRC, "--dst", DST, "--msm-id", "7"]
    result = CliRunner().invoke(app, one)
    assert isinstance(result.exception, UsageError)
    assert "not trained on msm_id" in str(result.exception)
    with pytest.raises(UsageError, match="the method global does not use size"):
        Model.load(plain_run, data=rows).rtt(SRC, DST, method="global", conditions={"size": 1})
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(f"src,dst,size\n{SRC},{DST},64\n")
    result = CliRunner().invoke(app, [*one[:5], "--pairs", str(pairs), "--json"], catch_exceptions=False)
    assert "size not used: the model was not trained on it" in result.stderr
    assert "conditions" not in json.loads(result.stdout)


def test_addresses_depend_on_conditions(knowing):
    for ask in (
        lambda given: knowing.complete(SRC, bits=8, count=3, conditions=given),
        lambda given: knowing.complete(dst=DST, field="src", bits=8, count=3, conditions=given),
        lambda given: knowing.inverse(SRC, 0, 5000, bits=8, count=3, raw=True, conditions=given).completions,
    ):
        for name, values in (("size", (64, 1000)), ("throughput", (1.0, 900.0))):
            one, other = (ask({name: value}).best[0].probability for value in values)
            assert one != other


def test_a_context_keeps_its_fields(knowing):
    context = Context.from_measurements(earlier())
    again = Context.of_columns(context.columns())
    assert again.take(np.array([1, 3])).column("size").tolist() == [64, 64]
    assert context.column("packet_error_count").tolist() == [-1] * 5


def measured(count: int = 24) -> Columns:
    """Measurements of one source, with sizes and ids; some are not known."""
    context = Context.from_measurements(earlier(count))
    columns = replace(context.columns(), size=np.where(np.arange(count) % 5, 64, -1))
    return replace(columns, packet_error_count=np.arange(count) % 3)


def test_scores_have_the_bits_of_every_field(knowing, model):
    scorer = knowing.scorer()
    usual = ("start", "src", "dst", "time", "result")
    assert scorer.names == (*usual, "size", "errors", "msm_id", "probe_id", "throughput")
    parts = list(scorer.add(measured()))
    bits, rows = (np.concatenate([getattr(part, name) for part in parts]) for name in ("bits", "row"))
    assert sorted(rows.tolist()) == list(range(24))
    known = measured().size[rows] >= 0
    assert ((bits[:, NAMES.index("size")] > 0) == known).all()
    assert (bits[:, NAMES.index("errors")] > 0).all()
    assert (bits[:, NAMES.index("msm_id")] > 0).all()
    assert (bits[:, NAMES.index("throughput")] > 0).all()
    windows = knowing.scorer().windows(measured(), 2)
    assert max(map(len, windows)) <= knowing.config.max_length
    assert model.scorer().names == ("start", "src", "dst", "time", "result")
    usual = np.concatenate([part.bits for part in model.scorer().add(measured())])
    assert not usual[:, 5:].any()


def test_score_prints_the_fields_of_a_file(knowing, tmp_path, capsys):
    pq.write_table(measured().to_arrow(), tmp_path / "file.parquet")
    print_scores(knowing, tmp_path / "file.parquet", 3, as_json=True)
    first, *_ = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first["bits"]) == [*knowing.scorer().names, "total"]
    assert first["bits"]["probe_id"] > 0
    assert first["bits"]["throughput"] > 0
    for option in ("--size", "--throughput"):
        refused = CliRunner().invoke(app, ["query", "score", "base", "file.parquet", option, "64"])
        assert "score has none of --size" in str(refused.exception)
        assert "the file states them" in str(refused.exception)
    assert first["bits"]["total"] == pytest.approx(sum(list(first["bits"].values())[:-1]))


def test_sampled_measurements_have_the_fields(knowing, model):
    made = generated_values(knowing.generate(SRC, measurements=4, seed=3))["histories"][0]
    for one in made:
        assert {"size", "packet_error_count", "msm_id", "probe_id", "throughput_mbps"} <= one.keys()
    assert any(one["size"] is not None for one in made)
    assert "size" in generated_text(knowing.generate(SRC, measurements=2, seed=3))
    assert "size" not in generated_values(model.generate(SRC, measurements=2, seed=3))["histories"][0][0]


def test_evaluation_has_the_bits_of_every_field(knowing, model):
    from ping_llm.evaluate.fields import by_order
    from ping_llm.evaluate.tables import likelihood_tables

    figures = by_order(knowing, measured(6))
    names = ["src", "dst", "time", "size", "errors", "msm_id", "probe_id", "throughput", "result"]
    assert list(figures["all_fields"]["by_field"]) == names
    assert figures["all_fields"]["by_field"]["result"] != figures["all_fields"]["result_without"]
    # Stated or not, the order without optional fields is one of those that are always there.
    usual = figures["with_time"]["by_order"]["src dst time result"]["result"]
    assert figures["all_fields"]["result_without"] == pytest.approx(usual)
    assert "msm_id" in "".join(likelihood_tables(figures))
    assert "all_fields" not in by_order(model, measured(6))


def test_a_question_reaches_a_server_with_all_that_it_states():
    """What `connect` sends is read as the same question."""
    given = {"size": 1000, "errors": 1, "msm_id": 2**62, "probe_id": 9, "throughput": 0.5}
    asked = Question.of(SRC, DST, AT, earlier(), given)
    body = body_of(RttBody, json.loads(json.dumps(_question_values(asked))))
    again = question_of(body.src, body.dst, body.at, body.context, conditions=body.conditions)
    assert replace(again, context=None) == replace(asked, context=None)
    for name in ("size", "packet_error_count", "msm_id", "probe_id", "throughput_mbps"):
        np.testing.assert_array_equal(again.context.column(name), asked.context.column(name))


def test_only_models_of_later_fields_have_tokens_of_later_versions(knowing_run, plain_run):
    for run, version in ((knowing_run, 3), (plain_run, 1)):
        assert json.loads((run / "export" / "tokens.json").read_text())["format"] == version
    assert export.token_schema({"fields": "src,dst,rtt,probe_id"})["format"] == 2
    assert export.token_schema({"fields": "src,dst,rtt,throughput"})["format"] == 3
    assert export.token_schema({"fields": "src,dst,rtt,size,errors,msm_id"})["format"] == 1
    assert export.optional_fields(knowing_run) == tuple(vocab.OPTIONAL)
    assert export.optional_fields(plain_run) == ()


def test_generated_measurements_have_the_values_that_are_stated(knowing, knowing_run, model):
    given = {"size": 1000, "probe_id": 9, "throughput": 94.208}
    known = earlier()
    for beginning in ((), (SRC,), (SRC, AT), (SRC, None, known), (SRC, AT, known)):
        made = knowing.generate(*beginning, measurements=3, histories=2, seed=2, conditions=given)
        every = [one for history in made.histories for one in history]
        assert len(every) == 6
        stated = [(one.size, one.probe_id, one.throughput) for one in every]
        assert stated == [(1000, 9, 94.208)] * 6, beginning
    words = [
        "query",
        "generate",
        str(knowing_run),
        "--src",
        SRC,
        "--size",
        "1000",
        "--throughput",
        "8",
        "--json",
    ]
    printed = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert {(one["size"], one["throughput_mbps"]) for one in printed["histories"][0]} == {(1000, 8.0)}
    with pytest.raises(UsageError, match="not trained on size"):
        model.generate(conditions={"size": 1000})


def test_a_matrix_states_conditions(knowing_run, rows, tmp_path):
    loaded = Model.load(knowing_run, data=rows)
    src, dst = (str(address_of(column)) for column in ends(loaded))
    words = ["matrix", str(knowing_run), "--data", str(rows), "--src", src, "--dst", dst, "--at", str(AT)]
    words += ["--out", str(tmp_path / "m"), "--json", "--method", "network"]
    result = CliRunner().invoke(app, [*words, "--size", "1000"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (row,) = pq.read_table(tmp_path / "m" / "matrix.parquet").to_pylist()
    expected = loaded.rtt(src, dst, AT, conditions={"size": 1000}, method="network")
    assert row["q50"] == expected.distribution.quantile(0.5)
    assert row["q50"] != loaded.rtt(src, dst, AT, method="network").distribution.quantile(0.5)
    other = CliRunner().invoke(app, [*words, "--size", "64"])
    assert "has the matrix of another request" in str(other.exception)


def test_a_plan_states_conditions_of_questions_and_of_what_would_be_measured(
    knowing_run, rows, tmp_path, monkeypatch
):
    loaded = Model.load(knowing_run, data=rows)
    src, dst = (str(address_of(column)) for column in ends(loaded))
    asked: list[Question] = []
    ask = Model.rtt_many
    monkeypatch.setattr(Model, "rtt_many", lambda self, q, **how: asked.extend(q) or ask(self, q, **how))
    pair = Question.of(src, dst, AT, conditions={"size": 1000})
    loaded.plan([pair], 1)
    assert {question.conditions for question in asked} == {Conditions(1000)}
    known = asked[0].context
    (added, *_) = [one.context for one in asked if len(one.context) > len(known)]
    # Those of the rows keep what they have, and the new one has the size that it would be measured with.
    np.testing.assert_array_equal(added.column("size"), [*known.column("size"), 1000])
    np.testing.assert_array_equal(added.column("msm_id"), [*known.column("msm_id"), -1])
    np.testing.assert_array_equal(added.column("throughput_mbps"), [*known.column("throughput_mbps"), -1])
    asked.clear()
    words = ["plan", str(knowing_run), "--data", str(rows), "--budget", "1", "--json"]
    one = [*words, "--src", src, "--dst", dst, "--size", "64"]
    assert CliRunner().invoke(app, one, catch_exceptions=False).exit_code == 0
    assert {question.conditions for question in asked} == {Conditions(64)}
    asked.clear()
    one = [*words, "--src", src, "--dst", dst, "--throughput", "0.5"]
    assert CliRunner().invoke(app, one, catch_exceptions=False).exit_code == 0
    assert {question.conditions for question in asked} == {Conditions(throughput=0.5)}
    asked.clear()
    table = tmp_path / "candidates.csv"
    table.write_text(f"src_addr,dst_addr,size\n{src},{dst},7\n")
    given = [*words, "--candidates", str(table)]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 0
    assert {question.conditions for question in asked} == {Conditions(7)}
    result = CliRunner().invoke(app, [*given, "--size", "64"])
    assert "--candidates excludes --size" in str(result.exception)


def test_a_watch_states_what_its_stream_shares(knowing, world):
    from ping_llm.watch.watcher import Watcher

    stream = world.train.sorted_by_time().take(slice(0, 3))
    medians = []
    for size in (64, 1000):
        first = Watcher(knowing, conditions={"size": size}).add(stream).seen[0]
        end = [Prefix.of(column[0]) for column in (stream.src, stream.dst)]
        question = Question(*end, int(stream.time[0]), Context.empty(), Conditions(size))
        assert first.expected[1] == pytest.approx(knowing.rtt_many([question])[0].distribution.median)
        medians.append(first.expected[1])
    assert medians[0] != medians[1]
    slow, fast = (
        Watcher(knowing, conditions={"throughput": mbps}).add(stream).seen[0].expected[1]
        for mbps in (0.5, 900)
    )
    assert slow != fast
    with pytest.raises(UsageError, match="errors must not be given to a watch"):
        Watcher(knowing, conditions={"errors": 1})
