"""What ping, fping and mtr print is read, once it is said where they were run."""

import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.errors import UsageError
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.ingest.tool_text import as_table, is_tool_text
from ping_llm.measurements.parquet import read_measurements

WRITTEN = 1_700_000_000

PING = """PING example.com (192.0.2.1) 56(84) bytes of data.
64 bytes from example.com (192.0.2.1): icmp_seq=1 ttl=57 time=10.2 ms
64 bytes from example.com (192.0.2.1): icmp_seq=2 ttl=57 time=11 ms
64 bytes from example.com (192.0.2.1): icmp_seq=4 ttl=57 time=12.5 ms

--- example.com ping statistics ---
4 packets transmitted, 3 received, 25% packet loss, time 3004ms
rtt min/avg/max/mdev = 10.2/11.2/12.5/0.9 ms
"""
STAMPED = """PING 2001:db8::1 (2001:db8::1) 56 data bytes
[1600000000.250000] 64 bytes from 2001:db8::1: icmp_seq=1 ttl=57 time=10.2 ms
[1600000001.250000] no answer yet for icmp_seq=2
[1600000003.250000] 64 bytes from 2001:db8::1: icmp_seq=3 ttl=57 time=12.5 ms
"""
QUIET = """PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.

--- 192.0.2.1 ping statistics ---
5 packets transmitted, 5 received, 0% packet loss, time 4005ms
rtt min/avg/max/mdev = 10.0/11.5/12.0/0.9 ms
"""
NONE = """PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.

--- 192.0.2.1 ping statistics ---
2 packets transmitted, 0 received, 100% packet loss, time 1001ms
"""
MAC = """PING 192.0.2.1 (192.0.2.1): 56 data bytes
64 bytes from 192.0.2.1: icmp_seq=0 ttl=57 time=10.200 ms
Request timeout for icmp_seq 1
--- 192.0.2.1 ping statistics ---
2 packets transmitted, 1 packets received, 50.0% packet loss
"""
WINDOWS = """
Pinging example.com [192.0.2.1] with 32 bytes of data:
Reply from 192.0.2.1: bytes=32 time=10ms TTL=57
Request timed out.
Reply from 192.0.2.1: bytes=32 time<1ms TTL=57

Ping statistics for 192.0.2.1:
    Packets: Sent = 3, Received = 2, Lost = 1 (33% loss),
"""
FPING_C = "192.0.2.1 : 10.2 10.4 -\n192.0.2.22 : - - -\n"
FPING_L = """[1600000000.1] 192.0.2.1 : [0], 64 bytes, 10.2 ms (10.2 avg, 0% loss)
[1600000001.1] 192.0.2.1 : [1], timed out (10.2 avg, 50% loss)

192.0.2.1 : xmt/rcv/%loss = 2/1/50%, min/avg/max = 10.2/10.2/10.2
"""
FPING_Q = (
    "192.0.2.1 : xmt/rcv/%loss = 3/3/0%, min/avg/max = 1.0/2.0/3.0\n192.0.2.2 : xmt/rcv/%loss = 3/0/100%\n"
)
FPING_E = "192.0.2.1 is alive (10.2 ms)\n192.0.2.2 is unreachable\n"
MTR = """Start: 2020-09-13T12:26:40+0000
HOST: here                        Loss%   Snt   Last   Avg  Best  Wrst StDev
  1.|-- 192.0.2.254                0.0%    10    0.3   0.3   0.2   0.4   0.1
  2.|-- ???                       100.0    10    0.0   0.0   0.0   0.0   0.0
  3.|-- 192.0.2.1                  0.0%    10    8.3   8.5   8.2   9.4   0.1
"""
MTR_CSV = """Mtr_Version,Start_Time,Status,Host,Hop,Ip,Loss%,Snt, ,Last,Avg,Best,Wrst,StDev,
MTR.0.95,1600000000,OK,192.0.2.1,1,192.0.2.254,0.00,10,0,0.2,0.3,0.2,0.4,0.1
MTR.0.95,1600000000,OK,192.0.2.1,2,192.0.2.1,0.00,10,0,8.2,8.5,8.2,9.4,0.1
"""
# (seconds since 1970, destination, RTT) of each
OUTPUTS = {
    "ping": (PING, [(-3, "192.0.2.1", 10.2), (-2, "192.0.2.1", 11), (-1, "192.0.2.1", 12.5),
                    (0, "192.0.2.1", -1)]),
    "ping -D -O": (STAMPED, [(1600000000.25, "2001:db8::1", 10.2), (1600000001.25, "2001:db8::1", -1),
                             (1600000003.25, "2001:db8::1", 12.5)]),
    "ping -q": (QUIET, [(0, "192.0.2.1", 11.5)]),
    "ping without a reply": (NONE, [(-1, "192.0.2.1", -1), (0, "192.0.2.1", -1)]),
    "ping of macOS": (MAC, [(-1, "192.0.2.1", 10.2), (0, "192.0.2.1", -1)]),
    "ping of Windows": (WINDOWS, [(-2, "192.0.2.1", 10), (-1, "192.0.2.1", -1), (0, "192.0.2.1", 1)]),
    "fping -C": (FPING_C, [(-5, "192.0.2.1", 10.2), (-4, "192.0.2.1", 10.4), (-3, "192.0.2.1", -1),
                           *((-n, "192.0.2.22", -1) for n in (2, 1, 0))]),
    "fping -l -D": (FPING_L, [(1600000000.1, "192.0.2.1", 10.2), (1600000001.1, "192.0.2.1", -1)]),
    "fping -q": (FPING_Q, [(-1, "192.0.2.1", 2.0), (0, "192.0.2.2", -1)]),
    "fping -e": (FPING_E, [(-1, "192.0.2.1", 10.2), (0, "192.0.2.2", -1)]),
    "mtr --report": (MTR, [(1600000000, "192.0.2.1", 8.5)]),
    "mtr --csv": (MTR_CSV, [(1600000000, "192.0.2.1", 8.5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_packets_are_read(name):
    text, expected = OUTPUTS[name]
    assert is_tool_text(text.encode())
    columns, _, strange = as_table(text.encode(), "100.0.0.7", WRITTEN)
    assert not strange
    found = pa.table(columns).to_pylist()
    wanted = [(time if time > 1e9 else WRITTEN + time, dst, rtt) for time, dst, rtt in expected]
    assert [(row["event_time"], row["dst_addr"], row["rtt"]) for row in found] == wanted
    assert {row["src_addr"] for row in found} == {"100.0.0.7"}


def test_a_file_is_ingested(tmp_path):
    (tmp_path / "fping.txt").write_text(FPING_E + "example.net is alive (3.0 ms)\nwhat?\n")
    (tmp_path / "ping.txt").write_text(PING.replace("(192.0.2.1)", "(::1)", 1))
    for path in tmp_path.iterdir():
        os.utime(path, (WRITTEN, WRITTEN))
    report = ingest([str(tmp_path)], tmp_path / "out", IngestOptions(src="100.0.0.7"))
    by_file = {path.rpartition("/")[2]: account for path, account, _ in report.files}
    # Of another IP version than the source: rejects, and counted.
    assert dict(by_file["ping.txt"].rejects) == {"mixed_versions": 4}
    assert by_file["fping.txt"].measurements == 2
    assert dict(by_file["fping.txt"].rejects) == {"bad_destination": 1, "unparsable": 1}
    assert sorted(read_measurements(tmp_path / "out").rtt.tolist()) == [-1.0, 10.2]


FINDS = [
    MTR.replace("0.0%", "192.0.2.1"),
    NONE.replace("2 packets", "99999999999 packets"),
    FPING_C.replace("10.2", "1.0.2"),
    MTR.replace("2020-09-13", "0001-01-01"),
]


@pytest.mark.parametrize("text", FINDS, ids=range(len(FINDS)))
def test_texts_that_were_not_read(text):
    as_table(text.encode(), "100.0.0.7", WRITTEN)


def test_a_source_must_be_an_address():
    with pytest.raises(UsageError, match="--src here is not an IP address"):
        IngestOptions(src="here")


PIECES = [*(text for text, _ in OUTPUTS.values()), "x", "[", "9" * 900]


@given(
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.data(),
)
def test_any_text_has_rows_or_none(texts, data):
    text = "\n".join(texts)
    cut = data.draw(st.integers(0, len(text)))
    text = text[:cut] + data.draw(st.text(max_size=20)) + text[cut:]
    columns, lines, strange = as_table(text.encode(), "100.0.0.7", WRITTEN)
    assert len(lines) == len(columns["rtt"]) == len(columns["event_time"])
    assert all(1 <= line <= text.encode().count(b"\n") + len(text) + 1 for line in lines + strange)
