"""Who may ask, what is refused and how, and what leaves the process."""

import json
import random
import subprocess
import sys

import httpx
import pytest
from serve_server import TOKEN, until

from ping_llm.measurements.addresses import unpack

ENDS = {"src": "192.0.2.1", "dst": "198.51.100.7"}


@pytest.mark.parametrize(
    ("body", "status", "field", "words"),
    [
        (ENDS | {"dst": "198.51.100.7x"}, 422, "dst", "neither an address nor a prefix"),
        (ENDS | {"dst": "2001:db8::1"}, 422, "dst", "must have the same IP version"),
        ([ENDS, ENDS | {"at": "yesterday"}], 422, "[1].at", "the time must be like"),
        (ENDS | {"at": 1e300}, 422, "at", "the time must be"),
        (ENDS | {"at": "nan"}, 422, "at", "the time must be"),
        (ENDS | {"context": [{"dst_addr": "192.0.2.9", "rtt": -2}]}, 422, "context[0].rtt", "no reply"),
        (ENDS | {"context": [{"dst_addr": "x", "rtt": 2}]}, 422, "context[0].dst_addr", "not an IP address"),
        (ENDS | {"context": [{"dst_addr": "192.0.2.9"}]}, 422, "context[0].rtt", "must be given"),
        (ENDS | {"path": "/etc/passwd"}, 422, "path", "there is no such field; there are src, dst, at,"),
        ({"source": "192.0.2.1", "dst": "192.0.2.2"}, 422, "source", "there is no such field; there are src"),
        ({"src": "192.0.2.1"}, 422, "dst", "must be given"),
        (ENDS | {"at": {}}, 422, "at", "must be a text or a whole number or a number"),
        (ENDS | {"curve": 1}, 422, "curve", "must be at least 3 or 'all'"),
        (ENDS | {"below": "x"}, 422, "below", "must be a number"),
        (ENDS | {"context": 5}, 422, "context", "must be a list"),
        (ENDS | {"context": [5]}, 422, "context[0]", "must be a JSON object"),
        (ENDS | {"method": "nothing"}, 422, None, "there is no method"),
        (ENDS | {"size": 1000}, 422, None, "not trained on size"),
        (ENDS | {"size": 65_536}, 422, "size", "must be at most 65,535"),
        (ENDS | {"probe_id": "9"}, 422, "probe_id", "must be a whole number"),
        (ENDS | {"throughput": 0.5}, 422, None, "not trained on throughput"),
        (ENDS | {"throughput": 1e9}, 422, "throughput", "must be at most 100,000,000"),
        (ENDS | {"throughput": "fast"}, 422, "throughput", "must be a number"),
        (ENDS | {"src": "1" * 200}, 422, "src", "at most 128 characters"),
        ([ENDS, 5], 422, "[1]", "must be a JSON object"),
        (json.loads("[" * 12 + "]" * 12), 400, None, "nested"),
    ],
)
def test_a_refusal_names_the_field_in_a_sentence(server, body, status, field, words):
    response = server.post("/v1/rtt", body)
    values = response.json()
    assert (response.status_code, values["field"]) == (status, field)
    assert words in values["error"]
    assert "nput" not in values["error"]  # no sentence of pydantic
    assert values["request_id"] == response.headers["x-request-id"]


def test_a_condition_is_not_answered_from_the_answer_without_it(server):
    assert server.post("/v1/rtt", ENDS).status_code == 200
    assert server.post("/v1/rtt", ENDS | {"size": 1000}).status_code == 422


def test_a_series_and_a_map_take_conditions(server, world):
    """The server's model was trained on none, so what reaches it is refused."""
    src, dst = (unpack(column[:1]).to_pylist()[0] for column in (world.train.src, world.train.dst))
    for path, asked in (("/v1/series", {"src": src, "dst": dst}), ("/v1/map", {"src": src, "limit": 1})):
        assert server.client.get(path, params=asked).status_code == 200
        for given, words in (
            ({"size": 1000}, "not trained on size"),
            ({"probe_id": 9}, "not trained on probe_id"),
            ({"throughput": 94.3}, "not trained on throughput"),
            ({"throughput": "nan"}, "must be"),
            ({"size": 65_536}, "must be at most 65,535"),
        ):
            refused = server.client.get(path, params=asked | given)
            assert refused.status_code == 422
            assert words in refused.json()["error"]


