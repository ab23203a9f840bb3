"""Contexts that somebody pasted: tables, Atlas results and the output of ping."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.serve import pasted
from ping_llm.serve.options import LIMITS
from ping_llm.serve.refusals import Refused
from ping_llm.serve.requests import MeasurementBody

LINUX = """PING example.com (198.51.100.7) 56(84) bytes of data.
[1704067200.250000] 64 bytes from host.example.com (198.51.100.7): icmp_seq=1 ttl=55 time=12.5 ms
[1704067201.250000] 64 bytes from host.example.com (198.51.100.7): icmp_seq=2 ttl=55 time=13.0 ms
64 bytes from host.example.com (198.51.100.7): icmp_seq=2 ttl=55 time=13.9 ms (DUP!)
[1704067203.1] no answer yet for icmp_seq=3

--- example.com ping statistics ---
4 packets transmitted, 2 received, +1 duplicates, 50% packet loss, time 3004ms
rtt min/avg/max/mdev = 12.5/12.75/13.0/0.2 ms
"""
LINUX_IPV6 = """PING example.com(host.example.com (2001:db8::7)) from 2606:4700::1 eth0: 56 data bytes
64 bytes from host.example.com (2001:db8::7): icmp_seq=1 ttl=57 time=0.431 ms
"""
MAC = """PING 198.51.100.7 (198.51.100.7): 56 data bytes
64 bytes from 198.51.100.7: icmp_seq=0 ttl=57 time=4.017 ms
Request timeout for icmp_seq 1
"""
WINDOWS = """Pinging example.com [198.51.100.7] with 32 bytes of data:
Reply from 198.51.100.7: bytes=32 time=14ms TTL=55
Reply from 198.51.100.7: bytes=32 time<1ms TTL=55
Request timed out.

Ping statistics for 198.51.100.7:
    Packets: Sent = 3, Received = 2, Lost = 1 (33% loss),
