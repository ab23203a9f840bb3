"""Nothing usable in any input is a failure, and says what may be wrong."""

import json
import re

import pytest
from atlas_results import ping, traceroute, write_lines
from ingest_program import program

from ping_llm.ingest.accounting import nothing_usable
from ping_llm.ingest.run import ingest
from ping_llm.measurements.parquet import read_measurements

PING = """PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.
64 bytes from 192.0.2.1: icmp_seq=1 ttl=57 time=10.2 ms

--- 192.0.2.1 ping statistics ---
1 packets transmitted, 1 received, 0% packet loss, time 0ms
rtt min/avg/max/mdev = 10.2/10.2/10.2/0.000 ms
"""
FPING = "192.0.2.1 : 10.2 10.4 -\n192.0.2.2 : - - -\n"
MTR = """Start: 2024-01-01T00:00:00+0000
HOST: here                        Loss%   Snt   Last   Avg  Best  Wrst StDev
  1.|-- 192.0.2.1                  0.0%    10    0.3   0.3   0.2   0.4   0.1
"""
INPUTS = {
    "ping": (PING, "looks like the output of ping"),
    "fping": (FPING, "looks like the output of fping"),
    "mtr": (MTR, "looks like the output of mtr"),
    "readme": ("# Data\nSee below.\n", "none of the 2 results is a measurement.*ingest reads RIPE Atlas"),
    "empty": ("", "the inputs have no results.*ingest reads RIPE Atlas results"),
    "blank": ("\n\n", "the inputs have no results"),
    "header only": ("time,src,dst,rtt\n", "the inputs have no results"),
    "array": ("[]", "the inputs have no results"),
    "traceroutes": (write_lines([traceroute()]).decode(), "none of the 1 results is a ping"),
    "no source": (write_lines([ping(**{"from": ""})]).decode(), r"none of the 1 .*\(1 missing_source; see"),
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_the_reason_is_said(name, tmp_path):
    text, expected = INPUTS[name]
    (tmp_path / "input").write_text(text)
    report = ingest([str(tmp_path / "input")], tmp_path / "out")
    sentence = nothing_usable(report.total, tmp_path / "out")
    assert sentence is not None
    assert re.search(expected, sentence), sentence


def test_one_measurement_is_enough(tmp_path):
    (tmp_path / "a").write_text(PING)
    (tmp_path / "b").write_bytes(write_lines([ping()]))
    report = ingest([str(tmp_path / "a"), str(tmp_path / "b")], tmp_path / "out")
    assert nothing_usable(report.total, tmp_path / "out") is None


def test_it_is_a_failure(tmp_path):
    (tmp_path / "ping.txt").write_text(PING)
    ended = program("ingest", tmp_path / "ping.txt", "--out", tmp_path / "out", "--keep-going", "--json")
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["total"]["measurements"] == 0
    assert "looks like the output of ping" in ended.stderr.decode()


def test_the_advice_can_be_followed_in_the_same_folder(tmp_path):
    """A run that found nothing usable has left nothing that would have to be overwritten."""
    (tmp_path / "ping.txt").write_text(PING)
    words = ["ingest", tmp_path / "ping.txt", "--out", tmp_path / "out"]
    assert program(*words).returncode == 1
    ended = program(*words, "--src", "198.51.100.1")
    assert ended.returncode == 0, ended.stderr
    assert len(read_measurements(tmp_path / "out")) == 1
    again = program(*words)
    assert again.returncode == 2
    assert b"made from other inputs or options" in again.stderr
