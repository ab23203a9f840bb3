"""Commands that read Parquet take what `ingest` reads, with the same result as after `ingest`."""

import subprocess
import sys
from pathlib import Path

import pytest

from ping_llm.errors import PingError
from ping_llm.ingest import accounting
from ping_llm.ingest.run import ingest
from ping_llm.ingest.tabled import as_tables
from ping_llm.rows.build import build

RESULTS = "".join(
    f"2024-05-0{day}T12:00:0{second}Z,192.0.2.{second},198.51.100.{day},{day + second}.5\n"
    for day in range(1, 4)
    for second in range(1, 9)
)


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "pings.csv"
    path.write_text("time,src,dst,rtt\n" + RESULTS + "2024-05-01T12:00:00Z,nowhere,192.0.2.1,5\n")
    return path


def test_raw_inputs_give_what_their_table_gives(table, tmp_path, capsys):
    ingest([str(table)], tmp_path / "measurements", workers=1)
    wanted = build([tmp_path / "measurements"], tmp_path / "rows")
    before = sorted(tmp_path.iterdir())
    with as_tables([str(table)], tmp_path / "new" / "rows") as tables:
        got = build(tables, tmp_path / "new" / "rows")
    assert got["fingerprint"] == wanted["fingerprint"]
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "new"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows"]
    assert "note: 1 of 25 results are not measurements (1 " in capsys.readouterr().err
    with as_tables([str(tmp_path / "measurements")], tmp_path / "rows") as tables:
        assert tables == [str(tmp_path / "measurements")]


def test_what_is_damaged_or_holds_nothing_is_refused(table, tmp_path):
    (tmp_path / "words.txt").write_text("words\n")
    ingest([str(table)], tmp_path / "measurements", workers=1)
    part = next((tmp_path / "measurements").rglob("part-0.parquet"))
    (tmp_path / "cut.parquet").write_bytes(part.read_bytes()[:-20])
    before = sorted(tmp_path.rglob("*"))
    for name, says in (("words.txt", "no measurement was found in"), ("cut.parquet", "cut.parquet")):
        with (
            pytest.raises(PingError, match=says),
            as_tables([str(tmp_path / name)], tmp_path / "new" / "rows"),
        ):
            pass
    assert sorted(tmp_path.rglob("*")) == before


FLIPS = """
import subprocess
import sys
from pathlib import Path
import duckdb
from ping_llm.ingest import accounting
path, count = Path(sys.argv[1]), 0
whole = path.read_bytes()
with duckdb.connect() as connection:
    assert accounting._rows(path, connection) == 8
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for place in range(len(whole) - footer, len(whole), 5):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        accounting._rows(path, connection)
    path.write_bytes(whole[:100] + whole[-footer:])
    assert accounting._rows(path, connection) is None
"""


def test_no_damage_of_a_day_ends_the_process(table, tmp_path):
    """pyarrow aborts where a row group's columns are looked at and the footer is damaged."""
    ingest([str(table)], tmp_path / "measurements", workers=1)
    day = tmp_path / "measurements" / "date=2024-05-01" / accounting.DAY_FILE
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, str(day)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
