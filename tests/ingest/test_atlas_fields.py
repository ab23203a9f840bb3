"""What the fields of a result become, by hand; each by the quick and by the careful way."""

import json
from dataclasses import fields

import numpy as np
import pytest
from atlas_results import DESTINATION, PUBLIC_SOURCE, ping

from ping_llm.ingest import atlas
from ping_llm.ingest.columns import NOT_PING
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.records import whole_block
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.rules import REASONS, judge


def become(result, **options):
    """(verdict, columns) of one result, which must not depend on the way it is read."""
    text = result if isinstance(result, bytes) else json.dumps(result).encode()
    chosen = IngestOptions(**options)
    columns = atlas.read_block(whole_block(text), chosen).columns
    careful = atlas.read_carefully([text], chosen).columns
    judge(columns)
    judge(careful)
    for field in fields(columns):
        np.testing.assert_array_equal(getattr(columns, field.name), getattr(careful, field.name))
    code = int(columns.verdict[0])
    verdict = "not ping" if code == NOT_PING else REASONS[code - 1].value if code else "measurement"
    return verdict, columns


def rtt_of(result, **options):
    verdict, columns = become(result, **options)
    assert verdict == "measurement"
    return columns.rtt[0]


def source_of(result, **options):
    verdict, columns = become(result, **options)
    assert verdict == "measurement"
    return unpack(columns.src)[0].as_py()


def test_avg_min_max_and_each():
    assert rtt_of(ping()) == 12.0
    assert rtt_of(ping(), rtt="min") == 10.0
    assert rtt_of(ping(), rtt="max") == 15.0
    _, columns = become(
        ping(result=[{"rtt": 10.5}, {"x": "*"}, {"error": "sendto failed"}, {"rtt": 3}]), rtt="each"
    )
    assert columns.packets.tolist() == [10.5, -1.0, 3.0]
    assert columns.packet_offsets.tolist() == [0, 3]


def test_duplicates_and_late_replies_do_not_count():
    late = [
        {"x": "*"},
        {"dup": 1, "rtt": 1030.83},
        {"rtt": 20.0, "ttl": 3},
        {"late": 2, "rtt": 2000.0},
        {"late": 1},
    ]
    verdict, columns = become(ping(result=late))
    assert (verdict, columns.rtt[0], columns.packet_error_count[0]) == ("measurement", 20.0, 1)
    _, columns = become(ping(result=late), rtt="each")
    assert columns.packets.tolist() == [-1.0, 20.0]
    verdict, columns = become(ping(result=late[:2]))
    assert (verdict, columns.rtt[0], columns.packet_error_count[0]) == ("measurement", -1.0, 1)


def test_total_loss_is_minus_one():
    verdict, columns = become(ping(result=[{"x": "*"}] * 3, ttl=None))
    assert (verdict, columns.rtt[0], columns.packet_error_count[0]) == ("measurement", -1.0, 3)


def test_an_error_after_losses_is_a_loss_and_an_error_alone_is_nothing():
    lost = ping(result=[{"x": "*"}, {"x": "*"}, {"error": "sendto failed: Network is unreachable"}])
    verdict, columns = become(lost)
    assert (verdict, columns.rtt[0], columns.packet_error_count[0]) == ("measurement", -1.0, 2)
    never_sent = ping(result=[{"error": "connect failed: Network is unreachable"}], sent=0, rcvd=0)
    assert become(never_sent)[0] == "missing_rtt"
    assert become(never_sent, rtt="each")[0] == "missing_rtt"


def test_unresolved_name_has_no_destination():
    result = ping(
        dst_addr=None, dst_name="example.invalid", result=None, dnserr="non-recoverable failure (1)"
    )
    assert become(result)[0] == "missing_destination"


def test_average_null_means_the_packets_or_no_reply():
    assert rtt_of({**ping(), "avg": None, "min": None, "max": None}) == 12.0
    lost = {**ping(result=[]), "avg": None, "min": None, "max": None, "sent": 3, "rcvd": 0}
    verdict, columns = become(lost)
    assert (verdict, columns.rtt[0], columns.packet_error_count[0]) == ("measurement", -1.0, 3)
    assert become(lost, rtt="each")[1].packets.tolist() == [-1.0] * 3


def test_firmware_0_writes_numbers_as_strings_and_no_packets():
    result = {
        "fw": 0, "type": "ping", "avg": "58.042", "min": "57.876", "max": "58.272", "rcvd": "2", "sent": "3",
        "dup": "0", "dst_addr": DESTINATION, "src_addr": PUBLIC_SOURCE, "timestamp": 1_328_019_792,
        "msm_id": 1, "prb_id": 6,
    }  # fmt: skip
    verdict, columns = become(result)
    assert (verdict, columns.rtt[0], columns.packet_error_count[0]) == ("measurement", 58.042, 1)
    assert rtt_of(result, rtt="min") == 57.876
    assert columns.size[0] == -1
    # The mean of two replies cannot be taken apart; that of one need not be.
    assert become(result, rtt="each")[0] == "missing_rtt"
    _, columns = become({**result, "sent": "1", "rcvd": "1"}, rtt="each")
    assert columns.packets.tolist() == [58.042]


def test_firmware_1_says_addr():
    result = ping(dst_addr=None, dst_name=None, af=None, src_addr=None, result=None, sent=3, rcvd=3, avg=5.5)
    result["addr"] = "198.51.100.3"
    verdict, columns = become(result)
    assert verdict == "measurement"
    assert unpack(columns.dst)[0].as_py() == "198.51.100.3"
    assert columns.rtt[0] == 5.5


