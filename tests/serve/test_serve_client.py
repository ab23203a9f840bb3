"""A client of the server, in Python and on the command line, and the tools of `ping-llm mcp`."""

import asyncio
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mcp import Client, StdioServerParameters
from serve_server import TOKEN

import ping_llm
from ping_llm.answer import remote as remote_module
from ping_llm.answer.context import Context, Question
from ping_llm.answer.model import Model
from ping_llm.answer.remote import Remote
from ping_llm.answer.show import rtt_values

PAIRS = [
    ("85.212.133.33", "176.20.143.7"),
    ("85.212.133.33", "176.20.143.0/24"),
    ("192.0.2.1", "198.51.100.7"),
]
AT = "2024-01-05T12:00:00.250000Z"


@pytest.fixture(scope="module")
def model(run, rows) -> Model:
    return Model.load(run, data=rows)


@pytest.fixture(scope="module")
def remote(server, token_file) -> Iterator[Remote]:
    with ping_llm.connect(server.url, token_file=token_file) as made:
        yield made


def same(ours, theirs) -> None:
    for name in ("src", "dst", "time"):
        assert getattr(ours.question, name) == getattr(theirs.question, name)
    for name in ("edges", "levels"):
        assert np.array_equal(getattr(ours.distribution, name), getattr(theirs.distribution, name))
    assert ours.distribution.point == theirs.distribution.point
    assert ours.distribution.mean == theirs.distribution.mean
    assert ours.failure == theirs.failure
    for name in ("method", "calibrated", "rests_on", "context_given", "context_used", "notes"):
        assert getattr(ours, name) == getattr(theirs, name)


def questions() -> list[Question]:
    known = Context.from_measurements(pa.table({
        "src_addr": ["192.0.2.1"] * 3, "dst_addr": ["198.51.100.7"] * 3, "rtt": [20.0, -1.0, 21.5],
        "event_time": pa.array([1, 2, None], pa.int64()),
    }))  # fmt: skip
    plain = [Question.of(src, dst, at) for src, dst in PAIRS for at in (None, AT)]
    return [*plain, Question.of("192.0.2.1", "198.51.100.7", AT, known)]


def test_answers_of_a_client_equal_the_models_to_the_last_digit(remote, model, monkeypatch):
    monkeypatch.setattr(remote_module, "_TOGETHER", 4)
    asked = questions()
    for how in ({}, {"method": "vivaldi"}, {"raw": True}):
        for ours, theirs in zip(remote.rtt_many(asked, **how), model.rtt_many(asked, **how), strict=True):
            same(ours, theirs)
    same(remote.rtt(*PAIRS[0], AT), model.rtt(*PAIRS[0], AT))
    table = pa.table({"src_addr": [src for src, _ in PAIRS], "dst_addr": [dst for _, dst in PAIRS]})
    assert remote.rtt(table).equals(model.rtt(table))


