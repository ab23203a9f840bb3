"""A full queue, clients that go away, a new model under load, and the end of a server."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serve_server import Server, serving, until

from ping_llm.model import export
from ping_llm.model.random import random_tensors

#: The network alone: slow enough that a list of them keeps the model busy.
QUESTION = {"src": "192.0.2.1", "dst": "198.51.100.7", "method": "network"}
LONG = [QUESTION | {"dst": f"198.51.{number // 250}.{number % 250}"} for number in range(1000)]


@pytest.fixture(scope="module")
def busy(tmp_path_factory, run) -> Server:
    """A server with a queue of one question, and a run of its own."""
    folder = tmp_path_factory.mktemp("busy")
    shutil.copytree(run, folder / "run")
    with serving(folder, folder / "run", "--queue", "1", "--no-auth", "--reload", "0") as made:
        made.run = folder / "run"
        yield made


def test_a_full_queue_refuses_and_a_client_that_goes_away_is_forgotten(busy):
    def give_up() -> None:
        with httpx.Client(base_url=busy.url, timeout=httpx.Timeout(60, read=3.0)) as impatient:
            impatient.post("/v1/rtt", json=LONG)

    before = busy.metric("batch_questions_sum")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(give_up)
        until(lambda: busy.metric("queue_questions") > 1)
        refused = busy.post("/v1/rtt", QUESTION)
        assert refused.status_code == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "ask again later" in refused.json()["error"]
        assert isinstance(waiting.exception(), httpx.ReadTimeout)
    until(lambda: busy.metric("queue_questions") == 0)
    assert busy.post("/v1/rtt", QUESTION).status_code == 200
    assert busy.metric("batch_questions_sum") - before < len(LONG)
    assert busy.metric('rejected_total{reason="queue full"}') == 1
    until(lambda: '"status": 499' in busy.log.read_text())


def test_a_stream_waits_for_room(busy):
    line = b'{"src": "192.0.2.1", "dst": "198.51.100.7"}\n'
    kind = {"Content-Type": "application/x-ndjson"}
    with ThreadPoolExecutor(3) as pool:
        streams = [
            pool.submit(busy.client.post, "/v1/rtt", content=line * 300, headers=kind) for _ in range(3)
        ]
    assert [len(stream.result().text.splitlines()) for stream in streams] == [300] * 3
    assert len({text for stream in streams for text in stream.result().text.splitlines()}) == 1


def test_a_page_of_another_name_cannot_ask(busy):
    assert busy.client.get("/v1/model", headers={"Host": "example.org"}).status_code == 421


def test_a_new_model_takes_over_without_a_lost_request(busy, engine):
    old = busy.post("/v1/rtt", QUESTION).json()
    export.write(
        engine.config, random_tensors(engine.config, seed=6, scale=3.0),
        {"context": {"unnamed_source_probability": 0.5}}, busy.run / "export",
    )  # fmt: skip
    seen, statuses = [], set()

    def changed() -> bool:
        response = busy.post("/v1/rtt", QUESTION)
        statuses.add(response.status_code)
        seen.append(response.json())
        return seen[-1] != old

    assert not changed()
    busy.signal(signal.SIGHUP)
    until(changed)
    assert statuses == {200}
    assert busy.metric('model_loads_total{result="loaded"}') == 2
    # What cannot be loaded changes nothing.
    (busy.run / "export" / "config.json").write_text("{")
    busy.signal(signal.SIGHUP)
    until(lambda: busy.metric('model_loads_total{result="failed"}') == 1)
    assert busy.post("/v1/rtt", QUESTION).json() == seen[-1]


def test_sigterm_answers_what_is_in_progress(tmp_path, run):
    with serving(tmp_path, run, "--wait", "0") as server, ThreadPoolExecutor(1) as pool:
        client = httpx.Client(base_url=server.url, timeout=120)
        answer = pool.submit(client.post, "/v1/rtt", json=LONG[:200])
        until(lambda: server.metric("queue_questions") > 1)
        server.signal(signal.SIGTERM)
        assert len(answer.result().json()) == 200
        assert server.process.wait(timeout=60) == 0
        client.close()
