"""Hostile inputs, and what must hold whatever they are: for the fuzz tests and the longer fuzz run."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from atlas_results import TARGET, ping, reply, traceroute, write_lines
from hypothesis import strategies as st

from ping_llm.ingest.columns import is_reject
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import UNEXPECTED, InputFile
from ping_llm.ingest.records import Block
from ping_llm.measurements.rules import ACCEPTED
from ping_llm.measurements.schema import END_TIME_US, MAX_RTT_MS

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "ping", "192.0.2.1", "100.0.0.1", "2001:db8::1", "7", "-1", "1e3", "*", "NaN", "é", "\x00"]
    )
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


def block_of(texts):
    lengths = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(lengths)
    return Block(b"".join(texts), ends - lengths, ends, np.arange(1, len(texts) + 1))


def assert_good(columns):
    """What is accepted obeys the rules of the table."""
    good = columns.verdict == ACCEPTED
    assert ((columns.time_us[good] >= 0) & (columns.time_us[good] < END_TIME_US)).all()
    rtt = columns.rtt[good]
    assert ((rtt == -1.0) | ((rtt >= 0) & (rtt <= MAX_RTT_MS))).all()
    assert (columns.size[good] <= 65_535).all()
    for name in ("msm_id", "size", "packet_error_count", "probe_id"):
        assert (getattr(columns, name)[good] >= -1).all()
    if columns.packets is not None:
        counts = np.diff(columns.packet_offsets)
        assert (counts[good] > 0).all()
        owners = np.repeat(good, counts)
        assert ((columns.packets[owners] == -1) | (columns.packets[owners] >= 0)).all()


LINES = write_lines([ping(timestamp=index, result=[{"rtt": 1.25}, {"x": "*"}]) for index in range(20)])
TRACEROUTES = write_lines(
    [traceroute([reply(1.5), {"x": "*"}], [reply(9.0, TARGET)], timestamp=index) for index in range(9)]
)


def container_samples():
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", LINES)
        archive.writestr("b.json", LINES)
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        for name in ("a" * 120, "b.json"):
            member = tarfile.TarInfo(name)
            member.size = len(LINES)
            archive.addfile(member, io.BytesIO(LINES))
    parquet = io.BytesIO()
    columns = {"time": [1, 2], "src": ["192.0.2.1"] * 2, "dst": ["192.0.2.2"] * 2, "rtt": [1.0, 2.0]}
    pq.write_table(pa.table(columns), parquet)
    csv = b"time,src,dst,rtt\n" + b'5,192.0.2.1,192.0.2.2,7\n"6",192.0.2.1,192.0.2.2,"8"\n' * 5
    array = json.dumps([ping(timestamp=index) for index in range(20)]).encode()
    return [
        LINES, array, json.dumps([ping()], indent=1).encode(), csv, parquet.getvalue(), zipped.getvalue(),
        gzip.compress(LINES, mtime=0), bz2.compress(LINES), lzma.compress(LINES), zstandard.compress(LINES),
        gzip.compress(csv, mtime=0), TRACEROUTES, tarred.getvalue(), b"",
    ]  # fmt: skip


SAMPLES = container_samples()


def check_file(path, folder):
    for options in (IngestOptions(), IngestOptions(rtt="each"), IngestOptions(traceroutes="hops")):
        file = InputFile(str(path), options, spool=folder)
        for block in file:
            verdict = block.columns.verdict
            rejected = int(is_reject(verdict).sum()) + block.apart
            assert len(block.rejected) == rejected
            assert_good(block.columns)
        assert file.bytes == path.stat().st_size
        assert not any(UNEXPECTED in sentence for sentence in file.trouble.sentences)
