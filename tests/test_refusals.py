"""A refused command changes nothing: every command that writes, with inputs and options that are wrong."""

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ping_llm import cli
from ping_llm.errors import PingError
from ping_llm.ingest.run import ingest
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.rows.build import build
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate
from ping_llm.splits.holdout import SplitOptions, write_held_out
from ping_llm.splits.options import ShardOptions
from ping_llm.splits.run import shard

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64)
WORLD = WorldOptions(measurements=2000, probes=20, targets=8, days=2)
ENDS = "--src 192.0.2.1 --dst 192.0.2.2"
NOWHERE = "--base-url http://127.0.0.1:9 --retries 0"

#: Every command that writes, with what it must refuse. `new` and `new/…` do not exist; `other` holds a file
#: of the user's; `picture.png` and `page.html` exist; the rest is what its name says.
REFUSED = {
    "simulate": (
        "new -n 0",
        "new --ipv6 2",
        "new --start yesterday",
        "world -n 50",
        "other -n 50",
        "new --days 0",
    ),
    "ingest": (
        "nothing --out new",
        "table.csv --out new --rtt some",
        "table.csv --out new --src 1.2.3",
        "table.csv --out ingested",
        "table.csv --out table.csv",
    ),
    "split": (
        "nothing --out new/deep",
        "words.txt --out new/deep",
        "broken.parquet --out new",
        "world --out new --by name",
        "world --out new --fractions 0.5,0.1",
        "world --out parts --by row",
        "world --out other",
        "world --out new --gap soon",
        "world --out new --by held-out --time 3",
        "table.csv --out other --by held-out",
        "world --out new --by held-out --gap 1h",
    ),
    "rows build": (
        "nothing --out new",
        "words.txt --out new/deep",
        "broken.parquet --out new",
        "world --out rows --group-by name",
        "world --out rows --max-row-mib 2",
        "table.csv --out rows",
        "world --out new --split probe:2,3",
        "world --out new --engine abacus",
        "world --out new --step dance",
        "world --out new --memory-limit 1",
    ),
    "rows inspect": ("nothing --html page.html", "rows --row -1 --html page.html", "world --html page.html"),
    "describe": ("nothing --html page.html", "words.txt --html page.html", "broken.parquet --html page.html"),
    "pretokenize": (
        "nothing --out new",
        "world --out new",
        "damaged --out new",
        "cut --out new",
        "rows --out new --length 0",
        "rows --out new --set colour=red",
    ),
    "fit": (
        "nothing --run new",
        "table.csv --run new",
        "words.txt --run new",
        "world --run new --minutes -1",
        "world --run new --config none",
        "world --run new --from nothing",
        "world --run new --from other",
        "world --run new --baselines magic",
        "world --run new --queries -1",
        "world --run new --world other",
        "world --run other",
        "table.csv --run new --traceroutes some",
    ),
    "train": (
        "none --rows rows --run new",
        "tiny --rows nothing --run new",
        "tiny --rows world --run new",
        "tiny --rows rows --run new steps=0",
        "tiny --rows rows --run new colour=red",
        "tiny --rows rows --run new --weights other",
        "tiny --rows rows --run new --minutes 0",
        "tiny --rows rows --run new --eval-rows world",
        "tiny --rows damaged --run new",
        "tiny --rows cut --run new",
        "tiny --rows rows --run new --eval-rows damaged",
        "tiny --rows rows --run table.csv",
    ),
    "runs plot": ("nothing --out picture.png", "other --out picture.png"),
    "runs report": ("nothing --out page.html", "other --out page.html", "nothing", "other"),
    "calibrate": (
        "nothing --data world",
        "other --data world",
        "model --data nothing",
        "model --data world --queries 0",
        "model --data world --time 3",
    ),
    "export": (
        "nothing --out new",
        "other --out new",
        "model --out new --to paper",
        "model --out table.csv",
    ),
    "evaluate": (
        "--data nothing --out new",
        "--data words.txt --out new/deep",
        "--data world",
        "--data world --out new --baselines magic",
        "--data world --out new --time 3",
        "--data world --out new --world other",
        "--data world --out new --answers answers.jsonl",
        "other --data world --out new",
        "nothing --data world --out new",
        "--data world --write-train other",
        "--data nothing --write-train new",
        "--data world --out table.csv --baselines global",
    ),
    "demo": ("--out other", "--out new --minutes -1"),
    "rank": ("model --src no --dst 192.0.2.2 --png picture.png", f"model {ENDS} --slo -1 --png picture.png"),
    "explain": ("model --src no --dst 192.0.2.2 --png picture.png", f"nothing {ENDS} --png picture.png"),
    "plan": ("model --budget 0 --png picture.png", "model --budget 1 --candidates nothing --png picture.png"),
    "matrix": (
        "nothing --src ends.txt --dst ends.txt --out new",
        "model --src nothing.txt --dst ends.txt --out new",
        "model --src words.txt --dst ends.txt --out new",
        "model --src ends.txt --dst ends.txt --out new --at later",
        "model --src ends.txt --dst ends.txt --out new --method magic",
        "model --src ends.txt --dst ends.txt --out other",
    ),
    "watch": (
        "nothing stream.jsonl --state new",
        "model nothing --state new",
        "model stream.jsonl --state new --false-alarms-per-day 0",
        "model stream.jsonl --state new --refresh 0",
        "model stream.jsonl --state table.csv",
        "model stream.jsonl --state new --webhook ftp://192.0.2.1",
    ),
    "fetch atlas": (
        f"--msm no --start 2024-01-01 --stop 2024-01-02 --out new {NOWHERE}",
        f"--msm 1001 --start 2024-01-02 --stop 2024-01-01 --out new {NOWHERE}",
        f"--msm 1001 --start 2024-01-01 --stop 2024-01-02 --out new --key-file nothing {NOWHERE}",
        f"--msm 1001 --start 2024-01-01 --stop 2024-01-02 --out new --window 0 {NOWHERE}",
        f"--msm 1001 --start 2024-01-01 --stop 2024-01-02 --out table.csv {NOWHERE}",
    ),
    "fetch dump": (f"2024-99 --out new {NOWHERE}", f"2024-01-01T00 --out new --kind dances {NOWHERE}"),
    "fetch probes": (f"--out new --key-file nothing {NOWHERE}", f"--out table.csv/x {NOWHERE}"),
    "query rtt": (
        "model --src no --dst 192.0.2.2 --png picture.png",
        "model --pairs nothing --png picture.png",
    ),
    "query complete": (
        "model --src 192.0.2.1 --dst no --png picture.png",
        "model --src 192.0.2.1 --dst 192.0.2.? --top 0 --png picture.png",
    ),
    "query inverse": (
        "model --src 192.0.2.1 --rtt no --png picture.png",
        "model --src 192.0.2.1 --rtt 5-1 --png picture.png",
    ),
    "query score": ("model nothing --png picture.png", "model words.txt --png picture.png"),
    "query generate": (
        "model --src no --png picture.png",
        "model --src 192.0.2.1 --measurements 0 --png picture.png",
    ),
}

