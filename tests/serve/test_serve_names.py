"""Names in requests: what they stand for, and who may have hosts resolved."""

import asyncio
import json
import threading

import pytest
from serve_server import serving, until
from test_serve_requests import refused_to_start

from ping_llm.measurements.addresses import parse_prefix
from ping_llm.serve.names import HostLookup
from ping_llm.serve.options import Limits
from ping_llm.serve.refusals import Refused


def test_a_name_is_answered_as_its_address_and_the_answer_says_so(server, systems):
    (source,), (first,) = systems["probe:7"], systems["AS64500"]
    notes = [f"probe:7 is {source}", f"AS64500 is {first}"]

    def same(path, named, plain, names=notes):
        answers = [server.post(path, body) for body in (named, plain)]
        assert [one.status_code for one in answers] == [200, 200], [one.text for one in answers]
        with_name, without = (one.json() for one in answers)
        if isinstance(with_name, list):
            (with_name,), (without,) = with_name, without
        assert with_name.pop("notes") == names + without.pop("notes", [])
        assert with_name == without

    pair, plain = {"src": "probe:7", "dst": "as64500 "}, {"src": source, "dst": first}
    assert server.post("/v1/rtt", pair).json()["notes"][1] == f"as64500 is {first}"
    pair["dst"] = "AS64500"
    same("/v1/rtt", pair, plain)
    same("/v1/rtt", [pair], [plain])
    few = {"bits": 8, "top": 1, "passes": 1}
    same("/v1/complete", few | {"src": "probe:7"}, few | {"src": source}, notes[:1])
    span = few | {"low": 1.0, "high": 100.0}
    same("/v1/inverse", span | {"src": "probe:7"}, span | {"src": source}, notes[:1])
    result = {"rtt": 20.0, "event_time": 1_704_100_000}
    scored = result | {"src_addr": "probe:7", "dst_addr": "AS64500"}
    same("/v1/score", scored, result | {"src_addr": source, "dst_addr": first})
    series = server.client.get("/v1/series", params=pair).json()
    assert (series["src_addr"], series["dst_addr"], series["notes"]) == (source, first, notes)
    found = server.client.get("/v1/map", params={"src": "probe:7", "limit": 2}).json()
    assert (found["src_addr"], found["notes"]) == (source, notes[:1])
    near = server.client.get("/v1/ends", params={"field": "dst", "src": "probe:7"}).json()
    assert near.pop("notes") == notes[:1]
    assert near == server.client.get("/v1/ends", params={"field": "dst", "src": source}).json()
    assert near["ends"]
    lines = "\n".join(map(json.dumps, [pair, {"src": "probe:8", "dst": first}, plain]))
    stream = {"content": lines, "headers": {"Content-Type": "application/x-ndjson"}}
    out = [json.loads(line) for line in server.client.post("/v1/rtt", **stream).text.splitlines()]
    assert (out[0]["notes"][:2], out[1]["field"], out[1]["line"]) == (notes, "src", 2)
    assert out[0]["quantiles"] == out[2]["quantiles"]


def test_a_ranking_takes_all_that_a_name_stands_for(server, systems):
    (source,), both = systems["probe:7"], systems["NL"]
    made = server.post("/v1/rank", {"src": "probe:7", "dst": ["NL"]}).json()
    plain = server.post("/v1/rank", {"src": source, "dst": both}).json()
    stands_for = f"NL stands for 2 destinations of the data: {', '.join(both)}"
    assert made.pop("notes") == [f"probe:7 is {source}", stands_for, *plain.pop("notes")]
    assert made == plain


