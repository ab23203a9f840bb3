"""Object stores, against a stand-in for S3 that cuts connections and refuses requests."""

import os
from pathlib import Path

import pytest
from object_store import serving
from store_trips import from_store_to_store, keep_copies_in, program

from ping_llm import stores
from ping_llm.errors import PingError, UsageError
from ping_llm.ingest.options import find_files


@pytest.fixture
def store(tmp_path, monkeypatch):
    keep_copies_in(tmp_path / "cache", monkeypatch)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setattr(stores, "PAUSE_S", 0.001)
    with serving() as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


def _bodies(store):
    return [path for method, path in store.requests if method == "GET" and "list-type" not in path]


def test_what_is_not_remote():
    for word in ("data/s3", "s3", "s3:", "/s3:/x", "http://host/x", "C:/x", "steps=5"):
        assert not stores.is_remote(word)
    assert stores.is_remote("s3://bucket/key")
    assert stores.is_remote(Path("gs://bucket/key"))  # which pathlib makes gs:/bucket/key


def test_a_prefix_is_copied_and_copied_again_only_where_it_changed(store):
    store.put("bucket/pings/a.csv", b"one")
    store.put("bucket/pings/deep/b.csv", b"two")
    store.put("bucket/other/c.csv", b"three")
    folder = stores.fetch("s3://bucket/pings/")
    files = {Path(name).relative_to(folder).as_posix(): name for name in find_files([str(folder)])}
    assert {part: Path(name).read_bytes() for part, name in files.items()} == {
        "a.csv": b"one",
        "deep/b.csv": b"two",
    }
    store.requests.clear()
    assert stores.fetch("s3://bucket/pings") == folder
    assert _bodies(store) == []
    store.put("bucket/pings/a.csv", b"new", 1_700_000_000)
    del store.objects["bucket/pings/deep/b.csv"]
    stores.fetch("s3://bucket/pings")
    assert _bodies(store) == ["/bucket/pings/a.csv"]
    assert [Path(name).read_bytes() for name in find_files([str(folder)])] == [b"new"]


def test_an_object_and_a_pattern(store):
    for name in ("a.csv", "b.csv", "b.txt", "deep/d.csv"):
        store.put(f"bucket/pings/{name}", name.encode())
    one = stores.fetch("s3://bucket/pings/b.txt")
    assert one.read_bytes() == b"b.txt"
    pattern = stores.fetch("s3://bucket/pings/*.csv")
    assert [Path(name).name for name in find_files([str(pattern)])] == ["a.csv", "b.csv"]
    assert "deep" not in str(_bodies(store))
    deep = stores.fetch("s3://bucket/pings/**/*.csv")
    assert [Path(name).name for name in find_files([str(deep)])] == ["a.csv", "b.csv", "d.csv"]


def test_a_cut_connection_is_continued(store, monkeypatch):
    monkeypatch.setattr(stores, "_BLOCK", 10_000)
    content = os.urandom(200_000)
    store.put("bucket/large", content)
    store.cut_after, store.cut = 5, 7
    assert stores.fetch("s3://bucket/large").read_bytes() == content
    assert store.cut == 0
    assert len(_bodies(store)) == 20 + 7  # what was there before is not read again


def test_a_store_that_refuses_for_a_while_and_one_that_does_not_stop(store):
    store.put("bucket/key", b"content")
    store.refused = 4
    assert stores.fetch("s3://bucket/key").read_bytes() == b"content"
    store.put("bucket/key", b"changed", 1_700_000_000)
    store.refused = 10_000
    with pytest.raises(PingError, match="cannot look at s3://bucket/key: "):
        stores.fetch("s3://bucket/key")
    copy = Path(os.environ["XDG_CACHE_HOME"]) / "ping-llm/stores/s3/bucket/key"
    assert copy.read_bytes() == b"content"


def test_what_has_no_objects_and_what_leads_out_of_the_cache(store):
    with pytest.raises(UsageError, match="s3://bucket/nothing has no objects"):
        stores.fetch("s3://bucket/nothing")
    store.put("bucket/up/../../../out", b"x")
    with pytest.raises(PingError, match="cannot be copied"):
        stores.fetch("s3://bucket/up")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "tiny", "--run", "s3://b/run"], "writes this to a local disk"),
        (["simulate", "s3://b/world"], "writes this to a local disk"),
        (
            ["rows", "build", "in", "--out=s3://b/rows", "--step", "plan"],
            "--out s3://b/rows and --step exclude",
        ),
        (
            ["rows", "build", "in", "--out", "s3://b/rows", "--engine", "spark"],
            "--out s3://b/rows and --engine spark exclude",
        ),
        (
            ["query", "score", "base", "in", "--out=s3://b/scores", "--engine=spark"],
            "--out s3://b/scores and --engine=spark exclude",
        ),
        (["ingest", "in", "--out", "s3://b/full"], "s3://b/full has objects already, such as b/full/x"),
    ],
)
def test_what_is_refused(store, words, says):
    store.put("b/full/x", b"")
    with pytest.raises(UsageError, match=says):
        stores.localised(words)


def test_an_engine_on_this_machine_writes_to_a_store(store):
    words = ["rows", "build", "in", "--out", "s3://b/rows", "--engine", "reference"]
    assert stores.localised(words)[0][-2:] == ["--engine", "reference"]


def test_keys_of_a_training(store):
    store.put("b/rows/manifest.json", b"{}")
    words = ["train", "tiny", "network_train_files=s3://b/rows", "load_parameters_path=gs://b/x"]
    found, _ = stores.localised(words)
    assert found[2].endswith("stores/s3/b/rows")
    assert found[3] == words[3]  # MaxText reads it by itself


def test_from_store_to_store(store):
    """The last file is first known when all others are there."""
    from_store_to_store(store, "s3://bucket")
    puts = [path.partition("?")[0] for method, path in store.requests if method == "PUT" and "/rows/" in path]
    assert puts[-1] == "/bucket/rows/manifest.json"
    failed = program("ingest", "s3://bucket/rows/manifest.json", "--out", "s3://bucket/never")
    assert failed.returncode
    assert store.names("bucket/never") == []
