"""Disturb every command that writes: kill -9, a full disk, a second writer, a read-only folder.

    make chaos                                      # 100 kills, everything below runs/chaos
    .venv/bin/python scripts/chaos.py DIR --kills 20

Each command runs undisturbed once. Then it is disturbed, and run again until it ends by itself: the result
must be the same, byte for byte where the command is deterministic, and whatever failed in between must have
ended with a sentence. Downloads come from a server on loopback, and a watch reads a file that grows. Small
disks and read-only folders are mounts of tmpfs, which only root can make. Results are kept in DIR/chaos.json:
run again, only what is missing is done. Exits with 1 if anything differs.
"""

import argparse
import bz2
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
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

#: Two small layers: all that a large training does, in seconds, with a checkpoint at every third step.
_SMALL = {
    "network_batch_size": 4, "max_target_length": 128, "base_num_decoder_layers": 2, "base_emb_dim": 32,
    "base_mlp_dim": 64, "base_num_query_heads": 2, "base_num_kv_heads": 2, "head_dim": 16,
    "checkpoint_period": 3, "max_num_checkpoints_to_keep": 10,
}  # fmt: skip
_STEPS = {"steps": 12, "learning_rate_schedule_steps": 12}
_MINUTES = {"lr_schedule_type": "wsd", "wsd_decay_steps_fraction": 0.5, "warmup_steps_fraction": 0.34,
            "learning_rate_schedule_steps": -1}  # fmt: skip

#: Seconds within which a command must end: the longest, a fit, takes 40 on two busy cores.
_LIMIT = 600


