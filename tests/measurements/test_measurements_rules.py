"""One set of rules: whatever repeats them for speed rejects the same rows for the same reason."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ping_llm.errors import PingError
from ping_llm.ingest.tables import from_arrays
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.parquet import connect, open_input, read_columns
from ping_llm.measurements.rules import ACCEPTED, REASONS, RULES, VERDICT, candidates_of, complaint, judge
from ping_llm.measurements.schema import (
    END_TIME_US,
    MAX_PACKET_ERRORS,
    MAX_RTT_MS,
    MAX_SIZE,
    MAX_THROUGHPUT_MBPS,
    Reject,
)
from ping_llm.rows import reference
from ping_llm.rows.inputs import Scanner, cut, find_files
from ping_llm.rows.sortable import from_batch, rtt_word
from ping_llm.rows.verify import _first_invalid

NUMBERS = ("msm_id", "size", "packet_error_count", "probe_id")
INT64 = 2**63 - 1

_times = st.sampled_from(
    [0, 1, 1_700_000_000_000_000, END_TIME_US - 1] * 5 + [-1, END_TIME_US, -(2**62), None]
)
_ipv4 = ["192.0.2.1", "11.0.0.1", "::ffff:10.0.0.1"]
_ipv6 = ["2001:db8::1", "::", "::192.0.2.1"]
_addresses = st.sampled_from(_ipv4 * 6 + _ipv6 * 2 + ["192.0.2.256", "name", "fe80::1%eth0", "", None])
_versions = st.sampled_from([None] * 8 + [4, 6, 5, 0, -1, 255])
_rtts = st.sampled_from(
    [0.0, -0.0, 12.5, -1.0, MAX_RTT_MS] * 4 + [float("nan"), float("inf"), -2.0, -0.5, MAX_RTT_MS * 2, None]
)


def _number(most):
    return st.sampled_from([None, -1, 0, 1, most] * 5 + [-2, min(most + 1, INT64)])


_throughputs = st.sampled_from(
    [None, float("nan"), -1.0, 0.0, -0.0, 94.3, MAX_THROUGHPUT_MBPS] * 4
    + [float("inf"), -2.0, -0.5, MAX_THROUGHPUT_MBPS * 2]
)
_records = st.fixed_dictionaries(
    {
        "event_time": _times,
        "src_addr": _addresses,
        "dst_addr": _addresses,
        "ip_version": _versions,
        "rtt": _rtts,
        "msm_id": _number(INT64),
        "size": _number(MAX_SIZE),
        "packet_error_count": _number(MAX_PACKET_ERRORS),
        "probe_id": _number(INT64),
        "throughput_mbps": _throughputs,
    }
)
GOOD = {
    "event_time": 1,
    "src_addr": "192.0.2.1",
    "dst_addr": "11.0.0.1",
    "ip_version": 4,
    "rtt": 1.0,
    **dict.fromkeys(NUMBERS, 1),
    "throughput_mbps": 94.3,
}
BAD = {
    Reject.MISSING_TIME: {"event_time": None},
    Reject.BAD_TIME: {"event_time": END_TIME_US},
    Reject.MISSING_SOURCE: {"src_addr": ""},
    Reject.BAD_SOURCE: {"src_addr": "192.0.2.256"},
    Reject.MISSING_DESTINATION: {"dst_addr": None},
    Reject.BAD_DESTINATION: {"dst_addr": "name"},
    Reject.MIXED_VERSIONS: {"dst_addr": "2001:db8::1"},
    Reject.WRONG_VERSION: {"ip_version": 6},
    Reject.MISSING_RTT: {"rtt": None},
    Reject.BAD_RTT: {"rtt": -2.0},
    Reject.BAD_FIELD: {"size": MAX_SIZE + 1},
}


def table_of(records):
    integers = {name: pa.array([r[name] for r in records], pa.int64()) for name in (*NUMBERS, "ip_version")}
    return pa.table(
        {
            "event_time": pa.array([r["event_time"] for r in records], pa.timestamp("us", tz="UTC")),
            "src_addr": pa.array([r["src_addr"] for r in records], pa.string()),
            "dst_addr": pa.array([r["dst_addr"] for r in records], pa.string()),
            "rtt": pa.array([r["rtt"] for r in records], pa.float64()),
            **integers,
            "throughput_mbps": pa.array([r["throughput_mbps"] for r in records], pa.float64()),
        }
    )


def expected(records):
    """What the plain oracle says of each record: a reason, or None."""
    checked = [reference.check(record) for record in records]
    return [one if isinstance(one, Reject) else None for one in checked]


def reasons(verdict):
    return [None if code == ACCEPTED else REASONS[code - 1] for code in verdict.tolist()]


def test_every_rule_has_an_example_here():
    assert tuple(BAD) == RULES
    assert expected([GOOD | change for change in BAD.values()]) == list(RULES)


@given(st.lists(_records, min_size=1, max_size=30))
@example([GOOD, *(GOOD | change for change in BAD.values()), GOOD])
@example([GOOD | {"throughput_mbps": mbps} for mbps in (-2.0, float("inf"), MAX_THROUGHPUT_MBPS * 2)])
def test_every_implementation_rejects_the_same_rows_for_the_same_reason(records):
    wanted, table = expected(records), table_of(records)
    assert reasons(judge(candidates_of(table))) == wanted
    # Ingest of a table.
    arrays = {name: table[name].combine_chunks() for name in table.column_names}
    assert reasons(judge(from_arrays(arrays, len(records)))) == wanted
    # The compiled pass of `rows build`.
    batch = table.set_column(0, "event_time", table["event_time"].cast(pa.int64())).combine_chunks()
    sortable = from_batch(batch.to_batches()[0])
    assert sortable.rejected.tolist() == [wanted.count(rule) for rule in RULES]
    assert len(sortable.words) == wanted.count(None)


@given(st.lists(_records, min_size=1, max_size=30))
@example([GOOD, GOOD | BAD[Reject.BAD_RTT]])
def test_verify_knows_the_rules_that_words_can_break(records):
    """Of packed words, addresses are always addresses; what remains is time, rtt, size and errors."""
    fit = {"ip_version": None, "src_addr": "192.0.2.1", "dst_addr": "11.0.0.1", "msm_id": 1, "probe_id": 1}
    fit["throughput_mbps"] = None  # a record has no bad one: its codes fill the bits that it has
    for record in records:
        record = record | fit
        if None in (record["event_time"], record["rtt"]):
            continue
        size, errors = (
            -1 if record[name] is None else record[name] for name in ("size", "packet_error_count")
        )
        words = np.zeros((1, 9), np.uint64)
        words[0, 2] = np.array([record["event_time"]]).view(np.uint64)[0]
        words[0, 5] = rtt_word(record["rtt"])
        words[0, 8] = np.array([((size + 1) << 32) | (errors + 1)]).view(np.uint64)[0]
        broken = _first_invalid(words, np.array([record["rtt"]]), np.array([size])) >= 0
        # A word has no -2: below the least it is another value, as a file that holds one would say.
        if size >= -1 and errors >= -1:
            assert broken == (expected([record]) != [None]), record


@pytest.mark.parametrize("reason", RULES)
def test_every_reader_of_files_refuses_what_the_rules_refuse(tmp_path, reason):
    records = [GOOD, GOOD | BAD[reason], GOOD]
    path = tmp_path / "m.parquet"
    pq.write_table(table_of(records), path)
    with connect(100, 1, tmp_path / "spill") as connection:
        with pytest.raises(PingError, match="row 2: ") as refused:
            list(read_columns(connection, open_input([path])))
        with pytest.raises(PingError, match="row 2: "):
            Columns.from_table(pq.read_table(path), every=True)
    table = pq.read_table(path)
    if reason not in (Reject.BAD_TIME, Reject.MISSING_TIME):  # SQL prints a time as a number
        assert complaint(table, 1, VERDICT[reason]) in str(refused.value)
    slices = cut(find_files([path]), 100)
    rejected = sum(from_batch(batch).rejected for batch in Scanner(10**9).batches(slices[0]))
    assert rejected.tolist() == [int(rule == reason) for rule in RULES]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit(unit):
    moment = datetime(2024, 5, 6, tzinfo=UTC)
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [int(moment.timestamp()) * scale, -1, 2**62 if unit != "ns" else -(2**62), None]
    table = table_of([GOOD] * 4)
    table = table.set_column(0, "event_time", pa.array(values, pa.timestamp(unit, tz="UTC")))
    found = candidates_of(table)
    assert reasons(judge(found)) == [None, Reject.BAD_TIME, Reject.BAD_TIME, Reject.MISSING_TIME]
    assert found.time_us[0] == moment.timestamp() * 10**6


def test_an_unsigned_number_beyond_int64_is_a_bad_field():
    table = table_of([GOOD] * 2)
    large = pa.array([2**63, None], pa.uint64())
    table = table.set_column(table.column_names.index("msm_id"), "msm_id", large)
    assert reasons(judge(candidates_of(table))) == [Reject.BAD_FIELD, None]
