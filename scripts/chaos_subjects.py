"""Commands that `chaos.py` disturbs: all that write, with inputs and the outcome that must be the same."""

import bz2
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from ping_llm.measurements.columns import Columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fetch"))

from atlas_server import AtlasServer

PROGRAM = str(Path(sys.executable).with_name("ping-llm"))

#: Overrides for two small layers: a training in seconds, with a checkpoint at every third step.
_SMALL = {
    "network_batch_size": 4, "max_target_length": 128, "base_num_decoder_layers": 2, "base_emb_dim": 32,
    "base_mlp_dim": 64, "base_num_query_heads": 2, "base_num_kv_heads": 2, "head_dim": 16,
    "checkpoint_period": 3, "max_num_checkpoints_to_keep": 10,
}  # fmt: skip
_STEPS = {"steps": 12, "learning_rate_schedule_steps": 12}
_MINUTES = {"lr_schedule_type": "wsd", "wsd_decay_steps_fraction": 0.5, "warmup_steps_fraction": 0.34,
            "learning_rate_schedule_steps": -1}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A command that writes into one folder.

    Attributes:
      words: its command line for an output folder.
      outcome: the content of that folder that must be the same in the end.
      weight: its share of the kills.
      growing: the growing file that it reads, if any: then it waits for more until it is killed.
    """

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], Any]
    weight: int
    growing: "Growing | None" = None


class Growing:
    """A file that is written while it is read, in pieces that end within lines."""

    def __init__(self, path: Path, content: bytes):
        self.path, self._content = path, content

    def anew(self) -> None:
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(b"")

    def grow(self, share: float) -> None:
        """Append until the file has this share of the content."""
        have, wanted = self.path.stat().st_size, int(share * len(self._content))
        with self.path.open("ab") as file:
            file.write(self._content[have:wanted])


def subjects(base: Path, atlas: AtlasServer) -> dict[str, Subject]:
    """Return every command, with inputs that `prepare` made below `base`, and a server."""
    table, rows = str(base / "table"), str(base / "rows-in")
    config = [f"{key}={value}" for key, value in (_SMALL | _STEPS).items()]
    growing = Growing(base / "growing.jsonl", (base / "stream.jsonl").read_bytes())
    evaluation = ["--queries", "60", "--baselines", "global,last,recent,by source,prefixes"]
    return {
        "ingest": Subject(
            lambda out: ["ingest", str(base / "in"), "--out", str(out), "--workers", "2"], all_bytes, 18
        ),
        "split": Subject(lambda out: ["split", table, "--out", str(out), "--shards", "12"], all_bytes, 16),
        "split --by held-out": Subject(
            lambda out: ["split", table, "--out", str(out), "--by", "held-out"], all_bytes, 10
        ),
        "rows build": Subject(lambda out: ["rows", "build", table, "--out", str(out)], all_bytes, 16),
        "evaluate": Subject(
            lambda out: ["evaluate", "--data", table, "--out", str(out), *evaluation],
            lambda out: digest((out / "report.json").read_bytes()),
            12,
        ),
        "export": Subject(lambda out: ["export", str(base / "model"), "--out", str(out)], all_bytes, 10),
        "train": Subject(
            lambda out: ["train", "tiny", *config, "--rows", rows, "--run", str(out)], learnt, 12
        ),
        "fit": Subject(
            lambda out: ["fit", str(base / "in" / "part-0.csv"), "--run", str(out), "--minutes", "0.02",
                         "--queries", "20", "--baselines", "last,recent",
                         "--config", str(base / "small.yml")],
            fitted,
            6,
        ),
        "fetch atlas": Subject(
            lambda out: ["fetch", "atlas", "--msm", "1001,1004", "--start", "2024-05-01",
                         "--stop", "2024-05-06", "--window", "5", "--out", str(out), "--base-url", atlas.url],
            downloads,
            8,
        ),
        "fetch dump": Subject(
            lambda out: ["fetch", "dump", *_DUMPS, "--out", str(out), "--base-url", atlas.url], downloads, 8
        ),
        "watch": Subject(
            lambda out: ["watch", str(base / "watched"), str(growing.path), "--no-data", "--state", str(out)],
            told,
            10,
            growing,
        ),
    }  # fmt: skip


_DUMPS = ("2024-05-01T07", "2024-05-01T08")


def served() -> AtlasServer:
    """Return a server of results and dumps, slow enough for kills during a download."""
    atlas, chance = AtlasServer(), random.Random(0)
    for hour in _DUMPS:
        path = f"{hour.partition('T')[0]}/ping-{hour}00.bz2"
        atlas.dumps[path] = bz2.compress(chance.randbytes(2_000_000))
    atlas.sent = lambda total: time.sleep(0.001)
    return atlas


def prepare(base: Path) -> None:
    """Make simulated measurements, raw and as a table, probe rows, a model, and the config of a short fit."""
    if (base / "small.yml").exists():
        return
    base.mkdir(parents=True, exist_ok=True)
    from ping_llm.ingest.run import ingest
    from ping_llm.measurements.parquet import read_measurements
    from ping_llm.model import export
    from ping_llm.model.config import ModelConfig
    from ping_llm.model.random import random_tensors
    from ping_llm.rows.build import build
    from ping_llm.simulate import WorldOptions, simulate
    from ping_llm.train import settings

    simulate(base / "world", WorldOptions(measurements=60_000, probes=200, targets=30, days=6))
    world = read_measurements(base / "world")
    made = world.to_arrow()
    (base / "in").mkdir(exist_ok=True)
    for part in range(12):
        rows = made.slice(part * 5_000, 5_000).to_pylist()
        lines = [
            f"{row['event_time'].timestamp()},{row['src_addr']},{row['dst_addr']},{row['rtt']}"
            for row in rows
        ]
        (base / "in" / f"part-{part}.csv").write_text("\n".join(["time,src,dst,rtt", *lines]) + "\n")
    ingest([str(base / "in")], base / "table")
    build([str(base / "table")], base / "rows-in")
    config = ModelConfig(layers=4, width=256, heads=4, kv_heads=2, head_dim=64, mlp_width=512, max_length=256)
    export.write(config, random_tensors(config), {}, base / "model")
    prepare_watch(base, world.take(slice(5_000)), made.slice(5_000))
    keys = _SMALL | _MINUTES
    tiny = settings.find("tiny").read_text().splitlines()
    lines = [line for line in tiny if line.partition(":")[0] not in {*keys, "steps"}]
    lines += [f"{key}: {value}" for key, value in keys.items()]
    (base / "small.yml").write_text("\n".join(lines) + "\n")


def prepare_watch(base: Path, train: "Columns", stream: "pa.Table") -> None:
    """Make a run of random weights with a stack, and a stream by time, with lines that are no results."""
    from ping_llm.fit.calibrate import calibrate_columns
    from ping_llm.model import export
    from ping_llm.model.config import ModelConfig
    from ping_llm.model.random import random_tensors
    from ping_llm.splits.holdout import SplitOptions

    config = ModelConfig(layers=2, width=32, heads=2, kv_heads=1, head_dim=16, mlp_width=48, max_length=256)
    export.write(config, random_tensors(config), {}, base / "watched" / "export")
    options = SplitOptions(0.8, 0.15, 0.2, 0.2, 2)
    calibrate_columns(base / "watched", train, options, 40, ("prefixes", "pair recent"))
    rows = stream.sort_by("event_time").to_pylist()
    # Ten sources with about 2,700 results: a watch of half a minute, which saves its state every ten seconds.
    sources = sorted({row["src_addr"] for row in rows})[:10]
    lines = []
    for number, row in enumerate(row for row in rows if row["src_addr"] in sources):
        row["event_time"] = row["event_time"].timestamp()
        lines.append(json.dumps({name: row[name] for name in ("src_addr", "dst_addr", "event_time", "rtt")}))
        if number % 500 == 250:
            lines.append(f"garbage {number}")
    (base / "stream.jsonl").write_text("\n".join(lines) + "\n")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def all_bytes(out: Path) -> dict[str, str]:
    return {
        str(path.relative_to(out)): digest(path.read_bytes())
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def learnt(run: Path) -> Any:
    """Return digests of a training's records without times, and of its exported weights."""
    timed = ("seconds", "data_wait_s", "time")
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    told = [{key: value for key, value in record.items() if key not in timed} for record in records]
    return [digest(json.dumps(told).encode()), digest((run / "export" / "model.safetensors").read_bytes())]


def fitted(run: Path) -> Any:
    """Return the data of a fit, which must answer a query. It stops by the clock, so its weights differ."""
    answer = [PROGRAM, "query", "rtt", str(run), "--src", "192.0.2.1", "--dst", "192.0.2.2", "--json"]
    asked = subprocess.run(answer, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["method"] == "stack"
    assert (run / "report" / "report.html").stat().st_size
    return [all_bytes(run / "measurements"), all_bytes(run / "rows"), all_bytes(run / "train-rows")]


def downloads(out: Path) -> Any:
    """Return every file and its record, without the port of the server, which differs in every run."""
    record = json.loads((out / ".fetch.json").read_bytes())
    return [all_bytes(out) | {".fetch.json": ""}, record["files"]]


def told(state: Path) -> dict[str, str]:
    """Return what a watch wrote of the stream: results, alarms and rejects. No partial file may be left."""
    assert not list(state.glob(".*.part"))
    return {path.name: digest(path.read_bytes()) for path in sorted(state.glob("*.jsonl"))}