"""
PING6 = """PING6(56=40+8+8 bytes) 2606:4700::1 --> 2001:db8::7
16 bytes from 2001:db8::7, icmp_seq=0 hlim=57 time=5 ms
"""


@pytest.mark.parametrize(
    ("text", "dst", "src", "rtts"),
    [
        (LINUX, "198.51.100.7", None, [12.5, 13.0, -1.0, -1.0]),
        (LINUX_IPV6, "2001:db8::7", "2606:4700::1", [0.431]),
        (MAC, "198.51.100.7", None, [4.017, -1.0]),
        (WINDOWS, "198.51.100.7", None, [14.0, 1.0, -1.0]),
        (PING6, "2001:db8::7", "2606:4700::1", [5.0]),
    ],
)
def test_the_output_of_ping(text, dst, src, rtts):
    made = pasted.read(text).as_dict()
    assert made["format"] == "ping"
    assert [one["rtt"] for one in made["measurements"]] == rtts
    assert {one["dst_addr"] for one in made["measurements"]} == {dst}
    assert {one["src_addr"] for one in made["measurements"]} == {src}


def test_times_of_ping_and_two_runs_in_a_row():
    made = pasted.read(LINUX + MAC).measurements
    assert [one["event_time"] for one in made[:2]] == [
        "2024-01-01T00:00:00.250000Z",
        "2024-01-01T00:00:01.250000Z",
    ]
    assert len(made) == 6


@pytest.mark.parametrize(
    "text",
    [
        "dst_addr,rtt,event_time\n198.51.100.7,12.5,2024-01-01T00:00:00Z\n198.51.100.9,-1,\n",
        "time;target;latency ms\n2024-01-01T00:00:00Z;198.51.100.7;12.5\n;198.51.100.9;-1",
        "198.51.100.7 12.5 2024-01-01T00:00:00Z\n198.51.100.9   -1",
        '[{"dst_addr":"198.51.100.7","rtt":12.5,"event_time":1704067200},{"dst_addr":"198.51.100.9","rtt":-1}]',
    ],
)
def test_tables_with_and_without_header(text):
    made = pasted.read(text).measurements
    assert [(one["dst_addr"], one["rtt"], one["event_time"]) for one in made] == [
        ("198.51.100.7", 12.5, "2024-01-01T00:00:00Z"),
        ("198.51.100.9", -1.0, None),
    ]


def atlas(**changed):
    return {
        "type": "ping", "af": 4, "timestamp": 1704067200, "from": "85.212.133.33", "src_addr": "10.0.0.2",
        "dst_addr": "176.20.143.7", "sent": 2, "rcvd": 2, "msm_id": 1, "prb_id": 2, "size": 48,
        "result": [{"rtt": 10.0}, {"rtt": 11.0}],
    } | changed  # fmt: skip


def test_atlas_results_by_the_rules_of_ingest():
    several = [atlas(), atlas(type="dns"), atlas(dst_addr="nowhere")]
    for text in (json.dumps(several), "\n".join(map(json.dumps, several))):
        made = pasted.read(text).as_dict()
        assert made["format"] == "atlas"
        assert made["measurements"] == [
            {
                "src_addr": "85.212.133.33",
                "dst_addr": "176.20.143.7",
                "event_time": "2024-01-01T00:00:00Z",
                "rtt": 10.5,
                "size": 48,
                "packet_error_count": 0,
                "msm_id": 1,
                "probe_id": 2,
            }
        ]
        assert made["left_out"] == 2
        assert made["sources"] == {"85.212.133.33": 1}


def test_what_is_left_out_is_counted_and_named():
    made = pasted.read("dst_addr,rtt\n198.51.100.7,12\nnowhere,3\n198.51.100.7,-7\n198.51.100.7,soon")
    assert len(made.measurements) == 1
    assert made.left_out == 3
    assert made.reasons[0].startswith("line 3: ")
    long = pasted.read("dst_addr,rtt\n" + "198.51.100.7,1\n" * (LIMITS.context + 7))
    assert (len(long.measurements), long.left_out) == (LIMITS.context, 7)
    assert made.note().startswith("rows of the measurements left out: 3 (line 3: ")
    assert "rtt must be -1 (no reply) or 0 to 3,600,000 ms, not '-7'" in made.reasons[1]
    assert made.reasons[2].endswith("ms, not 'soon'")
    assert pasted.read("198.51.100.7 1").note() is None


def test_of_too_many_measurements_the_newest_by_time_are_kept_and_the_others_named():
    """A text may be newest first, as exports often are; a row without a time counts as the oldest."""
    minutes = [f"198.51.100.7,{at},2024-05-01T{at // 60:02}:{at % 60:02}:00Z" for at in range(1000)]
    unknown = ["198.51.100.7,0.5"] * (LIMITS.context - 1000)
    latest = [f"198.51.100.7,{2000 + at},2024-05-02T00:00:00.{at:03}Z" for at in range(8)]
    bad = ["nowhere,1"] * 9
    text = "\n".join(["dst_addr,rtt,event_time", *bad, *latest, *reversed(minutes), *unknown])
    made = pasted.read(text)
    assert (len(made.measurements), made.left_out) == (LIMITS.context, 8 + 9)
    timed = [one["rtt"] for one in made.measurements if one["event_time"]]
    assert timed == [*range(2000, 2008), *reversed(range(1000))]
    assert made.reasons[0] == "8 older measurements, because only the newest 4,000 are used"
    assert len(made.reasons) == 5

    descending = [f"198.51.100.7,{at},{at}" for at in reversed(range(LIMITS.context + 2))]
    kept = pasted.read("\n".join(["dst_addr,rtt,event_time", *descending]))
    assert [one["rtt"] for one in kept.measurements] == [*range(LIMITS.context + 1, 1, -1)]


@pytest.mark.parametrize(
    "text", ["", "hello", "a,b\n1,2", "{", "[1,2]", "PING nowhere\ntime=3 ms", "dst,rtt\nx,y"]
)
def test_what_holds_nothing_is_refused_in_a_sentence(text):
    with pytest.raises(Refused) as raised:
        pasted.read(text)
    assert (raised.value.status, raised.value.path) == (422, "text")


PIECES = [
    "PING ", "(198.51.100.7)", "time=1 ms", "\n", ",", "dst,rtt", "[", "{", '"', "198.51.100.7", "1e999",
    "-->", "\x00", "from ::1:",
]  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join))
def test_no_text_makes_it_fail(text):
    try:
        made = pasted.read(text)
    except Refused:
        return
    assert made.measurements


def test_a_text_brings_the_columns_of_conditions():
    """In the names of the measurements table, which a request's context takes; other texts are no numbers."""
    table = "dst,rtt,size,msm_id,probe_id\n198.51.100.7,12.5,64,1001,9\n198.51.100.7,13,large,,99999999999\n"
    one, other = pasted.read(table).measurements
    assert (one["size"], one["msm_id"], one["probe_id"]) == (64, 1001, 9)
    assert other.keys() == {"src_addr", "dst_addr", "event_time", "rtt"}
    head, row = "dst,rtt,throughput_mbps", "198.51.100.7,1"
    values = ("94.3", "", "nan", "-1", "fast", "1e9", "1_0", "0")
    found = pasted.read("\n".join([head, *(f"{row},{value}" for value in values)])).measurements
    assert [one.get("throughput_mbps") for one in found] == [94.3, *[None] * 6, 0.0]
    text = '[{"dst_addr": "198.51.100.7", "rtt": 1, "size": 48, "packet_error_count": 2}]'
    (one,) = pasted.read(text).measurements
    assert (one["size"], one["packet_error_count"]) == (48, 2)
    MeasurementBody.model_validate(one)
