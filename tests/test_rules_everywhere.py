"""What takes measurements one by one, or as a small table, accepts what the rules accept and nothing else."""

import math
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ping_llm.answer import edge
from ping_llm.answer.context import Context
from ping_llm.answer.files import questions_of, to_columns
from ping_llm.errors import PingError
from ping_llm.measurements.rules import candidates_of, judge
from ping_llm.measurements.schema import MAX_RTT_MS, Measurement

requests = pytest.importorskip(
    "ping_llm.serve.requests", reason="the server's requests are of the extra serve"
)
pasted = pytest.importorskip("ping_llm.serve.pasted")

MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
ADDRESSES = st.sampled_from(["192.0.2.1", "198.51.100.7", "2001:db8::1", "::", "192.0.2.256", "name", ""])
RTTS = st.sampled_from([0.0, -0.0, -1.0, 12.5, MAX_RTT_MS, MAX_RTT_MS + 1, -2.0, -0.5, math.inf, math.nan])
RECORD = st.tuples(ADDRESSES, ADDRESSES, RTTS)
MIXED, TOO_SLOW = ("192.0.2.1", "2001:db8::1", 1.0), ("192.0.2.1", "198.51.100.7", MAX_RTT_MS + 1)


def table_of(src, dst, rtt):
    columns = {"event_time": [MOMENT], "src_addr": [src], "dst_addr": [dst], "rtt": [rtt]}
    return pa.table(columns)


def accepted(take):
    """Whether a measurement is taken; every refusal is one of our sentences."""
    try:
        return take() is not False
    except (PingError, requests.Refused):
        return False


@given(RECORD)
@example(MIXED)
@example(TOO_SLOW)
def test_every_way_in_obeys_the_rules(record):
    src, dst, rtt = record
    wanted = not judge(candidates_of(table_of(*record))).any()
    ways = {
        "Context.from_measurements": lambda: Context.from_measurements([Measurement(MOMENT, src, dst, rtt)]),
        "a table": lambda: to_columns(table_of(*record), "table", needs=("src_addr", "dst_addr", "rtt")),
        "a request": lambda: requests.columns_of(
            [requests.MeasurementBody.model_construct(src_addr=src, dst_addr=dst, rtt=rtt)]
        ),
        "a pasted text": lambda: (
            pasted.read(f"src_addr,dst_addr,rtt\n{src},{dst},{rtt}\n").measurements != []
        ),
    }
    if src:  # without one, it is that of the question
        assert {name: accepted(way) for name, way in ways.items()} == dict.fromkeys(ways, wanted), record


@given(RECORD)
@example(MIXED)
@example(TOO_SLOW)
def test_the_runner_of_small_devices_obeys_the_rules(tmp_path_factory, record):
    src, dst, rtt = record
    path = tmp_path_factory.getbasetemp() / "context.csv"
    path.write_text(f"src_addr,dst_addr,rtt\n{src},{dst},{rtt}\n")
    wanted = not judge(candidates_of(table_of(*record))).any()
    assert accepted(lambda: edge.read_context(path)) == wanted, record


@given(RTTS)
@example(MAX_RTT_MS + 1)
def test_the_result_of_a_question_obeys_the_rules_unless_it_is_unknown(rtt):
    table = table_of("192.0.2.1", "198.51.100.7", rtt)
    wanted = math.isnan(rtt) or not judge(candidates_of(table)).any()
    assert accepted(lambda: questions_of(table, "table")) == wanted, rtt
