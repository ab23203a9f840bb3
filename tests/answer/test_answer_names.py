"""Names instead of addresses: hosts, systems, countries and probes, in Python and in commands."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import ping_llm
from ping_llm.answer import names as looking
from ping_llm.answer.names import NameIndex, Names
from ping_llm.answer.past import Data
from ping_llm.cli import app, decide
from ping_llm.cli import query as query_commands
from ping_llm.errors import UsageError
from ping_llm.measurements.schema import MEASUREMENTS
from ping_llm.rows.build import build

query_commands.register(app)
decide.register(app)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two probes, one with both IP versions, to three destinations; the first destination most."""
    folder = tmp_path_factory.mktemp("names")
    rows = [
        {"event_time": (1_700_000_000 + n) * 1_000_000, "src_addr": src, "dst_addr": dst, "rtt": 10.0 + n % 3,
         "ip_version": 6 if ":" in src else 4, "probe_id": probe}
        for n in range(40)
        for src, dst, probe in (
            ("192.0.2.1", "198.51.100.7" if n % 4 else "198.51.100.9", 1),
            ("2001:db8::1", "2001:db8:1::7", 1),
            ("192.0.2.2", "203.0.113.5", 2),
        )
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, MEASUREMENTS), folder / "pings.parquet")
    build([folder / "pings.parquet"], folder / "rows")
    (folder / "places.csv").write_text(
        "prefix,country,asn\n198.51.100.0/24,NL,3333\n203.0.113.0/24,DE,7\n192.0.2.0/24,NL,9\n100.64.0.0/10,FR,1\n"
    )
    return folder


@pytest.fixture
def names(data):
    return Names(NameIndex([data / "places.csv"], data / "rows"))


def test_the_addresses_that_the_data_know_there_the_most_measured_first(names):
    assert names.find("AS3333").addresses == ["198.51.100.7", "198.51.100.9"]
    assert names.find("country:nl").addresses == ["198.51.100.7", "198.51.100.9"]
    assert sorted(names.find("NL", "source").addresses) == ["192.0.2.1", "192.0.2.2"]
    assert names.find("AS7").note == "AS7 is 203.0.113.5"
    assert "stands for 2 destinations of the data: 198.51.100.7, 198.51.100.9" in names.find("NL").note
    assert names.find("FR").addresses == ["100.64.0.0/10"]  # not in the data, but in the table
    assert Names().find("192.0.2.0/24").addresses == ["192.0.2.0/24"]


def test_data_in_memory_are_known_too(names, data):
    """As of the packaged model, whose data need not be rows."""
    columns = Data(data / "rows").columns()
    index = NameIndex([data / "places.csv"], Data.of(columns))
    assert Names(index).find("AS3333") == names.find("AS3333")
    assert Names(index).find("probe:1", "source") == names.find("probe:1", "source")


@pytest.mark.parametrize("form", ["rows", "csv", "atlas"])
def test_the_packaged_model_knows_the_probes_of_whatever_it_is_given(data, tmp_path, form):
    """Also a CSV with a probe that is no number, which is unknown, and not an error."""
    given = data / "rows"
    results = [(n, "192.0.2.1", 1) for n in range(3)] + [(n, "192.0.2.2", 2) for n in range(3)]
    if form == "csv":
        given = tmp_path / "pings.csv"
        lines = [f"{1_700_000_000 + n},{src},198.51.100.7,{10 + n},{probe}" for n, src, probe in results]
        lines.append("1700000009,192.0.2.3,198.51.100.7,12,nobody")
        given.write_text("\n".join(["event_time,src_addr,dst_addr,rtt,probe_id", *lines]) + "\n")
    elif form == "atlas":
        given = tmp_path / "pings.jsonl"
        ping = {"type": "ping", "fw": 5000, "af": 4, "dst_addr": "198.51.100.7", "sent": 1, "rcvd": 1}
        given.write_text("".join(
            json.dumps(ping | {"from": src, "prb_id": probe, "timestamp": 1_700_000_000 + n, "avg": 10.0 + n,
                               "min": 10.0 + n, "max": 10.0 + n, "result": [{"rtt": 10.0 + n}]}) + "\n"
            for n, src, probe in results
        ))  # fmt: skip
    model = ping_llm.load("base", data=given)
    found = model.names.find("probe:2", "source")
    assert (found.addresses, found.note) == (["192.0.2.2"], "probe:2 is 192.0.2.2")
    answer = model.rtt("probe:2", "198.51.100.7")
    assert answer.notes[0] == "probe:2 is 192.0.2.2"
    assert answer.rests_on["source_measurements"] > 0


def test_probes(names):
    assert sorted(names.find("probe:1", "source").addresses) == ["192.0.2.1", "2001:db8::1"]
    assert names.find("probe:1", "source", version=6).addresses == ["2001:db8::1"]
    source, destination = names.pair("probe:1", "203.0.113.5")
    assert (source.addresses, destination.addresses) == (["192.0.2.1"], ["203.0.113.5"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("AS12345", "belongs to AS12345, nor does any destination of the data"),
        ("country:AQ", "no prefix in the tables of --places belongs to country:AQ"),
        ("probe:99", "neither the data nor --places know the probe"),
        ("no-such-host.invalid", "cannot be resolved"),
        ("not an address", "neither an address nor a prefix"),
    ],
)
def test_what_nobody_knows_is_said(names, text, why):
    with pytest.raises(UsageError, match=why):
        names.find(text)


def test_without_places_a_name_asks_for_them(data):
    with pytest.raises(UsageError, match="AS7 needs --places"):
        Names(NameIndex([], data / "rows")).find("AS7")


def test_a_host_is_resolved_only_where_that_is_allowed(monkeypatch):
    asked = []

    def resolve(host, *rest, **options):
        asked.append(host)
        return [(2, 2, 17, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(looking.socket, "getaddrinfo", resolve)
    assert Names().find("example.org").note == "example.org is 192.0.2.1"
    assert asked == ["example.org"]
    with pytest.raises(UsageError, match="host names are not resolved"):
        Names(resolve=None).find("example.org")
    assert Names().find("192.0.2.7").addresses == ["192.0.2.7"]
    assert asked == ["example.org"]


def ask(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_commands_take_names_and_say_what_they_stand_for(data):
    common = ("--data", data / "rows", "--method", "recent", "--places", data / "places.csv", "--json")
    one = json.loads(ask("query", "rtt", "--src", "192.0.2.2", "--dst", "AS7", *common).stdout)
    assert one["notes"][0] == "AS7 is 203.0.113.5"
    assert one["dst_addr"] == "203.0.113.5"
    several = ask("query", "rtt", "--src", "probe:1", "--dst", "NL", *common)
    found = [json.loads(line) for line in several.stdout.splitlines()]
    assert [(each["src_addr"], each["dst_addr"]) for each in found] == [
        ("192.0.2.1", "198.51.100.7"), ("192.0.2.1", "198.51.100.9"),
    ]  # fmt: skip
    assert "NL stands for 2 destinations" in several.stderr
    made = ask(
        "matrix", "--src", "NL", "--dst", "AS7,198.51.100.7", "--out", data / "matrix", *common[:-1], "--json"
    )
    assert json.loads(made.stdout)["sources"] == 2
    assert json.loads(made.stdout)["destinations"] == 2


def test_names_in_python(data):
    found = ping_llm.addresses("AS3333", places=data / "places.csv", data=data / "rows")
    assert found == ["198.51.100.7", "198.51.100.9"]
