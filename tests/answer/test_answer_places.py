"""Places of prefixes, from a table and from a database."""

from pathlib import Path

import netaddr
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdb_writer import MMDBWriter

from ping_llm.answer.places import Places
from ping_llm.errors import PingError
from ping_llm.measurements.addresses import Prefix, pack_one, parse_prefix

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
    path.write_text("prefix,latitude\n192.0.2.0/24,95\n")
    with pytest.raises(PingError, match="has no column longitude"):
        Places(path)
    broken = tmp_path / "places.mmdb"
    broken.write_bytes(b"no database")
    with pytest.raises(PingError, match=r"places\.mmdb"):
        Places(broken)