def test_rank_complete_inverse_and_score_are_the_same_too(remote, model):
    candidates = ["176.20.143.7", "1.179.239.39"]
    ours = remote.rank(PAIRS[0][0], candidates, AT, objective_ms=80)
    assert ours.as_dict() == model.rank(PAIRS[0][0], candidates, AT, objective_ms=80).as_dict()
    known = model.data.context(Question.of(PAIRS[0][0]), model.config.max_length // 11)
    search = {"bits": 16, "count": 3}
    assert remote.complete(PAIRS[0][0], **search) == model.complete(PAIRS[0][0], None, None, known, **search)
    found = remote.inverse(PAIRS[0][0], 50, 80, within="176.?", **search)
    assert found.completions.best
    assert 0 < found.probability < 1
    columns = {"src_addr": [PAIRS[0][0]] * 2, "dst_addr": [PAIRS[0][1]] * 2, "rtt": [65.0, 900.0]}
    usual, unusual = remote.score(pa.table(columns | {"event_time": [1704500000, 1704500900]}))
    assert usual["bits"] < unusual["bits"]
    assert (usual["row"], unusual["row"]) == (0, 1)


def test_names_are_answered_as_their_addresses_and_the_answer_says_so(remote, model, systems):
    """The server knows probes and systems; hosts are resolved here, though this server refuses them."""
    (source,), (first,), both = systems["probe:7"], systems["AS64500"], systems["NL"]
    notes = (f"probe:7 is {source}", f"AS64500 is {first}")
    named, plain = remote.rtt("probe:7", "AS64500", AT), remote.rtt(source, first, AT)
    assert named.notes == notes + plain.notes
    same(replace(named, notes=plain.notes), plain)
    ranked = remote.rank("probe:7", ["NL"], AT)
    assert ranked.notes[1] == f"NL stands for 2 destinations of the data: {', '.join(both)}"
    assert ranked.as_dict()["candidates"] == remote.rank(source, both, AT).as_dict()["candidates"]
    few = {"bits": 8, "count": 1, "passes": 1}
    assert remote.complete("probe:7", **few).notes[0] == notes[0]
    assert remote.inverse("probe:7", 1, 100, within="176.?", **few).completions.notes[0] == notes[0]
    host = remote.rtt(source, "localhost")
    assert (str(host.question.dst), host.notes[0]) == ("127.0.0.1", "localhost is 127.0.0.1")
    for ends, words in (
        (("probe:8", first), "neither the data nor --places know the probe"),
        (("probe:7", "NL"), "name one of them"),
        (("probe:7", "AS1"), "no prefix in the tables of --places belongs to AS1"),
        (("probe:7", "no such place"), "neither an address nor a prefix"),
    ):
        with pytest.raises(ping_llm.UsageError, match=words):
            remote.rtt(*ends)
    own = Model.load(model.origin, data=model.data.path)
    own.places = [Path(path) for path in systems["files"]]
    same(own.rtt("probe:7", "AS64500", AT), named)
    assert own.rank("probe:7", ["NL"], AT).as_dict() == ranked.as_dict()


def test_a_client_imports_no_jax(server, token_file):
    code = (
        "import sys, ping_llm\n"
        f"answer = ping_llm.connect({server.url!r}, token_file={str(token_file)!r}).rtt(*{PAIRS[0]!r})\n"
        "assert answer.distribution.median > 0\n"
        "print({'jax', 'fastapi', 'duckdb', 'numba'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def about(url: str, **options) -> dict:
    with ping_llm.connect(url, **options) as made:
        return made.about()


def test_refusals_are_sentences(remote, server, tmp_path, monkeypatch):
    with pytest.raises(ping_llm.UsageError, match="there is no method"):
        remote.rtt(*PAIRS[0], method="nothing")
    with pytest.raises(ping_llm.UsageError, match=r"top"):
        remote.complete(PAIRS[0][0], count=1000)
    monkeypatch.delenv("PING_LLM_TOKEN", raising=False)
    with pytest.raises(ping_llm.PingError, match="PING_LLM_TOKEN or a token file"):
        about(server.url)
    monkeypatch.setenv("PING_LLM_TOKEN", TOKEN)
    assert about(server.url)["parameters"] > 0
    with pytest.raises(ping_llm.PingError, match="does not answer"):
        about("http://127.0.0.1:1")
    with pytest.raises(ping_llm.UsageError, match="http://"):
        ping_llm.connect("127.0.0.1:8000")
    empty = tmp_path / "empty"
    empty.write_text("# nobody\n")
    with pytest.raises(ping_llm.UsageError, match="has no token"):
        ping_llm.connect(server.url, token_file=empty)


class Busy(http.server.BaseHTTPRequestHandler):
    """503 twice, then an answer."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        busy = self.asked < 3
        body = json.dumps({"error": "too busy", "field": None} if busy else {"name": "x"}).encode()
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def test_a_busy_server_is_asked_again_while_patience_lasts(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(remote_module.time, "sleep", pauses.append)
    with http.server.HTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{busy.server_port}"
        assert about(url) == {"name": "x"}
        assert len(pauses) == 2
        assert pauses[1] > pauses[0]
        Busy.asked = 0
        with pytest.raises(ping_llm.PingError, match="too busy"):
            about(url, patience=0)
        busy.shutdown()


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PING_LLM_TOKEN"}
    return subprocess.run(
        program, capture_output=True, text=True, check=False, env=environment | variables
    )  # fmt: skip


def test_query_rtt_asks_a_server(server, run, model, systems):
    words = ["--src", PAIRS[0][0], "--dst", PAIRS[0][1], "--at", AT, "--json"]
    ours = command("query", "rtt", "--url", server.url, *words, PING_LLM_TOKEN=TOKEN)
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout) == rtt_values(model.rtt(*PAIRS[0], AT))
    refused = command("query", "rtt", "--url", server.url, *words)
    assert (refused.returncode, "PING_LLM_TOKEN" in refused.stderr) == (1, True)
    named = command("query", "rtt", "--url", server.url, "--src", "probe:7", "--dst", "AS64500", "--json",
                    PING_LLM_TOKEN=TOKEN)  # fmt: skip
    assert json.loads(named.stdout)["notes"][0] == f"probe:7 is {systems['probe:7'][0]}"
    wrong = command("query", "rtt", str(run), "--url", server.url, *words)
    assert (wrong.returncode, "--url excludes RUN" in wrong.stderr) == (2, True)


MEASURED = "dst_addr,rtt,event_time\n" + "".join(
    f"176.20.143.7,{rtt},2024-01-05T12:{minute:02d}:00Z\n"
    for minute, rtt in enumerate([65, 66, 64.5, 400, 65.5, 66.5])
)


@pytest.mark.parametrize("by", ["run", "url"])
def test_tools_over_stdio(by, server, run, rows, token_file, model, systems):
    ends = [str(run), "--data", str(rows)] + [
        word for path in systems["files"] for word in ("--places", path)
    ]
    if by == "url":
        ends = ["--url", server.url, "--token-file", str(token_file), "--no-resolve-hosts"]
    code = ["-c", "from ping_llm.cli import main; main()", "mcp"]
    started = StdioServerParameters(command=sys.executable, args=[*code, *ends])

    async def talk() -> None:
        async with Client(started) as client:
            listed = await client.list_tools()
            assert sorted(one.name for one in listed.tools) == ["anomalies", "rank", "rtt"]
            assert all(one.annotations.read_only_hint for one in listed.tools)
            asked = {"src": PAIRS[0][0], "dst": PAIRS[0][1], "at": AT, "below_ms": 70}
            answer = (await client.call_tool("rtt", asked)).structured_content
            truth = model.rtt(*PAIRS[0], AT)
            assert answer["median"] == truth.distribution.median
            assert answer["below"]["of_replies"] == float(truth.distribution.cdf(70))
            shown = {
                "src": "192.0.2.1",
                "dst": "198.51.100.7",
                "measurements": "198.51.100.7 12\n198.51.100.7 13",
            }
            known = (await client.call_tool("rtt", shown)).structured_content
            assert known["rests_on"]["pair_measurements"] == 2
            shown["measurements"] += "\n198.51.100.7 late"
            known = (await client.call_tool("rtt", shown)).structured_content
            assert known["notes"][0].startswith("rows of the measurements left out: 1 (line 3: ")
            several = {"src": PAIRS[0][0], "candidates": ["176.20.143.7", "1.179.239.39"], "at": AT}
            ranked = (await client.call_tool("rank", several)).structured_content
            assert ranked == model.rank(PAIRS[0][0], several["candidates"], AT).as_dict()
            scored = {"measurements": MEASURED, "src": PAIRS[0][0], "count": 2}
            found = (await client.call_tool("anomalies", scored)).structured_content
            assert found["measurements"] == 6
            assert found["unusual"][0]["rtt"] == 400
            named = {"src": "probe:7", "dst": "AS64500"}
            notes = [f"{name} is {systems[name][0]}" for name in named.values()]
            assert (await client.call_tool("rtt", named)).structured_content["notes"][:2] == notes
            several = {"src": "probe:7", "candidates": ["NL"]}
            ranked = (await client.call_tool("rank", several)).structured_content
            assert sorted(one["dst"] for one in ranked["candidates"]) == sorted(systems["NL"])
            assert ranked["notes"][0] == notes[0]
            scored = {"measurements": MEASURED, "src": "probe:7", "count": 1}
            assert (await client.call_tool("anomalies", scored)).structured_content["notes"] == notes[:1]
            for tool, given in (("rtt", asked), ("rank", several)):
                refused = await client.call_tool(tool, given | {"size": 1000})
                assert "not trained on size" in refused.content[0].text
                refused = await client.call_tool(tool, given | {"throughput": 0.5})
                assert "not trained on throughput" in refused.content[0].text
            refused = await client.call_tool("rtt", asked | {"dst": "no such place"})
            assert refused.is_error
            assert "neither an address nor a prefix" in refused.content[0].text
            name = "localhost" if by == "run" else "example.org"
            host = await client.call_tool("rtt", asked | {"dst": name})
            assert all(one.annotations.open_world_hint == (by == "run") for one in listed.tools)
            if by == "run":
                assert host.structured_content["notes"][0] == "localhost is 127.0.0.1"
            else:
                assert "host names are not resolved" in host.content[0].text

    asyncio.run(talk())


def test_an_idle_connection_is_left_before_the_server_closes_it(monkeypatch):
    """Asked for at the moment of closing, an answer would be lost. Without patience nothing is kept."""
    connections = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            connections.append(self.client_address)

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for idle_seconds, expected in ((60, 1), (0, 2)):
            monkeypatch.setattr(remote_module, "IDLE_SECONDS", idle_seconds)
            connections.clear()
            with ping_llm.connect(f"http://127.0.0.1:{server.server_port}") as asked:
                asked.about()
                asked.about()
            assert len(connections) == expected
        server.shutdown()
