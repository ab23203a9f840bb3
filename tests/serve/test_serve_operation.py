"""TLS, clients that are too slow, and a newer model in the run."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from fastapi import Request
from serve_server import serving, until

import ping_llm
from ping_llm.answer.answering import STACK
from ping_llm.answer.context import Question
from ping_llm.errors import PingError
from ping_llm.model import export
from ping_llm.model.random import random_tensors
from ping_llm.serve.app import create
from ping_llm.serve.guard import Guard, Log
from ping_llm.serve.metrics import Metrics
from ping_llm.serve.model_thread import ModelThread
from ping_llm.serve.options import Limits, ServeOptions
from ping_llm.serve.protocol import protocol_class
from ping_llm.serve.reading import read_body
from ping_llm.serve.refusals import Refused
from ping_llm.serve.run import listen

PAIR = ("192.0.2.1", "198.51.100.7")


def test_a_used_port_names_the_option():
    with listen("127.0.0.1", 0) as used, pytest.raises(PingError, match="give another --port"):
        listen("127.0.0.1", used.getsockname()[1])


def test_tls_and_a_newer_model_that_takes_over(tmp_path, run, engine):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    shutil.copytree(run, tmp_path / "run")
    words = ["--tls-cert", certificate, "--tls-key", key, "--no-data", "--reload", "0.2"]
    with serving(tmp_path, tmp_path / "run", *words) as server:
        assert server.url.startswith("https://")
        with ping_llm.connect(server.url) as stranger, pytest.raises(ping_llm.PingError, match="certificate"):
            stranger.about()
        with ping_llm.connect(server.url, ca=certificate) as remote:
            before = remote.rtt(*PAIR, method="network").distribution.median
            tokens = {"context": {"unnamed_source_probability": 0.5}}
            tensors = random_tensors(engine.config, seed=6, scale=3.0)
            export.write(engine.config, tensors, tokens, tmp_path / "run" / "export")
            until(lambda: remote.rtt(*PAIR, method="network").distribution.median != before)
        assert server.metric('model_loads_total{result="loaded"}') == 2


class FirstFails:
    """A model whose first question fails, as on a machine with too little memory to compile it."""

    data = None

    def __init__(self) -> None:
        self.asked = 0

    @property
    def of_contexts(self) -> "FirstFails":
        return self

    def rtt_many(self, questions, method=STACK):
        self.asked += 1
        if self.asked == 1:
            raise PingError("no room to compile")
        return ["answer" for _ in questions]


@pytest.mark.parametrize("mended_by", ["a question", "a reload"])
def test_a_server_is_not_ready_before_a_question_was_answered(tmp_path, mended_by):
    """A load balancer would send it questions that all fail."""
    metrics, said = Metrics(), []
    models = [FirstFails(), FirstFails()]
    models[1].asked = 1  # the model of the reload has no trouble
    thread = ModelThread(iter(models).__next__, 1, 0.0, metrics, 1.0)
    thread.report = said.append
    thread.start()

    async def ask() -> None:
        app = create(thread, ServeOptions(run=tmp_path), metrics)
        guarded = Guard(
            app, paths=frozenset({"/readyz"}), tokens=None, metrics=metrics, limits=Limits(), log=Log()
        )
        through = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=through, base_url="http://localhost") as client:
            until(lambda: thread.first_failed)
            assert said == ["the first question failed: no room to compile"]
            refused = await client.get("/readyz")
            assert refused.status_code == 503
            assert refused.json()["error"] == "the first question failed; the server's log has the reason"
            if mended_by == "a question":
                assert await thread.ask([Question.of(*PAIR)], lambda index, answer: answer) == ["answer"]
            else:
                thread.reload()
                until(lambda: len(said) == 2)
            assert (await client.get("/readyz")).json() == {"status": "ok"}

    try:
        asyncio.run(ask())
    finally:
        thread.close()


@pytest.mark.parametrize(("local", "status"), [(True, 421), (False, 200)])
def test_only_a_loopback_server_knows_its_own_names(local, status):
    """With --no-auth on another address, others ask by names that the server cannot know."""

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    async def ask() -> int:
        guarded = Guard(
            app, paths=frozenset(), tokens=None, metrics=Metrics(), limits=Limits(), log=Log(), local=local
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded)) as client:
            assert (await client.get("http://127.0.0.1:8000/v1/model")).status_code == 200
            return (await client.get("http://latency.example.org/v1/model")).status_code

    assert asyncio.run(ask()) == status


def test_only_a_finished_model_is_a_newer_one(tmp_path, engine):
    assert export.state_of(tmp_path) is None
    (tmp_path / "checkpoints" / "10" / "items").mkdir(parents=True)
    first = export.state_of(tmp_path)
    (tmp_path / "checkpoints" / "20.orbax-checkpoint-tmp" / "items").mkdir(parents=True)
    (tmp_path / "checkpoints" / "30").mkdir()
    assert export.state_of(tmp_path) == first
    (tmp_path / "checkpoints" / "20" / "items").mkdir(parents=True)
    second = export.state_of(tmp_path)
    assert second != first
    export.write(engine.config, random_tensors(engine.config), {}, tmp_path / "export")
    third = export.state_of(tmp_path)
    assert third != second
    # An export is what answers: a checkpoint beside it changes nothing.
    (tmp_path / "checkpoints" / "40" / "items").mkdir(parents=True)
    assert export.state_of(tmp_path) == third
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "stack.json").write_text("{}")
    assert export.state_of(tmp_path) != third


LIMITS = Limits(head_seconds=0.4, write_seconds=0.4, read_seconds=0.4, body_seconds=1.5)
LARGE = b"x" * (64 << 20)


async def app(scope, receive, send) -> None:
    """Reads a body, and sends a large answer, or why the body was refused."""
    if scope["type"] != "http":
        return
    body, status = LARGE, 200
    if scope["method"] == "POST":
        try:
            body = await read_body(Request(scope, receive), LIMITS)
        except Refused as refused:
            body, status = refused.message.encode(), refused.status
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def limited() -> Iterator[tuple[uvicorn.Server, tuple[str, int]]]:
    """A server in this process with short limits, and its address."""
    config = uvicorn.Config(app, http=protocol_class(LIMITS), lifespan="off", log_config=None, loop="asyncio")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        until(lambda: server.started)
        yield server, bound.getsockname()
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def connected(limited) -> Iterator[socket.socket]:
    with socket.create_connection(limited[1], timeout=30) as client:
        yield client


def ended(client: socket.socket) -> bytes:
    """What the server sends before it closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 20):
            found += part
    return found


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_without_end_is_not_waited_for(limited, head):
    with connected(limited) as client:
        client.sendall(head)
        assert ended(client) == b""


def test_a_trickle_of_a_head_is_not_waited_for(limited):
    with connected(limited) as client:
        client.setblocking(False)

        def closed() -> bool:
            try:
                client.sendall(b"X")
                return client.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        until(closed, 30)


def test_an_answer_that_nobody_reads_is_given_up(limited):
    server, _ = limited
    with connected(limited) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: len(server.server_state.connections) == 1)
        until(lambda: not server.server_state.connections)
        assert len(ended(client)) < len(LARGE)


def test_an_answer_that_is_read_slowly_arrives(limited):
    with connected(limited) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        size = 0
        while part := client.recv(4 << 20):
            size += len(part)
            time.sleep(0.02)  # a few times the limit in all
        assert size > len(LARGE)


@pytest.mark.parametrize("pause", [10.0, 0.1])
def test_a_body_that_pauses_or_trickles_is_refused(limited, pause):
    with connected(limited) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        client.settimeout(pause)
        answer = b""
        while not answer:
            with contextlib.suppress(TimeoutError):
                answer = client.recv(65536)
            if not answer:
                client.sendall(b"x")
        assert answer.startswith(b"HTTP/1.1 408 ")
