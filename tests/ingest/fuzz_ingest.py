"""Mutated results and files, and what must hold of them: for tests/fuzz and the tests here.

Every mutated result must get the same verdict and columns by the quick and the careful way, and every file
must be accounted for.
"""

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from atlas_results import TARGET, ping, reply, traceroute
from hostile_inputs import SAMPLES, assert_good, block_of, check_file

from ping_llm.ingest import atlas
from ping_llm.ingest.columns import TRACEROUTE
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.traceroutes import read_traceroutes
from ping_llm.measurements.rules import judge

TOKENS = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b" ", b"null", b"-1", b"0", b"1e5", b"1.5", b"-0.0",
    b"\xff", b"\n", b"\x00", b"\\u0041", b'"rtt"', b'"dup":1,', b'"late":2,', b'"x":"*"', b'"error":"e"',
    b'{"rtt":3}', b'"type":"ping",', b'"from":""', b'"af":6', b"99999999999999999999", b"9007199254740993",
    b"true", b"0.30000000000000004", b"18446744073709551616",
]  # fmt: skip
RESULTS = [
    ping(),
    ping(result=[{"x": "*"}] * 3),
    ping(result=[{"x": "*"}, {"dup": 1, "rtt": 1030.83}, {"rtt": 20.0, "ttl": 3}]),
    ping(src_addr="2001:db8::1", dst_addr="2a00::1", af=6),
    ping(result=[{"error": "sendto failed"}], sent=0),
    traceroute([reply(1.0, "10.0.0.1")], [reply(2.0), {"x": "*"}, reply(None, late=2)], [reply(9.0, TARGET)]),
    traceroute([reply(2.0, err="H"), reply(1.0, dup=True)], {"error": "connect failed"}),
]
BATCH = 500


def mutate(noise, text, other):
    data = bytearray(text)
    for _ in range(noise.choice((1, 1, 1, 2, 4))):
        where = noise.randrange(len(data) + 1)
        kind = noise.randrange(6)
        if kind == 0 and where < len(data):
            data[where] = noise.randrange(256)
        elif kind == 1:
            del data[where : where + noise.randrange(1, 9)]
        elif kind == 2:
            data[where:where] = noise.choice(TOKENS)
        elif kind == 3:
            token = noise.choice(TOKENS)
            data[where : where + len(token)] = token
        elif kind == 4:
            data[where:] = other[noise.randrange(len(other)) :]
        elif where < len(data) and 48 <= data[where] <= 57:
            data[where] = noise.choice(b"0123456789.-e")
    return bytes(data)


def check_results(noise, texts):
    batch = [mutate(noise, noise.choice(texts), noise.choice(texts)) for _ in range(BATCH)]
    options = IngestOptions(
        noise.choice(("avg", "min", "max", "each")),
        noise.choice(("auto", "from", "src_addr")),
        noise.choice(("off", "last", "hops")),
    )
    try:
        compare(batch, options)
    except Exception:
        for text in batch:
            try:
                compare([text], options)
            except Exception:
                print(options, text)
                raise
        raise


def compare(batch, options):
    read = atlas.read_block(block_of(batch), options)
    quick, careful = read.columns, atlas.read_carefully(batch, options).columns
    if read.traceroutes:
        check_hops(list(read.traceroutes.values()), options)
    judge(quick)
    judge(careful)
    assert_good(quick)
    for field in fields(quick):
        np.testing.assert_array_equal(
            getattr(quick, field.name), getattr(careful, field.name), err_msg=field.name
        )


def check_hops(results, options):
    """Each hop has a verdict, and each traceroute counts as its hops or once."""
    block = read_traceroutes(results, options)
    assert_good(block.columns)
    assert not (block.columns.verdict >= TRACEROUTE).any()
    rows = np.bincount(block.owners, minlength=len(results))
    assert (rows > 0).all()
    for result, count in zip(results, rows.tolist(), strict=True):
        assert count == 1 or type(result["result"]) is str or count == len(result["result"])


def check_container(noise, folder):
    sample = noise.choice(SAMPLES[:-1])
    data = mutate(noise, sample, noise.choice(SAMPLES[:-1]))
    if noise.random() < 0.3:
        data = data[: noise.randrange(len(data) + 1)]
    path = folder / "input"
    path.write_bytes(data)
    try:
        check_file(path, folder)
    except Exception:
        print(data)
        raise