def test_no_malformed_request_makes_the_server_fail(server):
    chance = random.Random(5)
    good = [
        ("/v1/rtt", ENDS | {"at": 1_704_100_000, "context": [{"dst_addr": "192.0.2.9", "rtt": 5.0}]}),
        ("/v1/rank", {"src": "192.0.2.1", "dst": ["192.0.2.9"], "timeout_ms": 10.0}),
        ("/v1/inverse", {"src": "192.0.2.1", "low": 5.0, "high": 10.0, "bits": 8, "top": 1}),
        ("/v1/complete", {"src": "192.0.2.1", "dst": "198.?", "bits": 16, "top": 1}),
        ("/v1/score", {"src_addr": "192.0.2.1", "dst_addr": "192.0.2.9", "rtt": 5.0}),
    ]
    odd = [
        None, True, "", "\x00", "::", "::/0", "0.0.0.0/0", "1.2.3.4/33", "?", "é" * 50, -1, 0, 2**70, 1e308,
        [], {}, [[]], [None], {"a": 1}, "1e999", "-inf", "2024-13-01", "9999-12-31T23:59:59Z", "300.1.1.1",
        "fe80::1%eth0", "::ffff:192.0.2.1", "../../etc/passwd", "203.0.113.0/20", "2001:db8::/33", 1e-320,
    ]  # fmt: skip
    seen = set()
    for number in range(250):
        path, body = good[number % len(good)]
        changed = dict(body)
        for _ in range(chance.choice((1, 1, 2))):
            changed[chance.choice(list(changed))] = chance.choice(odd)
        content = json.dumps(changed).encode()
        if chance.random() < 0.2:
            place = chance.randrange(len(content))
            content = (
                content[:place] + bytes([chance.randrange(256)]) + content[place + chance.randrange(5) :]
            )
        response = server.client.post(path, content=content, headers={"Content-Type": "application/json"})
        seen.add(response.status_code)
        assert response.status_code in (200, 400, 422), (path, content, response.text)
        assert response.status_code == 200 or response.json()["error"]
        assert "Traceback" not in response.text
    assert seen == {200, 400, 422}
    assert '"event": "failure"' not in server.log.read_text()


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/nothing", {}, 404),
        ("GET", "/v1/rtt", {}, 405),
        ("POST", "/v1/rtt", {"content": "a=b", "headers": {"Content-Type": "text/plain"}}, 415),
        ("POST", "/v1/rank", {"content": "{}", "headers": {"Content-Type": "application/x-ndjson"}}, 415),
        (
            "POST",
            "/v1/rtt",
            {"content": b" " * (5 << 20), "headers": {"Content-Type": "application/json"}},
            413,
        ),
        ("GET", "/v1/series?src=192.0.2.1", {}, 422),
        ("GET", "/v1/series?src=192.0.2.1&dst=192.0.2.2&limit=0", {}, 422),
        ("GET", "/v1/series?src=192.0.2.1&dst=192.0.2.2&from=x", {}, 422),
        ("GET", "/v1/series?src=192.0.2.0/24&dst=192.0.2.2", {}, 422),
    ],
)
def test_what_cannot_be_answered_has_its_status(server, method, path, options, status):
    response = server.client.request(method, path, **options)
    assert response.status_code == status
    assert response.json()["error"]


@pytest.mark.parametrize("field", ["src", "dst"])
def test_a_series_of_a_prefix_is_refused_for_the_field_that_has_it(server, field):
    asked = {"src": "192.0.2.1", "dst": "192.0.2.2"} | {field: "192.0.2.0/24"}
    values = server.client.get("/v1/series", params=asked).json()
    assert values["field"] == field
    assert values["error"] == f"{field} of a series must be an address, not the prefix 192.0.2.0/24"


