"""A full queue, clients that go away, a new model under load, and the end of a server."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    leaves = threading.Event()
    url, body = httpx.URL(busy.url), json.dumps(LONG).encode()
    head = f"POST /v1/rtt HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"

    def give_up() -> None:
        with socket.create_connection((url.host, url.port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert leaves.wait(60)

    before = busy.metric("batch_questions_sum")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(give_up)
        try:
            until(lambda: busy.metric("queue_questions") > 1)
            refused = busy.post("/v1/rtt", QUESTION)
        finally:
            leaves.set()
        waiting.result()
        assert refused.status_code == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "ask again later" in refused.json()["error"]
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
    refused = busy.client.get("/v1/model", headers={"Host": "example.org"})
    assert refused.status_code == 421
    assert "must be localhost or a loopback address, not 'example.org'" in refused.json()["error"]


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


def test_a_request_that_would_wait_too_long_is_refused(tmp_path, run):
    with serving(tmp_path, run, "--longest-wait", "0") as server, ThreadPoolExecutor(1) as pool:
        client = httpx.Client(base_url=server.url, timeout=120)
        answer = pool.submit(client.post, "/v1/rtt", json=LONG)
        until(lambda: server.metric("queue_questions") > 1)
        refused = server.post("/v1/rtt", QUESTION)
        assert refused.status_code == 503  # a thousand questions may wait, but none for more than 0 s
        assert refused.headers["retry-after"]
        assert len(answer.result().json()) == len(LONG)
        assert server.post("/v1/rtt", QUESTION).status_code == 200
        client.close()


def test_several_workers_answer_and_one_that_dies_is_replaced(tmp_path, run):
    def children(server: Server) -> set[int]:
        pid = server.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    with serving(tmp_path, run, "--workers", "2") as server:
        assert "with 2 workers" in server.said.read_text()
        first = server.post("/v1/rtt", QUESTION).json()

        def answered() -> set[int]:
            """How many requests are counted, asked over several connections: all workers say the same."""
            found = set()
            for _ in range(6):
                with httpx.Client(base_url=server.url, timeout=120) as client:
                    text = client.get("/metrics").text
                found.add(int(re.search(r'requests_total\{path="/v1/rtt",status="200"\} (\d+)', text)[1]))
            return found

        def ask_again() -> None:
            with httpx.Client(base_url=server.url, timeout=120) as client:
                assert client.post("/v1/rtt", json=QUESTION).status_code == 200

        for _ in range(8):
            ask_again()
        until(lambda: answered() == {9})
        before = children(server)
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(children(server) - before) == 1 and len(children(server)) == 2)

        def asked() -> bool:
            """A new connection each time: it goes to either worker."""
            with httpx.Client(base_url=server.url, timeout=120) as client:
                return client.post("/v1/rtt", json=QUESTION).json() == first

        until(asked)
        assert all(asked() for _ in range(6))

        def all_counted() -> bool:
            """What the workers count is told to the others a moment later."""
            counts = answered()
            return len(counts) == 1 and min(counts) >= 15

        until(all_counted)  # those of the worker that was killed still count
        left = children(server)
        assert server.end() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)


def test_workers_that_cannot_load_end_with_the_sentence(tmp_path):
    (tmp_path / "nothing").mkdir()
    program = "from ping_llm.cli import main; main()"
    words = ["serve", str(tmp_path / "nothing"), "--workers", "2", "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert str(tmp_path / "nothing") in done.stderr
    assert "a worker ended before it could answer" in done.stderr


def test_what_is_loaded_is_left_out_of_garbage_collections():
    """In a process of its own: what is frozen there stays frozen."""
    program = """
import gc, threading
from types import SimpleNamespace
from ping_llm.serve.metrics import Metrics
from ping_llm.serve.model_thread import ModelThread
load = lambda: SimpleNamespace(data=None, rtt_many=lambda questions: [])
thread, said = ModelThread(load, 1, 0.0, Metrics(), 1.0), threading.Event()
thread.start()
while not thread.ready:
    said.wait(0.01)
loaded = gc.get_freeze_count()
thread.report = lambda sentence: said.set()
thread.reload()
said.wait()
print(loaded, gc.get_freeze_count(), len(gc.get_objects()))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, again, collected = map(int, ended.stdout.split())
    assert min(loaded, again) > 10 * collected
