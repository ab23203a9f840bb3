"""gs:// places, against a stand-in for Google Cloud Storage that cuts connections and refuses requests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google_store import serving
from store_trips import from_store_to_store, keep_copies_in, program

#: In a process of its own (see google_store), with shorter pauses: what a place holds, or the error.
FETCH = """
import sys
from pathlib import Path
from ping_llm import stores
from ping_llm.errors import PingError
from ping_llm.ingest.options import find_files
stores.PAUSE_S, stores._BLOCK, stores._GS_RETRIES_S = 0.001, 100_000, float(sys.argv[2])
try:
    print(*find_files([str(stores.fetch(sys.argv[1]))]), sep="\\n")
except PingError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    keep_copies_in(tmp_path / "cache", monkeypatch)
    with serving() as made:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", made.url)
        yield made


def fetched(place: str, retries_s: float = 0.2) -> dict[str, bytes]:
    """The files of a place by their names."""
    done = subprocess.run(
        [sys.executable, "-c", FETCH, place, str(retries_s)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {Path(name).name: Path(name).read_bytes() for name in done.stdout.split()}


def refusal(place: str, retries_s: float = 0.2) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FETCH, place, str(retries_s)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_prefixes_objects_and_patterns(store):
    for name in ("a.csv", "b.csv", "b.txt", "deep/d.csv"):
        store.put(f"bucket/pings/{name}", name.encode())
    store.put("bucket/pings-other/c.csv", b"other")
    everything = {"a.csv": b"a.csv", "b.csv": b"b.csv", "b.txt": b"b.txt", "d.csv": b"deep/d.csv"}
    assert fetched("gs://bucket/pings/") == everything
    store.ranges.clear()
    assert fetched("gs://bucket/pings") == everything
    assert not store.ranges  # nothing has changed, so nothing is read again
    store.put("bucket/pings/a.csv", b"new", 1_700_000_000)
    del store.objects["bucket/pings/deep/d.csv"]
    assert fetched("gs://bucket/pings") == {"a.csv": b"new", "b.csv": b"b.csv", "b.txt": b"b.txt"}
    assert fetched("gs://bucket/pings/b.txt") == {"b.txt": b"b.txt"}
    assert list(fetched("gs://bucket/pings/*.csv")) == ["a.csv", "b.csv"]
    assert "gs://bucket/nothing has no objects" in refusal("gs://bucket/nothing")


def test_a_cut_connection_is_continued(store):
    content = os.urandom(3_000_000)
    store.put("bucket/large", content)
    store.cut = 3
    assert fetched("gs://bucket/large") == {"large": content}
    assert store.cut == 0

    assert max(store.ranges) > len(content) // 4  # Google's client continues by itself


def test_a_store_that_refuses_for_a_while_and_one_that_does_not_stop(store):
    store.put("bucket/key", b"content")
    store.refused = 1
    assert fetched("gs://bucket/key", retries_s=10) == {"key": b"content"}
    store.put("bucket/key", b"changed", 1_700_000_000)
    store.refused = 1_000_000
    assert "cannot look at gs://bucket/key: " in refusal("gs://bucket/key")
    store.refused = 0
    assert fetched("gs://bucket/key") == {"key": b"changed"}


def test_from_store_to_store(store):
    """The last file is first known when all others are there."""
    from_store_to_store(store, "gs://bucket")
    begun = [path for method, path in store.requests if method == "POST" and "name=rows" in path]
    assert begun[-1].endswith("name=rows%2Fmanifest.json")
    again = program("ingest", "gs://bucket/table", "--out", "gs://bucket/raw")
    assert "gs://bucket/raw has objects already" in again.stderr
