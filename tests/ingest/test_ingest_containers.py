"""Files as they come: packed, in archives, in arrays, cut short, or not results at all."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import zipfile
import zlib

import pytest
import zstandard
from atlas_results import ping, write_lines

from ping_llm.ingest import reader
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.reader import InputFile
from ping_llm.measurements.rules import ACCEPTED

RESULTS = [ping(timestamp=1_600_000_000 + index, prb_id=index) for index in range(3_000)]
LINES = write_lines(RESULTS)
ARRAY = json.dumps(RESULTS).encode()
PRETTY = json.dumps(RESULTS, indent=2).encode()
LINE_ARRAY = b"[" + b",\n".join(json.dumps(result).encode() for result in RESULTS) + b"]\n"


def zipped(*contents, method=zipfile.ZIP_DEFLATED, stream=False):
    class Unseekable(io.BytesIO):
        def seekable(self):
            return False

    file = Unseekable() if stream else io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"folder/{number}.json", content)
        archive.writestr("__MACOSX/._0.json", b"\x00\x05\x16\x07")
    return file.getvalue()


def tarred(*contents, form=tarfile.PAX_FORMAT, name="folder/{}.json", compression=""):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{compression}", format=form) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number, content in enumerate(contents):
            member = tarfile.TarInfo(name.format(number))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "folder/0.json"
        archive.addfile(link)
        extra = tarfile.TarInfo("folder/._0.json")
        extra.size = 3
        archive.addfile(extra, io.BytesIO(b"\0\5\x16"))
    return file.getvalue()


def oldest(archive):
    """A tar archive of 1979: without the magic number, the checksum put right."""
    blocks = [archive[start : start + 512] for start in range(0, len(archive), 512)]
    for index, block in enumerate(blocks):
        if block[257:262] == b"ustar":
            block = block[:148] + b" " * 8 + block[156:257] + bytes(255)
            blocks[index] = block[:148] + b"%06o\0 " % sum(block) + block[156:]
    return b"".join(blocks)


def read(tmp_path, data):
    path = tmp_path / "input"
    path.write_bytes(data)
    file = InputFile(str(path), IngestOptions())
    blocks = list(file)
    accepted = sum(int((block.columns.verdict == ACCEPTED).sum()) for block in blocks)
    probes = [
        int(probe) for block in blocks for probe in block.columns.probe_id[block.columns.verdict == ACCEPTED]
    ]
    rejected = [reject for block in blocks for reject in block.rejected]
    assert file.bytes == len(data)
    assert sum(block.results for block in blocks) == accepted + len(rejected)
    return probes, rejected, file.trouble.sentences


EVERYTHING = list(range(3_000))
THIRDS = [write_lines(RESULTS[start : start + 1_000]) for start in (0, 1_000, 2_000)]

WHOLE = {
    "lines": LINES,
    "lines without the last end": LINES.rstrip(),
    "lines with blank ones": LINES.replace(b"\n", b"\r\n\n"),
    "lines after a byte order mark": b"\xef\xbb\xbf" + LINES,
    "array": ARRAY,
    "array over lines": PRETTY,
    "array, a result a line": LINE_ARRAY,
    "objects over lines": b"\n".join(json.dumps(result, indent=1).encode() for result in RESULTS),
    "objects in one line": LINES.replace(b"\n", b""),
    "several arrays": json.dumps(RESULTS[:2_000]).encode() + b"\n" + json.dumps(RESULTS[2_000:]).encode(),
    "gz": gzip.compress(LINES),
    "gz in pieces": gzip.compress(LINES[:100_000]) + gzip.compress(LINES[100_000:]) + bytes(512),
    "bz2": bz2.compress(LINES),
    "bz2 in pieces": bz2.compress(LINES[:100_000]) + bz2.compress(LINES[100_000:]),
    "xz": lzma.compress(ARRAY),
    "zstd": zstandard.compress(LINES),
    "zstd in pieces": zstandard.compress(LINES[:99_999]) + zstandard.compress(LINES[99_999:]),
    "zip": zipped(LINES),
    "zip of two": zipped(LINES[: LINES.index(b"\n", 300_000) + 1], LINES[LINES.index(b"\n", 300_000) + 1 :]),
    "zip, stored": zipped(ARRAY, method=zipfile.ZIP_STORED),
    "zip, bzip2": zipped(ARRAY, method=zipfile.ZIP_BZIP2),
    "zip, written to a pipe": zipped(ARRAY, stream=True),
    "gz in zip": zipped(gzip.compress(LINES)),
    "zip in gz": gzip.compress(zipped(LINES)),
    "tar": tarred(LINES),
    "tar.gz": tarred(LINES, compression="gz"),
    "tar.xz of three": tarred(*THIRDS, compression="xz"),
    "tar, ustar": tarred(*THIRDS, form=tarfile.USTAR_FORMAT),
    "tar, GNU, long names": tarred(*THIRDS, form=tarfile.GNU_FORMAT, name="x" * 300 + "{}"),
    "tar, pax, long names": tarred(*THIRDS, name="é" * 300 + "{}"),
    "tar, oldest": oldest(tarred(*THIRDS, form=tarfile.USTAR_FORMAT)),
    "gz in tar": tarred(*map(gzip.compress, THIRDS)),
    "tar in zip": zipped(tarred(*THIRDS)),
    "tars in a row": tarred(*THIRDS[:2]) + tarred(*THIRDS[2:]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_files_are_read_whole(name, tmp_path):
    probes, rejected, trouble = read(tmp_path, WHOLE[name])
    assert (probes, rejected, trouble) == (EVERYTHING, [], [])


# Incompressible, so that something is whole before the cut even where blocks are large.
noise = random.Random(1)
NOISY_RESULTS = [{**result, "dst_name": noise.randbytes(150).hex()} for result in RESULTS]
NOISY_LINES = write_lines(NOISY_RESULTS)
NOISY = {
    "gz": gzip.compress(NOISY_LINES, 1),
    "bz2": bz2.compress(NOISY_LINES, 1),
    "xz": lzma.compress(NOISY_LINES, preset=0),
    "zstd": zstandard.compress(NOISY_LINES),
    "zip": zipped(NOISY_LINES),
    "gz in pieces": gzip.compress(NOISY_LINES, 1) * 2,
    "zip of two": zipped(NOISY_LINES, NOISY_LINES),
    "tar": tarred(NOISY_LINES).rstrip(b"\0"),
    "tar of two": tarred(NOISY_LINES, NOISY_LINES),
    "array": json.dumps(NOISY_RESULTS).encode(),
    "lines": NOISY_LINES,
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("share", [0.999, 0.6, 0.03])
def test_truncated_files_keep_what_was_whole(name, share, tmp_path):
    data = NOISY[name]
    cut = int(len(data) * share)
    probes, rejected, trouble = read(tmp_path, data[:cut])
    assert probes[:3_000] == EVERYTHING[: len(probes)]
    assert {reject.reason.value for reject in rejected} <= {"truncated"}
    assert len(rejected) <= 1
    assert len(trouble) == 1
    assert str(tmp_path) in trouble[0]
    assert "byte" in trouble[0]
    if name == "gz" and share > 0.5:
        assert len(probes) > 3_000 * share * 0.95
        assert f"{cut:,}" in trouble[0]


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zstd", "zip"])
def test_damaged_files_keep_what_was_before(name, tmp_path):
    data = bytearray(WHOLE[name])
    for index in range(len(data) * 2 // 3, len(data) * 2 // 3 + 40):
        data[index] ^= 0x5A
    probes, _, trouble = read(tmp_path, bytes(data))
    assert len(trouble) >= 1
    assert probes[:1_000] == EVERYTHING[: len(probes)][:1_000]


def test_a_member_of_a_tar_is_named(tmp_path):
    _, rejected, _ = read(tmp_path, tarred(b"rubbish\n", LINES))
    assert [reject.stream for reject in rejected] == [f"{tmp_path}/input/folder/0.json"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_tar_header_is_said(place, tmp_path):
    archive = bytearray(tarred(LINES[: LINES.index(b"\n") + 1], LINES))
    headers = [
        start for start in range(0, len(archive), 512) if archive[start + 257 : start + 262] == b"ustar"
    ]
    archive[headers[place * 2] + 10] ^= 1
    probes, rejected, trouble = read(tmp_path, bytes(archive))
    assert (probes, rejected) == ([[], [0]][place], [])
    assert trouble == [
        f"{tmp_path}/input: the tar archive is corrupt at byte {headers[place * 2]:,}; "
        "what was whole before it is kept"
    ]


def test_a_tar_cut_between_its_members_is_said(tmp_path):
    archive = tarred(*THIRDS)
    cut = next(
        start for start in range(2_048, len(archive), 512) if archive[start + 257 : start + 262] == b"ustar"
    )
    probes, rejected, trouble = read(tmp_path, archive[:cut])
    assert (probes, rejected) == (EVERYTHING[:1_000], [])
    assert trouble == [
        f"{tmp_path}/input: the tar archive ends early at byte {cut:,}; what was whole before it is kept"
    ]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive"),
        (b"\x04\x22\x4d\x18rest", "lz4 data"),
        (b"\x89PNG\r\n\x1a\n", "a picture"),
        ("\ufeff{}".encode("utf-16-le"), "UTF-16 text"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"ARROW1\0\0rest", "an Arrow or Feather file"),
    ],
)
def test_formats_that_are_not_read_are_refused_by_name(data, what, tmp_path):
    for wrap in (bytes, gzip.compress, lambda inner: zipped(inner)):
        probes, rejected, trouble = read(tmp_path, wrap(data))
        assert (probes, rejected) == ([], [])
        assert len(trouble) == 1
        assert f" is not read: it is {what}" in trouble[0]


def test_rubbish_is_rejected_line_by_line(tmp_path):
    data = random.Random(2).randbytes(100_000)
    probes, rejected, _ = read(tmp_path, data)
    assert probes == []
    assert rejected
    assert {reject.reason.value for reject in rejected} <= {"unparsable", "not_an_object"}


def test_empty_files_are_empty(tmp_path):
    for data in (b"", b"\n\n", b"[]", b"[\n]", gzip.compress(b""), b" "):
        assert read(tmp_path, data) == ([], [], [])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress, lzma.compress])
def test_a_hundred_megabyte_line_is_skipped_not_held(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(reader.records, "MAX_RECORD_BYTES", 100_000)
    line = b'{"type":"ping","x":"' + b"a" * 30_000_000 + b'"}\n'
    middle = LINES.index(b"\n", 500_000) + 1
    probes, rejected, trouble = read(tmp_path, pack(LINES[:middle] + line + LINES[middle:]))
    assert probes == EVERYTHING
    assert trouble == []
    (reject,) = rejected
    assert (reject.reason, reject.length, len(reject.raw)) == ("too_large", len(line) - 1, reader.RAW_BYTES)
    assert reject.number == LINES[:middle].count(b"\n") + 1


def test_a_hundred_megabyte_element_is_skipped_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(reader.records, "MAX_RECORD_BYTES", 100_000)
    for element in (b'"' + b"a" * 3_000_000 + b'"', b"[" * 2_000_000 + b"]" * 2_000_000, b"7" * 3_000_000):
        first, second = json.dumps(RESULTS[:9]).encode(), json.dumps(RESULTS[9:]).encode()
        data = first[:-1] + b"," + element + b" ," + second[1:]
        probes, rejected, trouble = read(tmp_path, data)
        assert probes == EVERYTHING
        assert trouble == []
        assert [(reject.reason, reject.number) for reject in rejected] == [("too_large", 10)]
        assert rejected[0].length == len(element)


def test_a_broken_element_costs_only_itself(tmp_path):
    texts = [json.dumps(result).encode() for result in RESULTS]
    for broken in (
        b'{"type":"ping","from":"unclosed',
        b'{"type":{"a":[{',
        b'{"type":"ping"',
        b"}",
        b"rubbish",
    ):
        data = b"[" + b",\n".join([*texts[:5], broken, *texts[5:]]) + b"]"
        probes, rejected, trouble = read(tmp_path, data)
        assert probes == EVERYTHING, broken
        assert {reject.reason.value for reject in rejected} <= {"unparsable", "not_an_object"}
        assert rejected[0].number == 6
        assert trouble == []


def test_bombs_cost_nothing_but_time(tmp_path):
    """Half a gigabyte of zeros in a line, and of brackets, in at most 100 MB."""
    import resource

    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for filling in (b"0", b"["):
        bomb = b"".join(packer.compress(filling * 1_000_000) for _ in range(250))
        probes, rejected, _ = read(tmp_path, bomb + packer.flush(zlib.Z_FINISH))
        assert probes == []
        assert [reject.reason for reject in rejected] == ["too_large"]
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
