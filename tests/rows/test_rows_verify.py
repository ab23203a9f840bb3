"""rows verify and rows inspect."""

import json
import shutil

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from rows_data import write_measurements
from typer.testing import CliRunner

from ping_llm.cli import app
from ping_llm.errors import PingError
from ping_llm.files import write_json
from ping_llm.rows import codec, inspect, plan
from ping_llm.rows.build import RowOptions, build
from ping_llm.rows.manifest import file_sha256, fingerprint, load_manifest, sealed, write_index
from ping_llm.rows.shard import WRITER_OPTIONS
from ping_llm.rows.store import RowStore
from ping_llm.rows.verify import verify


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    place = tmp_path_factory.mktemp("verify")
    write_measurements(place / "in.parquet", 2500, sources=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SMALL_PART_MEASUREMENTS", 1000)
        build([place / "in.parquet"], place / "rows")
    return place / "rows"


@pytest.fixture(autouse=True)
def _parts(monkeypatch):
    monkeypatch.setattr(plan, "SMALL_PART_MEASUREMENTS", 1000)


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "rows")


def test_a_good_folder(folder):
    found = verify(folder)
    assert found.problems == []
    assert (found.rows, found.measurements) == (len(RowStore(folder)), 2500)


def test_splits_are_verified_together(folder, tmp_path):
    write_measurements(tmp_path / "in.parquet", 1500)
    build([tmp_path / "in.parquet"], tmp_path / "split", RowOptions(split="probe:0.5,0.5"))
    found = verify(tmp_path / "split")
    assert (found.folders, found.measurements, found.problems) == (2, 1500, [])


def test_a_flipped_byte_anywhere_is_found_and_named(folder):
    """Every file, at places all over it: the message names the file."""
    rng = np.random.default_rng(0)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for where in {0, len(whole) - 1, *rng.integers(0, len(whole), 6).tolist()}:
            changed = bytearray(whole)
            changed[where] ^= 1 << rng.integers(8)
            path.write_bytes(changed)
            try:
                problems = verify(folder).problems
            except PingError as error:  # a manifest that cannot be read at all
                problems = [str(error)]
            assert problems, f"byte {where} of {path.name}"
            assert any(path.name in problem for problem in problems)
        path.write_bytes(whole)
    assert verify(folder).problems == []


def test_a_damaged_row_is_named(folder):
    """Flip a byte in the middle of a record: its number is said."""
    store = RowStore(folder)
    record = store.read_records([5])[0]
    shard = folder / store.manifest["shards"][0]["file"]
    data = bytearray(shard.read_bytes())
    data[data.index(record[600:700]) + 50] ^= 1
    shard.write_bytes(data)
    problems = "\n".join(verify(folder).problems)
    assert "checksum" in problems
    assert "row 5 " in problems


def rewrite(folder, change):
    """Forge a folder whose checksums are right and whose rows are not: `change` edits a block."""
    store = RowStore(folder)
    manifest = load_manifest(folder)
    shard = manifest["shards"][0]
    block = change(store.read(range(shard["rows"])))
    path = folder / shard["file"]
    writer = ArrayRecordWriter(str(path), WRITER_OPTIONS)
    for record in codec.encode(block):
        writer.write(record)
    writer.close()
    shard |= {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    index = store.index
    write_index(folder / "index.bin", [index])
    manifest["fingerprint"] = fingerprint(
        manifest["options"], [one["sha256"] for one in manifest["shards"]], manifest["index"]["sha256"]
    )
    write_json(folder / "manifest.json", sealed(manifest))


def swapped(block):
    row = int(np.argmax(np.diff(block.offsets)))
    at = block.offsets[row] + 1
    for column in (block.time, block.dst, block.rtt):
        column[[at, at + 1]] = column[[at + 1, at]].copy()
    return block


def other_rtt(block):
    block.rtt[3] += 1
    return block


def bad_rtt(block):
    block.rtt[3] = np.nan
    return block


def other_source(block):
    block.src[2, 15] ^= 1
    return block


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swapped, "not in order"),
        (other_rtt, "not those that were read from the input"),
        (bad_rtt, "breaks the rules"),
        (other_source, "source differs from the index"),
    ],
)
def test_wrong_rows_under_right_checksums(folder, change, says):
    rewrite(folder, change)
    assert says in "\n".join(verify(folder).problems)


def test_missing_and_strange_files(folder):
    shards = sorted(folder.glob("*.arrayrecord"))
    shards[1].rename(folder / "other.arrayrecord")
    problems = "\n".join(verify(folder).problems)
    assert f"{shards[1]}: it is missing" in problems
    assert "other.arrayrecord: it is not in the manifest" in problems


def test_inspection_adds_up(folder):
    store = RowStore(folder)
    found = inspect.inspect(store)
    block = store.read(range(len(store)))
    assert found.measurements == 2500 == sum(line[2] for line in found.histogram)
    assert found.rows == len(block) == sum(line[1] for line in found.histogram)
    assert found.sources == len({bytes(one) for one in block.src})
    assert found.largest_sources[0][2] == max(np.diff(block.offsets))
    assert all(0 <= one.packed <= one.alone < 1 for one in found.padding)


def test_the_commands(folder, tmp_path):
    """What the user sees: a summary, a row, a page, a verdict."""
    import ping_llm.cli.rows as commands

    if not any(group.name == "rows" for group in app.registered_groups):
        commands.register(app)
    run = CliRunner().invoke
    shown = run(app, ["rows", "inspect", str(folder), "--html", str(tmp_path / "page.html")])
    assert shown.exit_code == 0
    assert "2,500" in shown.stdout
    assert "largest sources" in shown.stdout
    assert "Largest sources" in (tmp_path / "page.html").read_text()
    row = json.loads(run(app, ["rows", "inspect", str(folder), "--row", "3", "--json"]).stdout)
    assert row["measurements"] == RowStore(folder).counts[3]
    verdict = run(app, ["rows", "verify", str(folder)])
    assert verdict.exit_code == 0
    assert "all as the manifest says" in verdict.stdout
    (folder / "index.bin").unlink()
    assert run(app, ["rows", "verify", str(folder)]).exit_code == 1