def test_what_a_name_stands_for_can_be_asked(server, systems):
    def ask(**parameters):
        return server.client.get("/v1/names", params=parameters)

    both = systems["NL"]
    note = f"NL stands for 2 destinations of the data: {', '.join(both)}"
    assert ask(name="NL").json() == {"name": "NL", "addresses": both, "note": note}
    assert ask(name="probe:7", end="source").json()["addresses"] == systems["probe:7"]
    assert ask(name="192.0.2.1").json() == {"name": "192.0.2.1", "addresses": ["192.0.2.1"], "note": None}
    refused = ask(name="NL", version="6")
    assert (refused.status_code, refused.json()["field"]) == (422, "name")
    assert "host names are not resolved" in ask(name="example.org").json()["error"]


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("NL", "name one of them"),
        ("probe:8", "neither the data"),
        ("192.0.2.0/24", "must be an address, not a prefix"),
    ],
)
def test_destinations_are_those_of_one_source(server, src, words):
    refused = server.client.get("/v1/ends", params={"field": "dst", "src": src})
    assert (refused.status_code, refused.json()["field"]) == (422, "src")
    assert words in refused.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("/v1/rtt", {"src": "probe:7", "dst": "NL"}, "dst", "name one of them"),
        ("/v1/rtt", [{"src": "probe:8", "dst": "NL"}], "[0].src", "neither the data nor --places"),
        ("/v1/rtt", {"src": "probe:7", "dst": "example.org"}, "dst", "host names are not resolved"),
        (
            "/v1/rank",
            {"src": "probe:7", "dst": ["NL", "AS1"]},
            "dst[1]",
            "no prefix in the tables of --places belongs to AS1",
        ),
        ("/v1/score", {"src_addr": "x.y", "dst_addr": "NL", "rtt": 1.0}, "src_addr", "not resolved"),
    ],
)
def test_what_a_name_cannot_stand_for_is_refused(server, path, body, field, words):
    response = server.post(path, body)
    assert (response.status_code, response.json()["field"]) == (422, field), response.text
    assert words in response.json()["error"]


def test_hosts_are_resolved_where_the_server_may(tmp_path, run):
    with serving(tmp_path, run, "--no-data", "--resolve-hosts") as server:
        made = server.post("/v1/rtt", {"src": "192.0.2.1", "dst": "localhost"}).json()
        assert (made["dst_addr"], made["notes"][0]) == ("127.0.0.1", "localhost is 127.0.0.1")
        unknown = server.post("/v1/rtt", {"src": "no-such.invalid", "dst": "192.0.2.1"})
        assert (unknown.status_code, unknown.json()["field"]) == (422, "src")
        assert "cannot be resolved" in unknown.json()["error"]


def test_nobody_becomes_a_resolver_for_strangers(run):
    said = refused_to_start(str(run), "--host", "0.0.0.0", "--no-auth", "--resolve-hosts")
    assert "--resolve-hosts needs --token-file" in said


def test_a_resolver_that_hangs_holds_up_nobody_else():
    """Two look-ups at a time: those that hang are refused in time, and count until they end."""
    answer, started = threading.Event(), []

    def resolve(host):
        started.append(host)
        if host.startswith("slow"):
            answer.wait(60)
        return [parse_prefix("192.0.2.1")]

    async def run():
        hosts = HostLookup(Limits(look_ups=2, look_up_seconds=0.2), resolve)
        assert (await hosts.all(["quick"]))["quick"] == [parse_prefix("192.0.2.1")]
        found = await hosts.all(["slow-1", "slow-2", "other", "quick"])
        late = [found[host] for host in ("slow-1", "slow-2", "other")]
        assert all(isinstance(one, Refused) and one.status == 503 for one in late)
        assert found["quick"] == [parse_prefix("192.0.2.1")]  # kept
        assert started == ["quick", "slow-1", "slow-2"]
        answer.set()
        await asyncio.to_thread(until, lambda: not any(t.name == "host name" for t in threading.enumerate()))
        assert (await hosts.all(["slow-1", "other"]))["other"] == [parse_prefix("192.0.2.1")]
        assert started == ["quick", "slow-1", "slow-2", "other"]

    asyncio.run(run())
