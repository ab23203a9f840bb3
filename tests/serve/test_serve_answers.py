"""What a server answers is what Python answers, to the last digit."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from serve_server import serving

from ping_llm.answer import show
from ping_llm.answer.base import BaseModel
from ping_llm.answer.context import Context, Question
from ping_llm.answer.model import Model
from ping_llm.answer.report import result_values, results
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.times import moment_text
from ping_llm.serve.about import describe
from ping_llm.serve.options import ServeOptions


@pytest.fixture(scope="module")
def local(run, rows) -> Model:
    return Model.load(run, data=rows)


@pytest.fixture(scope="module")
def measured(world) -> Columns:
    """Later measurements than those of the rows, of both IP versions."""
    return world.visible.sorted_by_time().take(slice(-40, None))


def text(packed: np.ndarray) -> str:
    return unpack_one(packed.tobytes())


def body_of(columns: Columns, index: int) -> dict:
    ends = {"src": text(columns.src[index]), "dst": text(columns.dst[index])}
    return ends | {"at": moment_text(int(columns.time[index]))}


@pytest.fixture(scope="module")
def asked(measured, world) -> list[dict]:
    """Known pairs, prefixes, other times, contexts of their own, new ends."""
    plain = [body_of(measured, index) for index in range(0, 24, 2)]
    pair = next(body for body in plain if ":" not in body["src"])
    network, early = shared_network(world.visible)
    context = [
        {"dst_addr": pair["dst"], "rtt": 20.0 + place, "event_time": 1_704_100_000 + 60 * place}
        for place in range(5)
    ]
    return [
        *plain,
        {key: pair[key] for key in ("src", "dst")},
        # A prefix stands for the source that was measured last before each time: these two must not mix.
        pair | {"src": network, "at": early},
        pair | {"src": network},
        pair | {"context": context},
        pair | {"context": []},
        pair | {"below": 50.0},
        {"src": "192.0.2.1", "dst": "198.51.100.7"},
    ]


def shared_network(known: Columns) -> tuple[str, str]:
    """A /8, and a time before the first measurement of that source of it which was measured last."""
    ipv4 = known.take((known.src[:, :10] == 0).all(axis=1)).sorted_by_time()
    for byte in np.unique(ipv4.src[:, 12]):
        mine = ipv4.take(ipv4.src[:, 12] == byte)
        first = np.argmax((mine.src == mine.src[-1]).all(axis=1))
        if mine.time[first] > mine.time[0]:
            return f"{byte}.0.0.0/8", moment_text(int(mine.time[first]))
    raise AssertionError("no network has two sources")


def in_python(local: Model, body: dict) -> dict:
    source, context = body["src"], body.get("context")
    known = None
    if context is not None:
        question = Question.of(source, body["dst"])
        assert question.dst is not None
        pack = np.frombuffer(question.dst.packed, np.uint8)
        times = np.array([one["event_time"] * 1_000_000 for one in context], np.int64)
        rtts = np.array([one["rtt"] for one in context], np.float64)
        known = Context.of(question.src.packed, np.tile(pack, (len(context), 1)), times, rtts)
    question = Question.of(source, body["dst"], body.get("at"), known)
    answer = local.rtt_many([question])[0]
    return json.loads(json.dumps(show.rtt_values(answer, body.get("below"))))


def test_answers_are_those_of_python_whatever_is_batched(server, local, asked):
    expected = [in_python(local, body) for body in asked]
    assert len({one["rests_on"]["kind"] for one in expected}) > 2
    assert expected[-6]["rests_on"] != expected[-5]["rests_on"]
    with ThreadPoolExecutor(12) as pool:
        alone = list(pool.map(lambda body: server.post("/v1/rtt", body), asked * 2))
        several = [pool.submit(server.post, "/v1/rtt", asked[::step]) for step in (1, -1, 2, 3)]
    assert {response.status_code for response in alone} == {200}
    assert [response.json() for response in alone] == expected * 2
    for step, future in zip((1, -1, 2, 3), several, strict=True):
        assert future.result().json() == expected[::step]
    # Some of them were answered together.
    assert server.metric("batch_questions_sum") > server.metric("batch_questions_count")


def test_lines_are_answered_in_order(server, local, asked):
    lines = [json.dumps(body) for body in asked] * 60  # more than a list may have
    assert len(lines) > 1000
    lines[3] = "{"
    lines[5] = json.dumps({"src": "192.0.2.1", "dst": "x"})
    lines[7] = json.dumps(asked[7] | {"method": "nothing"})
    response = server.client.post(
        "/v1/rtt", content="\n".join(lines), headers={"Content-Type": "application/x-ndjson"}
    )
    assert response.headers["content-type"] == "application/x-ndjson"
    out = [json.loads(line) for line in response.text.splitlines()]
    assert len(out) == len(lines)
    assert out[3]["error"].startswith("the body must be JSON")
    assert (out[5]["field"], out[5]["line"]) == ("dst", 6)
    assert "there is no method 'nothing'" in out[7]["error"]
    for place in [*range(3), *range(20, len(lines), 97)]:
        assert out[place] == in_python(local, asked[place % len(asked)])


def test_a_list_above_the_limit_is_refused(server):
    response = server.post("/v1/rtt", [{"src": "192.0.2.1", "dst": "192.0.2.2"}] * 1001)
    assert response.status_code == 422
    assert "application/x-ndjson" in response.json()["error"]


def test_other_questions_are_those_of_python(server, local, measured):
    body = body_of(measured, 0)
    src, at = body["src"], body["at"]
    candidates = sorted(
        {text(measured.dst[i]) for i in range(40) if (text(measured.dst[i]).count(":") > 0) == (":" in src)}
    )
    ranked = server.post("/v1/rank", {"src": src, "dst": candidates, "at": at, "objective_ms": 80.0})
    expected = local.rank(src, candidates, at, objective_ms=80.0).as_dict()
    assert ranked.json() == json.loads(json.dumps(expected))

    question = Question.of(src, None, at)
    known = local.data.context(question, local.config.max_length // 11)
    completed = server.post("/v1/complete", {"src": src, "at": at, "bits": 16, "top": 3})
    answer = local.complete(src, None, at, known if len(known) else None, count=3, bits=16)
    assert completed.json() == json.loads(json.dumps(show.completions_values(answer)))

    found = server.post("/v1/inverse", {"src": src, "low": 5, "high": 400, "at": at, "top": 3, "bits": 16})
    inverse = local.inverse(src, 5, 400, at, known if len(known) else None, count=3, bits=16)
    assert found.json() == json.loads(json.dumps(show.inverse_values(inverse, None, 400)))


def scored_bodies(measured: Columns) -> list[dict]:
    return [
        {
            "src_addr": body["src"],
            "dst_addr": body["dst"],
            "event_time": body["at"],
            "rtt": float(measured.rtt[i]),
        }
        for i, body in ((i, body_of(measured, i)) for i in range(len(measured)))
    ]


def test_scores_are_those_of_python(server, local, measured):
    some = measured.take(slice(0, 10))
    expected = [
        result_values(some, part, place) for part in results(local, some) for place in range(len(part.row))
    ]
    bodies = scored_bodies(some)
    assert server.post("/v1/score", bodies).json() == json.loads(json.dumps(expected))
    lines = "\n".join(map(json.dumps, [*bodies[:4], bodies[4] | {"rtt": -7}, *bodies[4:]]))
    response = server.client.post(
        "/v1/score", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    out = [json.loads(line) for line in response.text.splitlines()]
    assert (out[4]["field"], out[4]["line"]) == ("rtt", 5)
    assert [one["bits"] for one in out[:4] + out[5:]] == [one["bits"] for one in expected]


def test_a_series_has_what_was_measured_and_what_was_expected(server, local, measured, world):
    src, dst = text(measured.src[0]), text(measured.dst[0])
    every = world.visible.sorted_by_time()
    pair = (every.src == measured.src[0]).all(axis=1) & (every.dst == measured.dst[0]).all(axis=1)
    mine = every.take(pair)
    series = server.client.get("/v1/series", params={"src": src, "dst": dst, "limit": 5}).json()
    assert series["measured"] == len(mine)
    assert [one["rtt"] for one in series["points"]] == mine.rtt[-5:].tolist()
    last = series["points"][-1]
    answer = local.rtt(src, dst, last["event_time"])
    assert last["expected"]["0.95"] == float(answer.distribution.quantile(0.95))
    cut = {"src": src, "dst": dst, "to": series["points"][-1]["event_time"]}
    assert server.client.get("/v1/series", params=cut).json()["measured"] == int(
        (mine.time < mine.time[-1]).sum()
    )


def test_the_model_says_what_it_is(server, local, rows):
    about = server.client.get("/v1/model").json()
    assert about["calibration"] == json.loads(json.dumps(local.stack.as_dict()))
    assert about["trained_on"] == local.stack.about["trained_on"]
    assert about["card"].startswith("---")
    assert str(rows.parent) not in json.dumps(about)


def test_base_names_the_network_that_answers(world):
    base = BaseModel.packaged()
    about = describe(base.about(world.train), ServeOptions(run=Path("base")))
    assert about["network"] == "relations"
    assert 50_000 < about["parameters"] < 200_000 < base.config.parameters
    assert about["layers"] is about["trained_on"] is None
    base.recipe = replace(base.recipe, about={"tuned_to": {"measurements": 9}})
    tuned = describe(base.about(world.train), ServeOptions(run=Path("base")))
    assert tuned["trained_on"] == {"measurements": 9}


def test_base_answers_from_the_context_of_a_request_alone(tmp_path, rows, world):
    """As in Python. It was trained on nothing of the server's data, so an empty context is refused."""
    known = world.train.take(world.train.replied & (world.train.src[:, :10] == 0).all(axis=1))
    src, dst = (text(end[0]) for end in (known.src, known.dst))
    with serving(tmp_path, "base", "--data", rows) as server:
        pair = {"src": src, "dst": dst}
        own = [{"dst_addr": dst, "rtt": 500.0}, {"dst_addr": dst, "rtt": 501.0}]
        of_data, given = server.post("/v1/rtt", [pair, pair | {"context": own}]).json()
        assert of_data["rests_on"]["destination_measurements"] > 2
        assert given["rests_on"]["destination_measurements"] == 2
        table = pa.table({"src_addr": [src] * 2, "dst_addr": [dst] * 2, "rtt": [500.0, 501.0]})
        assert given == show.rtt_values(Model.load("base", data=rows).rtt(src, dst, context=table))
        for path, body, field in (
            ("/v1/rtt", pair | {"context": []}, "context"),
            ("/v1/rtt", [pair, pair | {"context": []}], "[1].context"),
            ("/v1/rank", {"src": src, "dst": [dst], "context": []}, "context"),
        ):
            refused = server.post(path, body)
            assert (refused.status_code, refused.json()["field"]) == (422, field)
            assert "context must have at least one measurement" in refused.json()["error"]
