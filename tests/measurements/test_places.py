"""Places of prefixes, from a table and from a database."""

from pathlib import Path

import netaddr
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdb_writer import MMDBWriter

from ping_llm.errors import PingError
from ping_llm.fetch.atlas import PROBES
from ping_llm.measurements.addresses import Prefix, pack_one, parse_prefix
from ping_llm.measurements.places import Place, Places, distance_km, least_rtt_ms, locations

TABLE = {
    "192.0.0.0/8": (1.0, 1.0), "192.0.2.0/24": (52.4, 4.9), "192.0.2.128/25": (50.1, 8.7),
    "192.0.2.1": (0.0, 0.0), "2001:db8::/32": (-33.9, 151.2), "2001:db8:1::/48": (35.7, 139.7),
}  # fmt: skip


def write(folder: Path, kind: str) -> Path:
    path = folder / f"places.{kind}"
    if kind == "csv":
        rows = [f"{prefix},{latitude},{longitude}\n" for prefix, (latitude, longitude) in TABLE.items()]
        path.write_text("prefix,latitude,longitude\n" + "".join(rows))
        return path
    writer = MMDBWriter(6, "GeoLite2-City", languages=["en"], ipv4_compatible=True, float_type="f64")
    for prefix, (latitude, longitude) in TABLE.items():
        where = {"location": {"latitude": latitude, "longitude": longitude}}
        writer.insert_network(netaddr.IPSet([prefix]), where)
    writer.to_db_file(str(path))
    return path


@pytest.mark.parametrize("kind", ["csv", "mmdb"])
def test_the_longest_prefix_counts(tmp_path, kind):
    places = Places(write(tmp_path, kind))
    for text, place in {
        "192.0.2.7": (52.4, 4.9), "192.0.2.200": (50.1, 8.7), "192.0.2.1": (0.0, 0.0),
        "192.7.0.0": (1.0, 1.0), "203.0.113.7": None, "2001:db8::7": (-33.9, 151.2),
        "2001:db8:1::7": (35.7, 139.7), "::1": None,
    }.items():  # fmt: skip
        assert places.of(parse_prefix(text)) == place, text


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Places:
    return Places(write(tmp_path_factory.mktemp("places"), "csv"))


@given(number=st.integers(0, 2**16 - 1), bits=st.integers(1, 32))
def test_a_table_agrees_with_trying_every_prefix(table, number, bits):
    rest = 32 - bits
    packed = int.from_bytes(pack_one("192.0.0.0")) + number
    asked = Prefix((packed >> rest << rest).to_bytes(16), bits)
    covering = [
        (one.bits, place)
        for one, place in ((parse_prefix(text), place) for text, place in TABLE.items())
        if one.version == 4 and one.bits <= bits and one.covers(asked.packed)
    ]
    assert table.of(asked) == (max(covering)[1] if covering else None)


def test_what_is_wrong_is_named(tmp_path):
    path = tmp_path / "places.csv"
    path.write_text("prefix,latitude,longitude\n192.0.2.0/24,95,4\n")
    with pytest.raises(PingError, match=r"row 0: 95.*must be degrees"):
        Places(path)
    path.write_text("prefix,town\n192.0.2.0/24,Amsterdam\n")
    with pytest.raises(PingError, match="must have the column prefix, and latitude"):
        Places(path)
    path.write_text("prefix,country,asn\n192.0.2.0/24,Holland,1\n")
    with pytest.raises(PingError, match=r"row 0: 'Holland' is not a country"):
        Places(path)
    broken = tmp_path / "places.mmdb"
    broken.write_bytes(b"no database")
    with pytest.raises(PingError, match=r"places\.mmdb"):
        Places(broken)


def test_facts_come_from_the_longest_prefix_that_has_them_and_from_several_files(tmp_path):
    table = tmp_path / "places.csv"
    table.write_text(
        "prefix,latitude,longitude,country,asn\n192.0.2.0/24,52.4,4.9,NL,\n192.0.0.0/16,,,,3333\n"
    )
    systems = tmp_path / "asn.mmdb"
    writer = MMDBWriter(6, "GeoLite2-ASN", ipv4_compatible=True)
    writer.insert_network(netaddr.IPSet(["192.0.0.0/8"]), {"autonomous_system_number": 7})
    writer.to_db_file(str(systems))
    assert Places(table).place(parse_prefix("192.0.2.1")) == Place((52.4, 4.9), "NL", 3333)
    assert Places([systems, table]).place(parse_prefix("192.0.2.1")) == Place((52.4, 4.9), "NL", 7)
    assert Places([table, systems]).place(parse_prefix("192.9.2.1")) == Place(None, None, 7)


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"country_code": "de", "asn": "AS64500"}, Place(None, "DE", 64500)),  # IPinfo
        ({"country": {"iso_code": "FR"}, "location": {"latitude": 48.9, "longitude": 2.4}},
         Place((48.9, 2.4), "FR")),
        ({"country": {"iso_code": "France"}, "location": {"latitude": 148.9, "longitude": 2.4}}, Place()),
    ],
)  # fmt: skip
def test_records_of_other_databases(tmp_path, record, place):
    writer = MMDBWriter(4, "other", float_type="f64")
    writer.insert_network(netaddr.IPSet(["192.0.2.0/24"]), record)
    writer.to_db_file(str(tmp_path / "other.mmdb"))
    assert Places(tmp_path / "other.mmdb").place(parse_prefix("192.0.2.1")) == place


def test_the_table_of_probes(tmp_path):
    rows = [
        {"probe_id": 1, "address_v4": "192.0.2.1", "prefix_v4": "192.0.2.0/24", "asn_v4": 3333,
         "country": "NL", "latitude": 52.4, "longitude": 4.9},
        {"probe_id": 2, "address_v6": "2001:db8::2", "asn_v6": 7},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, PROBES), tmp_path / "probes.parquet")
    places = Places(tmp_path / "probes.parquet")
    assert places.probe(1) == [parse_prefix("192.0.2.1")]
    assert places.probe(2) == [parse_prefix("2001:db8::2")]
    assert places.probe(3) == []
    assert places.place(parse_prefix("192.0.2.1")) == Place((52.4, 4.9), "NL", 3333)
    assert places.place(parse_prefix("192.0.2.9")) == Place(None, "NL", 3333)


def test_distances():
    assert least_rtt_ms((52.37, 4.9), (52.37, 4.9)) == 0
    # Amsterdam to New York: 5,860 km, 29.3 ms one way.
    assert least_rtt_ms((52.37, 4.9), (40.71, -74.0)) == pytest.approx(58.7, abs=0.5)
    here, there = locations([Place((0.0, 0.0)), Place()]), locations([Place((0.0, 180.0)), Place((1.0, 1.0))])
    assert distance_km(here, there)[0] == pytest.approx(20_015, abs=1)
    assert np.isnan(distance_km(here, there)[1])