@dataclass(frozen=True)
class Subject:
    """A command that writes into one folder.

    Attributes:
      words: its command line for an output folder.
      outcome: what must be the same in the end, of that folder.
      weight: its share of the kills.
      growing: the file that it reads while it grows, if it does: then it waits for more until it is killed.
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
        """Append until so much of the content is there; what is there stays."""
        have, wanted = self.path.stat().st_size, int(share * len(self._content))
        with self.path.open("ab") as file:
            file.write(self._content[have:wanted])


def subjects(base: Path, atlas: AtlasServer) -> dict[str, Subject]:
    """Every command, with inputs that `prepare` made below `base`, and a server."""
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
    """Results and dumps, sent slowly enough for a kill to come in between."""
    atlas, chance = AtlasServer(), random.Random(0)
    for hour in _DUMPS:
        path = f"{hour.partition('T')[0]}/ping-{hour}00.bz2"
        atlas.dumps[path] = bz2.compress(chance.randbytes(2_000_000))
    atlas.sent = lambda total: time.sleep(0.001)
    return atlas


def prepare(base: Path) -> None:
    """Simulated measurements, raw and as a table, probe rows, a model, and the config of a short fit."""
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
    """A run of random weights with a stack, and a stream by time, with lines that are no results."""
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
    """What a training records, without its times, and the weights that it exports."""
    timed = ("seconds", "data_wait_s", "time")
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    told = [{key: value for key, value in record.items() if key not in timed} for record in records]
    return [digest(json.dumps(told).encode()), digest((run / "export" / "model.safetensors").read_bytes())]


def fitted(run: Path) -> Any:
    """A fit stops by the clock, so its weights are its own: its data are the same, and it can be asked."""
    answer = [PROGRAM, "query", "rtt", str(run), "--src", "192.0.2.1", "--dst", "192.0.2.2", "--json"]
    asked = subprocess.run(answer, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["method"] == "stack"
    assert (run / "report" / "report.html").stat().st_size
    return [all_bytes(run / "measurements"), all_bytes(run / "rows"), all_bytes(run / "train-rows")]


def downloads(out: Path) -> Any:
    """Every file, and what is recorded of it; the port of the server is another in every run."""
    record = json.loads((out / ".fetch.json").read_bytes())
    return [all_bytes(out) | {".fetch.json": ""}, record["files"]]


def told(state: Path) -> dict[str, str]:
    """What a watch has written of the stream: results, alarms and rejects. Nothing is left aside."""
    assert not list(state.glob(".*.part"))
    return {path.name: digest(path.read_bytes()) for path in sorted(state.glob("*.jsonl"))}


class Chaos:
    """The trials of one folder, and what came of them."""

    def __init__(self, base: Path, only: list[str], kills: int, seed: int, atlas: AtlasServer):
        self.base, self.seed = base, seed
        self.path = base / "chaos.json"
        known = subjects(base, atlas)
        if unknown := set(only) - set(known):
            raise SystemExit(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
        self.subjects = {name: one for name, one in known.items() if not only or name in only}
        total = sum(subject.weight for subject in self.subjects.values())
        self.kills = {name: round(kills * one.weight / total) for name, one in self.subjects.items()}
        self.kills[next(iter(self.kills))] += kills - sum(self.kills.values())
        self.done: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def run(self) -> bool:
        for name, subject in self.subjects.items():
            for trial in (self.undisturbed, self.killed, self.two_writers, self.full_disk, self.read_only):
                known = self.done.setdefault(name, {})
                if trial.__name__ in known:
                    continue
                started = time.monotonic()
                out = self.base / "out" / name.replace(" ", "-")
                out.parent.mkdir(parents=True, exist_ok=True)
                self._clear(subject, out)
                known[trial.__name__] = trial(name, subject, out)
                self.path.write_text(json.dumps(self.done, indent=1))
                shown = {key: value for key, value in known[trial.__name__].items() if key != "outcome"}
                say(f"{name}: {trial.__name__}: {shown} ({time.monotonic() - started:.0f} s)")
        return all(part.get("ok", True) for known in self.done.values() for part in known.values())

    def undisturbed(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        self._finish(subject, out)  # compiles kernels where no process has before
        self._clear(subject, out)
        started = time.monotonic()
        self._finish(subject, out)
        return {"seconds": round(time.monotonic() - started, 2), "outcome": subject.outcome(out),
                "bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file())}  # fmt: skip

    def killed(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        """kill -9 at random moments of consecutive tries, then a try that ends."""
        chance = random.Random(f"{self.seed} {name}")
        kills = wrong = finished = tries = 0
        seconds = self.done[name]["undisturbed"]["seconds"]
        while kills < self.kills[name] and tries < 10 * self.kills[name]:
            tries += 1
            follow = ["--follow"] if subject.growing else []
            process = start([*subject.words(out), *follow])
            ends = time.monotonic() + chance.uniform(0.2, 1.0) * seconds
            while process.poll() is None and (left := ends - time.monotonic()) > 0:
                if subject.growing:
                    # Over all tries the file comes to its end.
                    subject.growing.grow((kills + 1 - left / seconds) / self.kills[name])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(left, 0.1) if subject.growing else left)
            process.send_signal(signal.SIGKILL)
            errors = ended(process)
            if process.returncode == -signal.SIGKILL:
                kills += 1
                continue
            # It was done before the kill: compare, and start anew.
            finished += 1
            wrong += process.returncode != 0 or not self._same(name, subject, out)
            if process.returncode:
                say(f"{name}: {errors[-500:]}")
            self._clear(subject, out)
        self._finish(subject, out)
        wrong += not self._same(name, subject, out)
        return {"kills": kills, "ended_before": finished, "wrong": wrong, "ok": not wrong}

    def two_writers(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        """Two at once: each ends with the whole result, or with the sentence about the other."""
        if subject.growing:
            subject.growing.grow(1.0)
        both = [start(subject.words(out)) for _ in range(2)]
        ends = [(ended(process), process.returncode) for process in both]
        said = [
            code == 0 or (is_sentence(errors) and "is being written by" in errors) for errors, code in ends
        ]
        refused = sum(code != 0 for _, code in ends)
        if not all(said):
            say(f"{name}: {ends}")
        self._finish(subject, out)
        return {"refused": refused, "ok": all(said) and refused < 2 and self._same(name, subject, out)}

    def full_disk(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        """Disks of a tenth and of three quarters of what is needed, then room."""
        needed = self.done[name]["undisturbed"]["bytes"]
        refused, ok = 0, True
        for share in (0.1, 0.75):
            with Disk(out.parent / "disk", max(int(needed * share), 8192)) as disk:
                if not disk.mounted:
                    return {"skipped": disk.why}
                there = disk.folder / out.name
                self._clear(subject, there)
                if subject.growing:
                    subject.growing.grow(1.0)
                process = start(subject.words(there))
                errors = ended(process)
                refused += process.returncode != 0
                if process.returncode and not is_sentence(errors):
                    say(f"{name}: {errors[-800:]}")
                    ok = False
                disk.remount("size=4g")
                self._finish(subject, there)
                ok &= self._same(name, subject, there)
        return {"disks": 2, "refused": refused, "ok": ok}

    def read_only(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        with Disk(out.parent / "disk", 64 << 20) as disk:
            if not disk.mounted:
                return {"skipped": disk.why}
            disk.remount("ro")
            process = start(subject.words(disk.folder / out.name))
            errors = ended(process)
            if not is_sentence(errors):
                say(f"{name}: {errors[-800:]}")
            return {"ok": process.returncode == 1 and is_sentence(errors)}

    def _clear(self, subject: Subject, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        if subject.growing:
            subject.growing.anew()

    def _finish(self, subject: Subject, out: Path) -> None:
        if subject.growing:
            subject.growing.grow(1.0)
        process = start(subject.words(out))
        errors = ended(process)
        if process.returncode:
            raise SystemExit(f"{' '.join(subject.words(out))} failed undisturbed:\n{errors[-2000:]}")

    def _same(self, name: str, subject: Subject, out: Path) -> bool:
        same = json.loads(json.dumps(subject.outcome(out))) == self.done[name]["undisturbed"]["outcome"]
        if not same:
            say(f"{name}: DIFFERENT from the undisturbed run; kept as {keep(out)}")
        return same

    def table(self) -> str:
        lines = ["| command | kill -9 | same result | two at once | full disk | read-only folder |",
                 "|---|---|---|---|---|---|"]  # fmt: skip
        for name, known in self.done.items():
            killed = known["killed"]
            cells = [f"`{name}`", str(killed["kills"]), _verdict(killed)]
            lines.append(f"| {' | '.join([*cells, *(_verdict(known[key]) for key in _LATER)])} |")
        kills = sum(known["killed"]["kills"] for known in self.done.values())
        return "\n".join([*lines, f"| all | {kills} | | | | |"])


_LATER = ("two_writers", "full_disk", "read_only")


def _verdict(part: dict[str, Any]) -> str:
    return "not run" if "skipped" in part else "yes" if part["ok"] else "NO"


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path, size: int):
        self.folder, self._size, self.mounted, self.why = folder, size, False, ""

    def __enter__(self) -> "Disk":
        self.folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.mounted, self.why = done.returncode == 0, done.stderr.strip()
        return self

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.folder)], check=True)

    def __exit__(self, *_: object) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it has said until its end; the whole ends in bounded time, even where one command hangs."""
    try:
        return process.communicate(timeout=_LIMIT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{process.communicate()[1]}\nchaos: {process.args} had not ended after {_LIMIT} s"


def is_sentence(errors: str) -> bool:
    """Whether a failure ended with our sentence, and with nothing that is not for users."""
    last = errors.strip().splitlines()[-1:] or [""]
    return last[0].startswith("ping-llm: ") and "unexpected" not in errors and "Traceback" not in errors


def keep(out: Path) -> Path:
    kept = out.with_name(f"{out.name}-different-{time.time_ns()}")
    shutil.copytree(out, kept)
    return kept


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Disturb every command that writes.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/chaos"))
    parser.add_argument("--kills", type=int, default=100, help="Number of kill -9 in all.")
    parser.add_argument("--only", default="", help="Commands to disturb, with commas: ingest,watch.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed of the moments.")
    options = parser.parse_args()
    base = options.folder.resolve()
    prepare(base)
    with served().running() as atlas:
        only = [name for name in options.only.split(",") if name]
        chaos = Chaos(base, only, options.kills, options.seed, atlas)
        good = chaos.run()
    print(chaos.table())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
