"""What each documented shape of a traceroute's hop becomes, and that all of it is accounted for."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from atlas_results import OTHER_ROUTER, PUBLIC_SOURCE, ROUTER, TARGET, ping, reply, traceroute, write_lines

from ping_llm.errors import UsageError
from ping_llm.ingest import read_measurements
from ping_llm.ingest.columns import NOT_USED
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.ingest.traceroutes import read_traceroutes
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.rules import REASONS
from ping_llm.measurements.schema import KINDS, MEASUREMENTS, MEASUREMENTS_WITH_KIND

LOST = {"x": "*"}
MPLS = {"version": 2, "rfc4884": 0, "obj": [{"class": 1, "type": 1, "mpls": [{"label": 7, "s": 1}]}]}
REASON_OF = {code: reason.value for reason, code in NOT_USED.items()} | {
    code: reason.value for code, reason in enumerate(REASONS, 1)
}


def rows_of(*results, traceroutes="hops", source="auto"):
    """Each row as (kind, address, RTT, packets lost), or as the reason why it is no measurement."""
    read = read_traceroutes(list(results), IngestOptions(traceroutes=traceroutes, source=source))
    columns = read.columns
    texts = unpack(columns.dst).to_pylist()
    return [
        REASON_OF[columns.verdict[row]]
        if columns.verdict[row]
        else (KINDS[columns.kind[row]], texts[row], columns.rtt[row], columns.packet_error_count[row])
        for row in range(len(columns))
    ]


@pytest.mark.parametrize(
    ("hop", "outcome"),
    [
        ([reply(3.0), reply(1.0), reply(2.5)], ("hop", ROUTER, 2.5, 0)),
        ([reply(3.0), LOST, reply(1.0)], ("hop", ROUTER, 2.0, 1)),
        ([reply("3.25"), reply("1")], ("hop", ROUTER, 2.125, 0)),
        ([reply(0.0), reply(4, icmpext=MPLS, itos=32, ittl=2)], ("hop", ROUTER, 2.0, 0)),
        ([reply(1.0), reply(9.0, OTHER_ROUTER), reply(8.0, OTHER_ROUTER)], ("hop", OTHER_ROUTER, 8.5, 0)),
        ([reply(1.0), reply(9.0, OTHER_ROUTER)], ("hop", ROUTER, 1.0, 0)),
        ([reply(1.0, "10.0.0.1"), reply(9.0, OTHER_ROUTER)], ("hop", OTHER_ROUTER, 9.0, 0)),
        ([reply(5.0), reply(1.0, dup=True), reply(None, late=2)], ("hop", ROUTER, 5.0, 0)),
        ([reply(5.0), reply(1.0, edst="100.3.0.1"), reply(2.0, err="H")], ("hop", ROUTER, 5.0, 0)),
        ([reply(5.0), {}], ("hop", ROUTER, 5.0, 0)),
        ([reply(5.0), {"error": "sendto failed"}], ("hop", ROUTER, 5.0, 0)),
        ([reply(7.0, "2a00::1")], "mixed_versions"),
        ([LOST, LOST, LOST], "silent"),
        ([reply(1.0, "10.0.0.1"), LOST], "private"),
        ([reply(1.0, "fe80::1")], "private"),
        ([LOST, reply(None, late=3)], "late"),
        ([LOST, reply(1.0, dup=True)], "dup"),
        ([LOST, reply(1.0, edst="100.3.0.1")], "edst"),
        ([LOST, reply(1.0, err="N")], "err"),
        ([reply(1.0, err=13)], "err"),
        ([reply(1.0, None)], "no_address"),
        ([reply(1.0, "")], "no_address"),
        ([{"error": "sendto failed: Operation not permitted"}], "error"),
        ({"error": "name resolution failed: non-recoverable failure"}, "error"),
        ({"hop": 1, "error": "connect failed"}, "error"),
        ({"hop": 1}, "missing_rtt"),
        ([], "missing_rtt"),
        ({"hop": 1, "result": "x"}, "bad_rtt"),
        ("rubbish", "bad_rtt"),
        (None, "bad_rtt"),
        ([reply(5.0), 7], "bad_rtt"),
        ([reply(5.0)] * 1_001, "bad_rtt"),
        ([reply(5.0)] * 1_000, ("hop", ROUTER, 5.0, 0)),
        ([reply(5.0), reply(-0.5)], "bad_rtt"),
        ([reply(5.0), reply(3_600_001)], "bad_rtt"),
        ([reply(5.0), reply("soon")], "bad_rtt"),
        ([reply(None)], "bad_rtt"),
        ([reply(5.0), reply(5.0, "router.example")], "bad_destination"),
        ([reply(5.0, 7)], "bad_destination"),
    ],
)
def test_hop(hop, outcome):
    target = [reply(20.0, TARGET)] * 3
    assert rows_of(traceroute(hop, target)) == [outcome, ("last", TARGET, 20.0, 0)]


def test_the_last_hop_is_the_destination_or_a_hop():
    far = [reply(1.0), reply(2.0), reply(9.0, TARGET)]
    assert rows_of(traceroute(far)) == [("last", TARGET, 9.0, 0)]
    assert rows_of(traceroute(far, far)) == [("hop", ROUTER, 1.5, 0), ("last", TARGET, 9.0, 0)]
    assert rows_of(traceroute([reply(1.0)])) == [("hop", ROUTER, 1.0, 0)]
    assert rows_of(traceroute([reply(1.0)], dst_addr=None)) == [("hop", ROUTER, 1.0, 0)]
    assert rows_of(traceroute([reply(1.0)], dst_addr=None, addr=ROUTER)) == [("last", ROUTER, 1.0, 0)]
    jump = {"hop": 255, "result": [reply(30.0, TARGET), LOST]}
    assert rows_of(traceroute([LOST], jump)) == ["silent", ("last", TARGET, 30.0, 1)]
    assert rows_of(traceroute([reply(1.0, "10.0.0.9")], dst_addr="10.0.0.9")) == ["private"]


def test_only_the_last():
    reached = traceroute([reply(1.0)], ["rubbish"], [reply(20.0, TARGET), reply(1.0), reply(1.0)])
    assert rows_of(reached, traceroutes="last") == ["not_last", "not_last", ("last", TARGET, 20.0, 0)]
    lost = traceroute([reply(1.0)], [LOST])
    assert rows_of(lost, traceroutes="last") == ["not_last", "silent"]
    assert rows_of(traceroute([reply(1.0)]), traceroutes="last") == ["not_last"]


def test_a_traceroute_that_breaks_a_rule_is_one_reject():
    hops = [[reply(1.0)], [reply(2.0)]]
    for changes, reason in (
        ({"timestamp": None}, "missing_time"),
        ({"timestamp": "x"}, "bad_time"),
        ({"from": ""}, "missing_source"),
        ({"from": None}, "missing_source"),
        ({"from": "x"}, "bad_source"),
        ({"af": 6}, "wrong_version"),
        ({"msm_id": "x"}, "bad_field"),
        ({"size": 70_000}, "bad_field"),
        ({"result": []}, "missing_rtt"),
        ({"result": None}, "missing_rtt"),
        ({"result": {"hop": 1}}, "bad_rtt"),
        ({"result": "traceroute: unknown host"}, "bad_rtt"),
    ):
        assert rows_of(traceroute(*hops, **changes)) == [reason], changes


def test_sources_are_chosen_as_for_pings():
    hop = [reply(1.0)]
    own = traceroute(hop, src_addr="100.5.5.5")
    for result, source, expected in (
        (traceroute(hop), "auto", PUBLIC_SOURCE),
        (own, "auto", "100.5.5.5"),
        (own, "from", PUBLIC_SOURCE),
        (traceroute(hop), "src_addr", "192.168.1.2"),
        (traceroute(hop, src_addr=None, srcaddr="100.5.5.5"), "auto", "100.5.5.5"),
    ):
        read = read_traceroutes([result], IngestOptions(traceroutes="hops", source=source))
        assert unpack(read.columns.src).to_pylist() == [expected]


def test_old_firmware():
    numbers = {"timestamp": "1600000000", "msm_id": "5001", "prb_id": "7", "size": "40", "af": None, "pf": 4}
    read = read_traceroutes([traceroute([reply("1.5")], **numbers)], IngestOptions(traceroutes="hops"))
    columns = read.columns
    assert (columns.verdict[0], columns.time_us[0], columns.rtt[0]) == (0, 1_600_000_000_000_000, 1.5)
    assert (columns.msm_id[0], columns.probe_id[0], columns.size[0]) == (5001, 7, 40)
    assert rows_of(traceroute([reply("1.5")], af=None, pf="6")) == ["wrong_version"]


def test_firmware_1_reported_what_the_command_printed():
    # The example of the documentation, and an IPv4 one with every mark.
    printed = (
        "traceroute to 2001:7fd::1 (2001:7fd::1), 32 hops max, 16 byte packets NEWLINE "
        "1 2001:67c:2e8:13::2 1.907 ms 1.909 ms 1.945 ms NEWLINE "
        "2 2001:7f8:1::a502:5152:1 14.162 ms 2.026 ms 1.872 ms NEWLINE "
        "3 2001:7fd::1 1.876 ms 1.872 ms 1.878 ms NEWLINE"
    )
    result = {
        "from": "2001:67c:2e8:13:220:4aff:fec6:cc1e", "fw": 1, "msm_id": 6001, "prb_id": 21,
        "result": printed, "timestamp": 1338816126,
    }  # fmt: skip
    assert rows_of(result) == [
        ("hop", "2001:67c:2e8:13::2", 1.909, 0),
        ("hop", "2001:7f8:1::a502:5152:1", 2.026, 0),
        ("last", "2001:7fd::1", 1.876, 0),
    ]
    printed = (
        f"traceroute to a.example ({TARGET}), 32 hops max, 16 byte packets NEWLINE"
        f" 1 {ROUTER} 1.5 ms * {OTHER_ROUTER} 2.5 ms NEWLINE 2 * * * NEWLINE"
        f" 3 r.example ({ROUTER}) 3 ms !H 4.0 ms NEWLINE 4 {ROUTER} soon ms NEWLINE 5 what NEWLINE"
        " 6 9.0 ms NEWLINE"
    )
    assert rows_of(traceroute(result=printed, dst_addr=None)) == [
        ("hop", ROUTER, 1.5, 1),
        "silent",
        ("hop", ROUTER, 4.0, 0),
        "bad_rtt",
        "bad_rtt",
        "no_address",
    ]


def mixed_results():
    good = traceroute([reply(1.0, "10.0.0.1")], [reply(2.0), LOST], [LOST], [reply(9.0, TARGET)])
    return [
        ping(),
        good,
        good,
        traceroute([reply(2.0)], [reply(7.0), reply("x")], timestamp=1_600_100_000),
        traceroute([reply(2.0)], timestamp=None),
        {"type": "dns"},
    ]


def write_results(tmp_path, results):
    path = tmp_path / "results.jsonl"
    path.write_bytes(write_lines(results))
    return str(path)


def table_of(out):
    return [row for path in sorted(out.glob("date=*/*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_a_run_accounts_for_every_hop(tmp_path):
    path = write_results(tmp_path, mixed_results())
    report = ingest([path], tmp_path / "out", IngestOptions(traceroutes="hops"))
    summary = json.loads((tmp_path / "out/ingest.json").read_text())
    assert summary == report.as_json()
    assert (summary["format"], summary["options"]["traceroutes"]) == (2, "hops")
    assert summary["total"] == {
        "results": 13,  # a ping, 4 + 4 + 2 hops, a traceroute without its time, and what is neither
        "measurements": 4,
        "duplicates": 2,
        "not_pings": 1,
        "rejects": {"missing_time": 1, "bad_rtt": 1},
        "traceroutes": 3,
        "kinds": {"ping": 1, "hop": 2, "last": 1},
        "not_used": {"private": 2, "silent": 2},
        "replies": {"used": 5, "private": 2, "lost": 4, "rejected": 1, "bad_rtt": 1},
    }
    for path in (tmp_path / "out").glob("date=*/*.parquet"):
        assert pq.read_schema(path).equals(MEASUREMENTS_WITH_KIND, check_metadata=True)
    rows = [
        (row["kind"], row["src_addr"], row["dst_addr"], row["rtt"], row["packet_error_count"], row["msm_id"])
        for row in table_of(tmp_path / "out")
    ]
    assert rows == [
        ("hop", PUBLIC_SOURCE, ROUTER, 2.0, 1, 5001),
        ("last", PUBLIC_SOURCE, TARGET, 9.0, 0, 5001),
        ("ping", PUBLIC_SOURCE, "192.0.2.1", 12.0, 0, 1001),
        ("hop", PUBLIC_SOURCE, ROUTER, 2.0, 0, 5001),
    ]
    rejects = pq.read_table(tmp_path / "out/rejects").to_pylist()
    assert [(reject["record"], reject["reason"]) for reject in rejects] == [
        (4, "bad_rtt"),
        (5, "missing_time"),
    ]
    assert json.loads(rejects[1]["raw"]) == traceroute([reply(2.0)], timestamp=None)
    assert json.loads(rejects[0]["raw"]) == {"hop": 2, "result": [reply(7.0), reply("x")]}
    again = ingest([path_of(summary)], tmp_path / "out", IngestOptions(traceroutes="hops"))
    assert again.as_json() == summary
    with pytest.raises(UsageError, match="other inputs or options"):
        ingest([path_of(summary)], tmp_path / "out", IngestOptions(traceroutes="last"))


def path_of(summary):
    return summary["files"][0]["file"]


def test_without_traceroutes_the_table_is_what_it_was(tmp_path):
    path = write_results(tmp_path, mixed_results())
    for name, options in (("off", IngestOptions()), ("last", IngestOptions(traceroutes="last"))):
        ingest([path], tmp_path / name, options)
    off = json.loads((tmp_path / "off/ingest.json").read_text())
    assert off["format"] == 1
    assert off["options"] == {"rtt": "avg", "source": "auto"}
    assert off["total"] == {
        "results": 6, "measurements": 1, "duplicates": 0, "not_pings": 5, "rejects": {},
    }  # fmt: skip
    day = "date=2020-09-13/part-0.parquet"
    assert pq.read_schema(tmp_path / "off" / day).equals(MEASUREMENTS, check_metadata=True)
    assert [row["kind"] for row in table_of(tmp_path / "last")] == ["last", "ping"]
    # Pings alone give the same files whatever is done with traceroutes.
    pings = tmp_path / "pings.jsonl"
    pings.write_bytes(write_lines([ping()]))
    ingest([str(pings)], tmp_path / "pings", IngestOptions(traceroutes="hops"))
    assert (tmp_path / "pings" / day).read_bytes() == (tmp_path / "off" / day).read_bytes()


def test_hops_among_packets(tmp_path):
    """With `--rtt each`, hops that differ in nothing but their RTT stay two."""
    loop = traceroute([reply(1.0)], [reply(2.0)], [reply(2.0)])
    path = write_results(tmp_path, [loop, loop, ping()])
    report = ingest([path], tmp_path / "out", IngestOptions(rtt="each", traceroutes="hops"))
    assert (report.total.measurements, report.total.duplicates, report.total.packets) == (3, 4, 5)
    hops = [row for row in table_of(tmp_path / "out") if row["kind"] == "hop"]
    assert sorted(row["rtt"] for row in hops) == [1.0, 2.0]


def test_equal_hops_are_duplicates_however_far_apart(tmp_path):
    # Blocks have a MiB: the second traceroute is the first of its block, as the first is of its own.
    one = traceroute([reply(1.0)], [reply(9.0, TARGET)])
    path = write_results(tmp_path, [one, {"type": "dns", "pad": "x" * 1_500_000}, one])
    total = ingest([path], tmp_path / "out", IngestOptions(traceroutes="hops")).total
    assert (total.results, total.measurements, total.duplicates, total.not_pings) == (5, 2, 2, 1)


def test_kind_of_a_table_survives(tmp_path):
    path = write_results(tmp_path, mixed_results())
    ingest([path], tmp_path / "first", IngestOptions(traceroutes="hops"))
    ingest([str(tmp_path / "first")], tmp_path / "second")
    assert table_of(tmp_path / "first") == table_of(tmp_path / "second")
    head = "time,src,dst,rtt,kind\n"
    row = "5,100.0.0.1,100.0.0.2,1,"
    csv = tmp_path / "table.csv"
    csv.write_text(head + "".join(f"{row}{kind}\n" for kind in ("hop", "", "last", "tcp")))
    report = ingest([str(csv)], tmp_path / "csv")
    assert report.total.rejects == {"bad_field": 1}
    assert [row["kind"] for row in table_of(tmp_path / "csv")] == ["ping", "hop", "last"]
    batches = list(read_measurements([str(csv)], version=2))
    assert [kind for batch in batches for kind in batch["kind"].to_pylist()] == ["hop", "ping", "last"]
    csv.write_text(f"{head}{row}ping\n")
    ingest([str(csv)], tmp_path / "pings")
    assert "kind" not in table_of(tmp_path / "pings")[0]


def test_an_unknown_choice_is_named():
    with pytest.raises(UsageError, match="--traceroutes all is not one of off, last, hops"):
        IngestOptions(traceroutes="all")


@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_both_versions_are_read(version, tmp_path):
    """Three pings as version 1 wrote them, and the same with a hop and a destination in version 2."""
    golden = Path(__file__).parents[1] / "golden" / f"measurements-{version}.parquet"
    schema = MEASUREMENTS_WITH_KIND if version == 2 else MEASUREMENTS
    assert pq.read_schema(golden).equals(schema, check_metadata=True)
    traced = [("hop", ROUTER, 2.0), ("last", TARGET, 9.0)] if version == 2 else []
    expected = sorted([*(("ping", "192.0.2.1", 10.0 + i) for i in range(3)), *traced])
    found = [
        (row["kind"], row["dst_addr"], row["rtt"])
        for batch in read_measurements([str(golden)], version=2)
        for row in batch.to_pylist()
    ]
    assert sorted(found) == expected
    ingest([str(golden)], tmp_path / "out")
    assert pq.read_table(golden).equals(pq.read_table(next((tmp_path / "out").glob("date=*/*"))))