#: Commands that only read, serve, or measure in a temporary folder.
READING = (
    "doctor", "rejects", "runs watch", "sample", "rows verify", "tokens show", "batches show",
    "batches stats", "batches profile", "compare", "serve", "mcp",
)  # fmt: skip


def commands(command, path=()) -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))
    if not getattr(command, "commands", None):
        yield " ".join(path)


@pytest.fixture(scope="module")
def program():
    for command in cli._COMMANDS:
        module, _, name = command.partition(":")
        register = getattr(
            importlib.import_module(f"ping_llm.cli.{module}"), f"register_{name}" if name else "register"
        )
        register(cli.app)
    return typer.main.get_command(cli.app)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("refusals")
    simulate(place / "world", WORLD)
    ingest([str(place / "world")], place / "ingested", workers=1)
    shard([str(place / "world")], place / "parts", ShardOptions(by="probe", shards=10))
    write_held_out([str(place / "world")], place / "held", SplitOptions())
    build([place / "world"], place / "rows")
    for name, file in (("damaged", "index.bin"), ("cut", "*.arrayrecord")):
        shutil.copytree(place / "rows", place / name)
        damaged = next((place / name).glob(file))
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content if name == "damaged" else content[:-1])
    export.write(CONFIG, random_tensors(CONFIG), {}, place / "model")
    (place / "other").mkdir()
    for name in ("other/file.txt", "picture.png", "page.html", "answers.jsonl"):
        (place / name).write_text("precious")
    (place / "words.txt").write_text("neither an address\nnor a measurement\n")
    (place / "ends.txt").write_text("192.0.2.1\n192.0.2.2\n")
    (place / "table.csv").write_text(
        "event_time,src_addr,dst_addr,rtt\n2024-05-01T12:00:00Z,192.0.2.1,192.0.2.2,10\n"
    )
    (place / "stream.jsonl").write_text(
        '{"src_addr": "192.0.2.1", "dst_addr": "192.0.2.2", "event_time": 1714564800, "rtt": 23.4}\n'
    )
    whole = next((place / "world").rglob("*.parquet")).read_bytes()
    (place / "broken.parquet").write_bytes(whole[: len(whole) // 2] + whole[-100:])
    return place


@pytest.fixture
def place(prepared, monkeypatch) -> Iterator[Path]:
    """The folder; what a failed test leaves there does not make the next one fail."""
    kept = {path.name for path in prepared.iterdir()}
    monkeypatch.chdir(prepared)
    yield prepared
    for path in prepared.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def state(place: Path) -> dict[str, tuple[int, bytes] | None]:
    """Every file with the time of its last change and its bytes, and every folder."""
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else None
        for path in place.rglob("*")
    }


def test_every_command_is_here(program):
    known = [*REFUSED, *READING]
    found = [name for name in commands(program) if not name.startswith("bench ")]
    assert sorted(found) == sorted(known), "a command that writes needs a line in REFUSED, others in READING"


@pytest.mark.parametrize(
    ("command", "words"), [(name, words) for name, cases in REFUSED.items() for words in cases]
)
def test_a_refused_command_changes_nothing(command, words, program, place):
    before = state(place)
    with pytest.raises((PingError, OSError, SystemExit)) as refused:
        program([*command.split(), *words.split()], prog_name="ping-llm")
    assert not isinstance(refused.value, SystemExit) or refused.value.code != 0
    after = state(place)
    assert sorted(after) == sorted(before)
    assert [name for name in before if before[name] != after[name]] == []
