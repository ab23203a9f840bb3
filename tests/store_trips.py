"""What the tests of all object stores share: a cache for copies, and a way from a store to the store."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ping_llm.files import cache_folder


def keep_copies_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of one test, with the kernels that are there: to compile them anew takes 15 s."""
    (folder / "ping-llm").mkdir(parents=True)
    (folder / "ping-llm" / "kernels").symlink_to(cache_folder("kernels") or folder / "kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def program(*words: str) -> subprocess.CompletedProcess[str]:
    name = str(Path(sys.executable).with_name("ping-llm"))
    return subprocess.run([name, *words], capture_output=True, text=True, check=False)


def from_store_to_store(store: Any, bucket: str) -> None:
    """Ingest pings of a bucket to a table there, build rows of the table there, and verify them."""
    lines = ["src_addr,dst_addr,event_time,rtt"]
    lines += [f"192.0.2.{n % 9},198.51.100.{n % 7},{1_600_000_000 + 60 * n},{10 + n}" for n in range(50)]
    store.put("bucket/raw/pings.csv", "\n".join(lines).encode())
    store.cut = 1
    done = program("ingest", f"{bucket}/raw", "--out", f"{bucket}/table", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"]["measurements"] == 50
    assert any(name.endswith("part-0.parquet") for name in store.names("bucket/table/"))
    built = program("rows", "build", f"{bucket}/table", "--out", f"{bucket}/rows", "--json")
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["measurements"] == 50
    assert program("rows", "verify", f"{bucket}/rows").returncode == 0
