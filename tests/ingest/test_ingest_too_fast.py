"""Replies that are faster than light allows: rejected where places are known, and accounted for."""

import json

import numpy as np
import pytest
from atlas_results import OTHER_ROUTER, PUBLIC_SOURCE, ROUTER, TARGET, ping, reply, traceroute, write_lines

from ping_llm.errors import PingError, UsageError
from ping_llm.ingest.accounting import read_rejects
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.measurements.parquet import read_measurements

# Amsterdam to Singapore: 10,510 km, of which the margin leaves 10,310; light takes 68.8 ms there and back.
# Nothing is known of TARGET.
PLACES = (
    "prefix,latitude,longitude\n100.0.0.0/24,52.37,4.9\n100.1.0.0/31,1.29,103.85\n100.1.0.2/32,52.5,5.0\n"
)
LIGHT_MS = 68.8


@pytest.fixture
def places(tmp_path):
    (tmp_path / "places.csv").write_text(PLACES)
    return (str(tmp_path / "places.csv"),)


def made(tmp_path, results, **options):
    (tmp_path / "in.jsonl").write_bytes(write_lines(results))
    report = ingest([str(tmp_path / "in.jsonl")], tmp_path / "out", IngestOptions(**options), workers=1)
    return report.total, read_measurements(tmp_path / "out")


def pings(*rtts, to=ROUTER):
    return [
        ping(dst_addr=to, timestamp=1_600_000_000 + n, result=[{"rtt": rtt}] if rtt >= 0 else [{"x": "*"}])
        for n, rtt in enumerate(rtts)
    ]


def test_pings_by_light_in_vacuum_and_a_margin(tmp_path, places):
    rtts = (5.0, LIGHT_MS - 0.3, LIGHT_MS + 0.3, 200.0, -1.0)
    results = [*pings(*rtts), *pings(0.1, to=OTHER_ROUTER), *pings(0.1, to=TARGET)]
    total, kept = made(tmp_path, results, places=places)
    assert (total.results, total.measurements, dict(total.rejects)) == (7, 5, {"too_fast": 2})
    assert sorted(kept.rtt) == sorted([LIGHT_MS + 0.3, 200.0, -1.0, 0.1, 0.1])
    rejects = list(read_rejects(tmp_path / "out", "too_fast"))
    assert [json.loads(one["raw"])["avg"] for one in rejects] == list(rtts[:2])


def test_hops_and_their_replies(tmp_path, places):
    hops = [
        [reply(9.0), reply(5.0), {"x": "*"}],
        [reply(1.0, OTHER_ROUTER)],
        [reply(1.0), reply(300.0), reply(300.0)],
        [reply(2.0, TARGET)],
    ]
    total, kept = made(tmp_path, [traceroute(*hops)], places=places, traceroutes="hops")
    assert (total.results, total.measurements, dict(total.rejects)) == (4, 3, {"too_fast": 1})
    assert sorted(kept.rtt) == [1.0, 2.0, 300.0]
    assert dict(total.replies) == {"used": 5, "lost": 1, "too_fast": 2}
    (reject,) = read_rejects(tmp_path / "out", "too_fast")
    assert json.loads(reject["raw"])["hop"] == 1


def test_of_single_packets_the_fastest_counts(tmp_path, places):
    results = [
        ping(dst_addr=ROUTER, result=[{"rtt": 100.0}, {"rtt": 20.0}, {"x": "*"}]),
        ping(dst_addr=ROUTER, timestamp=1_600_000_001, result=[{"x": "*"}, {"rtt": 100.0}]),
        ping(dst_addr=ROUTER, timestamp=1_600_000_002, result=[{"x": "*"}]),
    ]
    total, kept = made(tmp_path, results, places=places, rtt="each")
    assert (total.results, total.measurements, total.packets) == (3, 2, 3)
    assert sorted(kept.rtt) == [-1.0, -1.0, 100.0]


def test_tables_too(tmp_path, places):
    lines = [f"{1_600_000_000 + n},{PUBLIC_SOURCE},{ROUTER},{rtt}" for n, rtt in enumerate((5, 90, -1))]
    (tmp_path / "in.csv").write_text("time,src,dst,rtt\n" + "\n".join(lines) + "\n")
    report = ingest([str(tmp_path / "in.csv")], tmp_path / "out", IngestOptions(places=places), workers=1)
    assert dict(report.total.rejects) == {"too_fast": 1}
    assert np.array_equal(np.sort(read_measurements(tmp_path / "out").rtt), [-1.0, 90.0])


def test_other_places_are_other_options(tmp_path, places):
    made(tmp_path, pings(5.0, 200.0), places=places)
    made(tmp_path, pings(5.0, 200.0), places=places)  # the same is done already
    (tmp_path / "places.csv").write_text(PLACES.replace("1.29,103.85", "52.0,4.0"))
    with pytest.raises(UsageError, match="other inputs or options"):
        made(tmp_path, pings(5.0, 200.0), places=places)
    with pytest.raises(UsageError, match="does not exist"):
        IngestOptions(places=("nowhere.csv",))
    (tmp_path / "bad.csv").write_text("prefix\n100.0.0.0/24\n")
    with pytest.raises(PingError, match="must have the column prefix, and latitude"):
        IngestOptions(places=(str(tmp_path / "bad.csv"),))