def test_a_client_that_is_still_sending_sees_why_it_is_refused(server):
    """Closing a connection with unread bytes resets it, and the answer is lost: one of twenty requests."""

    def pieces():
        for _ in range(32):
            yield b" " * (1 << 20)

    json_type = {"Content-Type": "application/json"}
    for content, headers, status in (
        *[(b" " * (32 << 20), json_type, 413)] * 8,
        *[(pieces, json_type, 413)] * 4,
        (b" " * (32 << 20), {"Content-Type": "text/plain"}, 415),
        (b" " * (32 << 20), json_type | {"Authorization": "Bearer wrong"}, 401),
    ):
        body = content() if callable(content) else content
        response = server.client.post("/v1/rtt", content=body, headers=headers)
        assert response.status_code == status
        assert response.json()["error"]


def test_a_body_without_an_end_is_cut_off(server):
    sent = 0

    def endless():
        nonlocal sent
        while sent < 2048:
            yield b" " * (1 << 20)
            sent += 1

    try:
        response = server.client.post(
            "/v1/rtt", content=endless(), headers={"Content-Type": "application/json"}
        )
    except httpx.HTTPError:
        pass  # the server closed the connection while the body was being sent
    else:
        assert response.status_code == 413
    assert 64 <= sent < 512  # read as far as Limits.discard, and what the sockets hold


def test_a_token_is_needed(server, token_file):
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        with httpx.Client(base_url=server.url) as stranger:
            response = stranger.get("/v1/model", headers=header)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert stranger.get("/metrics", headers=header).status_code == 401
            assert stranger.get("/healthz").status_code == 200
            assert stranger.get("/docs").status_code == 200
    before = token_file.read_text()
    other = {"Authorization": "Bearer another-token-of-the-tests"}
    assert server.client.get("/v1/model", headers=other).status_code == 401
    try:
        token_file.write_text(before + "other: another-token-of-the-tests\n")
        assert server.client.get("/v1/model", headers=other).status_code == 200
        token_file.write_text("nonsense\n")  # the tokens read before stay in force
        assert server.client.get("/v1/model", headers=other).status_code == 200
    finally:
        token_file.write_text(before)
    assert server.client.get("/v1/model", headers=other).status_code == 401


def test_headers_keep_pages_of_others_out(server):
    for path in ("/docs", "/v1/model", "/nothing"):
        headers = server.client.get(path, headers={"Origin": "https://example.org"}).headers
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control")]
        assert "server" not in headers
    page = server.client.get("/docs").text
    assert "/v1/rtt" in page
    assert "http" not in page  # nothing is fetched from elsewhere
    schema = server.client.get("/openapi.json").json()
    assert set(schema["paths"]) >= {
        "/v1/rtt",
        "/v1/rank",
        "/v1/inverse",
        "/v1/complete",
        "/v1/score",
        "/v1/series",
    }
    assert schema["components"]["schemas"]["RttBody"]["required"] == ["src", "dst"]


def test_the_log_has_every_request_and_no_address(server):
    mine = {"X-Request-ID": "mine-1"}
    response = server.client.get("/v1/series?src=192.0.2.77&dst=192.0.2.78", headers=mine)
    assert response.headers["x-request-id"] == "mine-1"
    odd = server.client.get("/healthz", headers={"X-Request-ID": "a b"})
    assert odd.headers["x-request-id"] != "a b"
    line = until(lambda: [text for text in server.log.read_text().splitlines() if "mine-1" in text])[0]
    values = json.loads(line)
    assert (values["path"], values["status"], values["name"]) == ("/v1/series", 200, "tests")
    assert "192.0.2.7" not in server.log.read_text()
    assert "127.0.0.1" not in server.log.read_text()
    assert TOKEN not in server.log.read_text()


def test_metrics_count_requests(server):
    before = server.metric('requests_total{path="/healthz",status="200"}')
    server.client.get("/healthz")
    text = server.client.get("/metrics").text
    assert f'ping_llm_requests_total{{path="/healthz",status="200"}} {before + 1:.0f}\n' in text
    for name in ("request_seconds_bucket", "queue_questions", "batch_questions_bucket", "model_age_seconds"):
        assert f"ping_llm_{name}" in text


def refused_to_start(*words: str) -> str:
    command = [sys.executable, "-c", "from ping_llm.cli import main; main()", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


def test_other_addresses_need_a_decision(run, tmp_path):
    assert "--token-file FILE, or --no-auth" in refused_to_start(str(run), "--host", "0.0.0.0")
    both = refused_to_start(str(run), "--no-auth", "--token-file", str(tmp_path / "tokens"))
    assert "exclude each other" in both
