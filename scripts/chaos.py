"""Test every command that writes under kill -9, a full disk, a second writer and a read-only folder.

    make chaos                                      # 100 kills, everything below runs/chaos
    .venv/bin/python scripts/chaos.py DIR --kills 20

Each command runs undisturbed once. Then it is disturbed, and run again until it ends by itself: the result
must be the same, byte for byte if the command is deterministic, and every failure in between must end with an
error sentence. Downloads come from a server on loopback, and a watch reads a file that grows. Small disks and
read-only folders are mounts of tmpfs, which only root can make. Results are kept in DIR/chaos.json: a second
run does only missing trials. Exits with 1 if anything differs.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chaos_subjects import PROGRAM, AtlasServer, Subject, prepare, served, subjects

#: Time limit of a command, s: the longest, a fit, takes 40 on two busy cores.
_LIMIT = 600


class Chaos:
    """The trials of one folder, and their results."""

    def __init__(self, base: Path, only: list[str], kills: int, seed: int, atlas: AtlasServer):
        self.base, self.seed = base, seed
        self.path = base / "chaos.json"
        known = subjects(base, atlas)
        if unknown := set(only) - set(known):
            raise SystemExit(f"--only {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
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
        self._finish(subject, out)  # compiles kernels that no process has compiled yet
        self._clear(subject, out)
        started = time.monotonic()
        self._finish(subject, out)
        return {"seconds": round(time.monotonic() - started, 2), "outcome": subject.outcome(out),
                "bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file())}  # fmt: skip

    def killed(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        """Kill -9 consecutive tries at random moments, then let one end."""
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
                    # Over all kills the file grows to its full size.
                    subject.growing.grow((kills + 1 - left / seconds) / self.kills[name])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(left, 0.1) if subject.growing else left)
            process.send_signal(signal.SIGKILL)
            errors = ended(process)
            if process.returncode == -signal.SIGKILL:
                kills += 1
                continue
            # It ended before the kill: compare, and start again.
            finished += 1
            wrong += process.returncode != 0 or not self._same(name, subject, out)
            if process.returncode:
                say(f"{name}: {errors[-500:]}")
            self._clear(subject, out)
        self._finish(subject, out)
        wrong += not self._same(name, subject, out)
        return {"kills": kills, "ended_before": finished, "wrong": wrong, "ok": not wrong}

    def two_writers(self, name: str, subject: Subject, out: Path) -> dict[str, Any]:
        """Run two at once: each must end with the whole result, or with the error about the other writer."""
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
        """Run on disks of 10 % and 75 % of the needed size, then with enough space."""
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
    """A small file system, mounted as tmpfs."""

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
    """Wait for the end of a process and return its stderr; one that hangs is killed after `_LIMIT`."""
    try:
        return process.communicate(timeout=_LIMIT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{process.communicate()[1]}\nchaos: {process.args} had not ended after {_LIMIT} s"


def is_sentence(errors: str) -> bool:
    """Whether a failure ended with an error sentence, without a traceback or other text not for users."""
    last = errors.strip().splitlines()[-1:] or [""]
    return last[0].startswith("ping-llm: ") and "unexpected" not in errors and "Traceback" not in errors


def keep(out: Path) -> Path:
    kept = out.with_name(f"{out.name}-different-{time.time_ns()}")
    shutil.copytree(out, kept)
    return kept


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("runs/chaos"), help="Folder of the trials."
    )
    parser.add_argument("--kills", type=int, default=100, help="Total number of kill -9.")
    parser.add_argument("--only", default="", help="Commands to test, separated by commas: ingest,watch.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed of the times of the kills.")
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
