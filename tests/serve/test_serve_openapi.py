"""Requests that Schemathesis makes from the OpenAPI document: none fails, and answers are as documented."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from serve_server import TOKEN

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
#: Requests of each path.
EXAMPLES = 12
#: A search over all addresses takes seconds, and its first one compiles.
FEW = {"/v1/complete": 2, "/v1/inverse": 2}


ADDRESSES = st.sampled_from(["192.0.2.1", "85.212.133.33", "176.20.143.7", "198.51.100.7", "2001:db8::1"])
PREFIXES = st.sampled_from(["203.0.113.0/24", "176.20.?", "2001:db8::/32", "10.0.0.0/20"])
schemathesis.openapi.format("address", ADDRESSES)
schemathesis.openapi.format("address-or-prefix", ADDRESSES | PREFIXES | st.text(max_size=6))


@schemathesis.serializer("application/x-ndjson")
def as_lines(context, value) -> bytes:
    return f"{json.dumps(value)}\n".encode()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_openapi_document_holds(server, mode):
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    assert {one.path for one in operations} == set(server.client.get("/openapi.json").json()["paths"])
    paths = ("rtt", "rank", "score")
    before = {path: server.metric(f'requests_total{{path="/v1/{path}",status="200"}}') for path in paths}
    for operation in operations:
        examples = FEW.get(operation.path, EXAMPLES) if mode == GenerationMode.POSITIVE else EXAMPLES

        @settings(
            max_examples=examples,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case) -> None:
            # A text that is no address is valid JSON of the document, and is refused.
            excluded = [positive_data_acceptance]
            if case.media_type == "application/x-ndjson":  # a line that is wrong is answered by its error
                excluded.append(negative_data_rejection)
            case.call_and_validate(headers=HEADERS, excluded_checks=excluded, timeout=120)

        try:
            ask()
        except Unsatisfiable:  # nothing can be wrong with a path that takes nothing
            assert operation.path in ("/healthz", "/readyz", "/metrics", "/v1/model")
    # What was sent was not all refused.
    for path in paths if mode == GenerationMode.POSITIVE else ():
        assert server.metric(f'requests_total{{path="/v1/{path}",status="200"}}') > before[path], path