@pytest.mark.parametrize("src_addr", ["192.168.1.2", "", None, "rubbish", "fe80::1", "203.0.113.9"])
def test_source_is_from_unless_src_addr_is_public(src_addr):
    assert source_of(ping(src_addr=src_addr)) == PUBLIC_SOURCE


def test_source_is_src_addr_when_public_or_asked_for():
    assert source_of(ping(src_addr="100.1.1.1")) == "100.1.1.1"
    assert source_of(ping(src_addr="100.1.1.1"), source="from") == PUBLIC_SOURCE
    assert source_of(ping(), source="src_addr") == "192.168.1.2"
    assert become(ping(src_addr=""), source="src_addr")[0] == "missing_source"
    older = {key: value for key, value in ping().items() if key != "src_addr"} | {"srcaddr": "100.2.2.2"}
    assert source_of(older) == "100.2.2.2"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timestamp": None}, "missing_time"),
        ({"timestamp": "soon"}, "bad_time"),
        ({"timestamp": 4_102_444_800}, "bad_time"),
        ({"timestamp": -1}, "bad_time"),
        ({"timestamp": 10**17}, "bad_time"),
        ({"timestamp": 1e300}, "bad_time"),
        ({"timestamp": True}, "bad_time"),
        ({"timestamp": [1]}, "bad_time"),
        ({"from": ""}, "missing_source"),
        ({"from": None, "src_addr": None}, "missing_source"),
        ({"from": "somewhere"}, "bad_source"),
        ({"from": 7}, "bad_source"),
        ({"dst_addr": ""}, "missing_destination"),
        ({"dst_addr": "192.0.2.256"}, "bad_destination"),
        ({"dst_addr": "fe80::1%eth0"}, "bad_destination"),
        ({"dst_addr": {}}, "bad_destination"),
        ({"dst_addr": "2001:db8::1"}, "mixed_versions"),
        ({"af": 6}, "wrong_version"),
        ({"af": "six"}, "wrong_version"),
        ({"result": [{"rtt": -3}]}, "bad_rtt"),
        ({"result": [{"rtt": 3_600_001}]}, "bad_rtt"),
        ({"result": [{"rtt": 1e300}]}, "bad_rtt"),
        ({"result": [{"rtt": None}]}, "bad_rtt"),
        ({"result": [{"rtt": "NaN"}]}, "bad_rtt"),
        ({"result": [{"rtt": True}]}, "bad_rtt"),
        ({"result": [7]}, "bad_rtt"),
        ({"result": [{}]}, "bad_rtt"),
        ({"result": "ping statistics"}, "bad_rtt"),
        ({"result": None, "avg": None, "sent": 3, "rcvd": 3}, "missing_rtt"),
        ({"result": None, "avg": -1, "sent": 3, "rcvd": 3}, "bad_rtt"),
        ({"result": None, "avg": "inf", "sent": 3, "rcvd": 3}, "bad_rtt"),
        ({"result": None, "avg": 4_000_000, "sent": 3, "rcvd": 3}, "bad_rtt"),
        ({"size": 65_536}, "bad_field"),
        ({"size": -5}, "bad_field"),
        ({"size": "large"}, "bad_field"),
        ({"msm_id": 1.5}, "bad_field"),
        ({"msm_id": 2**63}, "bad_field"),
        ({"prb_id": [3]}, "bad_field"),
        ({"sent": 1}, "bad_field"),
        ({"sent": "three"}, "bad_field"),
        ({"rcvd": -9}, "bad_field"),
        ({"type": 3}, "bad_field"),
        ({"type": "traceroute"}, "not ping"),
        ({"type": "dns", "timestamp": None}, "not ping"),
    ],
)
def test_what_is_wrong_has_its_reason(changes, reason):
    assert become(ping(**changes))[0] == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "unparsable"),
        (b"\x00\xff\xfe rubbish", "unparsable"),
        (b'{"type":"ping","avg":NaN}', "unparsable"),
        (b'{"type":"ping","avg":1e999}', "unparsable"),
        (b'{"type":"ping"} {"type":"ping"}', "unparsable"),
        (b"[1]", "not_an_object"),
        (b"17", "not_an_object"),
        (b"null", "not_an_object"),
        (b"{}", "missing_time"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 2_000 + b"1" + b"}" * 2_000, "too_deep"),
    ],
)
def test_what_is_no_result_has_its_reason(text, reason):
    assert become(text)[0] == reason


def test_numbers_round_as_orjson_rounds_them():
    for text in (
        "0.1",
        "12.345678901234567",
        "179.99999999999997",
        "1e1",
        "5E-1",
        "0.30000000000000004",
        "7",
    ):
        result = json.dumps(ping(result=[{"rtt": "RTT"}])).replace('"RTT"', text).encode()
        assert rtt_of(result) == float(text)


def test_keys_are_compared_whole():
    """A find: only the last eight characters of a key were."""
    text = json.dumps(ping()).encode()
    assert become(text.replace(b'"timestamp"', b'"9imestamp"'))[0] == "missing_time"
    assert become(text.replace(b'"dst_addr"', b'"x_dst_addr"'))[0] == "missing_destination"


def test_escapes_and_foreign_letters_are_read_carefully():
    text = json.dumps(ping(dst_name="münchen.example"), ensure_ascii=False).encode()
    assert rtt_of(text) == 12.0
    assert rtt_of(text.replace(b'"type"', b'"t\\u0079pe"')) == 12.0
    assert rtt_of(text.replace(b'"type": "ping"', b'"type": "dns", "type": "ping"')) == 12.0
