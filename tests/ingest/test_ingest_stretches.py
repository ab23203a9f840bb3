"""One file read in stretches gives the bytes that one reader gives, whatever is in it."""

import bz2
import random
import threading

import pytest
import zstandard
from atlas_results import ping, reply, traceroute, write_lines
from ingest_program import tree

from ping_llm.ingest import plan, stretches, workers
from ping_llm.ingest.containers import ahead
from ping_llm.ingest.options import MAX_RECORD_BYTES, IngestOptions
from ping_llm.ingest.reader import stretches_of
from ping_llm.ingest.records import Broken
from ping_llm.ingest.run import ingest


def results(seed, count):
    """Lines of everything: pings, duplicates, traceroutes, rubbish, blanks, several objects on a line."""
    draw = random.Random(seed)
    lines = []
    for index in range(count):
        one = ping(
            timestamp=1_600_000_000 + 40 * index, prb_id=draw.randrange(9), result=[{"rtt": index / 7}]
        )
        kind = draw.randrange(12)
        line = write_lines([one])
        if kind == 0:
            line = draw.choice([b"rubbish\n", b"\n", b"  \r\n", b'{"type":"ping"\n', b"x" * 30_000 + b"\n"])
        elif kind == 1:
            line = write_lines([traceroute([reply(3.0), reply(4.0)], [{"x": "*"}])])
        elif kind == 2:
            line = line.rstrip() + line
        elif kind == 3 and lines:
            line = lines[-1]
        lines.append(line)
    return b"".join(lines)


def table(seed, count):
    draw = random.Random(seed)
    rows = (f"{1_600_000_000 + index * 50},192.0.2.{draw.randrange(256)},198.51.100.7,{draw.random()}\n"
            for index in range(count))  # fmt: skip
    return ("time,src,dst,rtt\n" + "".join(rows)).encode()


def frames(text, size):
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    return skippable.join(pack(text[at : at + size]) for at in range(0, len(text), size))


PACKED = {
    "plain": lambda text: text,
    "bzip2": lambda text: bz2.compress(text, 1),
    "bzip2 streams": lambda text: b"".join(
        bz2.compress(part, 1) for part in (text[:150_000], b"", text[150_000:])
    ),
    "bzip2 levels": lambda text: bz2.compress(text[:150_000], 1) + bz2.compress(text[150_000:], 2),
    "zstd": lambda text: frames(text, 37_000),
    "one zstd frame": zstandard.ZstdCompressor().compress,
}  # fmt: skip


@pytest.fixture
def small_stretches(monkeypatch):
    def choose(length):
        monkeypatch.setattr(stretches, "STRETCH_BYTES", length)
        monkeypatch.setattr(stretches, "PLAIN_STRETCH_BYTES", length)
        monkeypatch.setattr(plan, "STRETCH_BYTES", length)
        monkeypatch.setattr(
            workers, "_WORTH_WORKERS_BYTES", 1 << 30
        )  # in this process, which has these lengths

    return choose


def same(tmp_path, data, options=IngestOptions()):
    """Ingest by one reader and in stretches, with the same bytes; whether it was cut and kept so."""
    path = tmp_path / "in"
    path.write_bytes(data)
    ingest([str(path)], tmp_path / "whole", options, workers=1)
    joined = []
    original = plan.join

    def join(*arguments):
        joined.append(original(*arguments))
        return joined[-1]

    plan.join = join
    try:
        ingest([str(path)], tmp_path / "cut", options, workers=2)
    finally:
        plan.join = original
    assert tree(tmp_path / "whole") == tree(tmp_path / "cut")
    return bool(joined) and joined[0] is not None


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("seed", range(3))
def test_stretches_give_the_bytes_of_one_reader(packed, seed, tmp_path, small_stretches):
    text = results(seed, 1_500) if seed < 2 else table(seed, 9_000)
    text = text if seed else text.rstrip(b"\n")
    if seed == 1:
        text = text.replace(b"\n", b"\n" + b"x" * (MAX_RECORD_BYTES + 1) + b"\n", 1)
    options = IngestOptions(traceroutes="hops", rtt="each") if seed == 1 else IngestOptions()
    data = PACKED[packed](text)
    small_stretches(len(data) // (3, 20, 7)[seed])
    cut = same(tmp_path, data, options)
    assert cut == (packed not in ("bzip2 levels", "one zstd frame"))


@pytest.mark.parametrize("packed", ["plain", "bzip2", "zstd"])
@pytest.mark.parametrize("damage", ["cut off", "a byte", "bytes after it", "no newline"])
def test_damaged_files_are_read_by_one_reader(packed, damage, tmp_path, small_stretches):
    text = results(5, 1_000)
    data = bytearray(PACKED[packed](text if damage != "no newline" else text.replace(b"\n", b" ")))
    if damage == "cut off":
        del data[-len(data) // 3 :]
    elif damage == "a byte":
        data[len(data) // 2] ^= 64
    elif damage == "bytes after it":
        data += b"\0 and more"
    small_stretches(len(data) // 5)
    same(tmp_path, bytes(data))


def test_a_wrong_checksum_of_a_whole_stream_is_found(tmp_path, small_stretches):
    """Each block is right, only the stream's own checksum is not: no stretch can see that alone."""
    first, second = (bz2.compress(results(seed, 900), 1) for seed in (1, 2))
    # The last 10 bytes hold the stream's checksum and up to 7 bits of padding.
    data = bytearray(first + second)
    data[len(first) - 3] ^= 255
    small_stretches(len(data) // 5)
    assert not same(tmp_path, bytes(data))


def test_arrays_and_archives_are_not_cut(tmp_path, small_stretches):
    small_stretches(1_000)
    for name, data in {
        "array": b"[" + b",".join(results(1, 300).splitlines()) + b"]",
        "bzip2 in bzip2": bz2.compress(bz2.compress(results(1, 300))),
        "small": write_lines([ping()]),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert stretches_of(str(tmp_path / name), IngestOptions()) == []


def test_reading_ahead_hands_on_chunks_and_errors_and_ends_when_left():
    def chunks():
        for number in range(100):
            yield b"%d" % number
        raise Broken("there is no more")

    taken = []
    with pytest.raises(Broken, match="no more"):
        taken.extend(ahead(chunks()))
    assert taken == [b"%d" % number for number in range(100)]
    reading = ahead(chunks())
    assert next(reading) == b"0"
    reading.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "unpack"]
