"""Lines from files, pipes and URLs: each once, in order, whatever they hold and however they come."""

import gzip
import http.server
import os
import threading
import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.errors import UsageError
from ping_llm.watch import inputs
from ping_llm.watch.inputs import Chunk, Inbox, files_of, from_pipe, from_url
from ping_llm.watch.lines import measurements_of
from ping_llm.watch.options import WatchOptions

ROW = {"src_addr": "192.0.2.1", "dst_addr": "198.51.100.7", "event_time": "2024-01-01T00:00:00Z", "rtt": 5.5}
PING = {
    "type": "ping", "af": 4, "from": "192.0.2.1", "src_addr": "192.0.2.1", "dst_addr": "198.51.100.7",
    "timestamp": 1_700_000_000, "sent": 1, "rcvd": 1, "result": [{"rtt": 7.25}], "msm_id": 1, "prb_id": 1,
    "size": 48,
}  # fmt: skip


def everything(files):
    chunks = []
    while (chunk := files.read()) is not None:
        chunks.append(chunk)
    return chunks


def test_rows_and_results_and_the_rest():
    odd = [
        b"garbage",
        b"[1]",
        b"{}",
        b'{"type":"dns"}',
        orjson.dumps(ROW | {"rtt": -3}),
        orjson.dumps(ROW | {"event_time": "never"}),
        orjson.dumps(ROW | {"dst_addr": "2001:db8::1"}),
    ]
    lines = [orjson.dumps(ROW), odd[0], orjson.dumps(PING), b"", *odd[1:], orjson.dumps(ROW | {"rtt": -1})]
    columns, rejected = measurements_of(Chunk("name", 10, b"\n".join(lines) + b"\n"))
    assert columns.rtt.tolist() == [5.5, 7.25, -1.0]
    assert [each.line for each in rejected] == [11, 14, 15, 16, 17, 18, 19]
    assert [each.reason for each in rejected] == [
        "unparsable", "not_an_object", "missing_time", "not_ping", "bad_rtt", "bad_time", "mixed_versions",
    ]  # fmt: skip
    assert orjson.loads(orjson.dumps(rejected[0].as_dict()))["raw"] == "garbage"


@settings(max_examples=100)
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([orjson.dumps(ROW), orjson.dumps(PING)]))))
def test_every_line_is_a_measurement_or_rejected(lines):
    data = b"\n".join(lines)
    columns, rejected = measurements_of(Chunk("name", 1, data))
    assert len(columns) + len(rejected) == sum(bool(line.strip()) for line in data.split(b"\n"))
    assert all(each.as_dict() for each in rejected)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=20), st.data())
def test_a_growing_file_gives_each_line_once(tmp_path_factory, lines, data):
    path = tmp_path_factory.mktemp("grow") / "in.jsonl"
    content, files, found, written = (
        b"".join(line + b"\n" for line in lines),
        files_of(path, follow=True),
        b"",
        0,
    )
    while written < len(content):
        more = data.draw(st.integers(1, len(content) - written))
        with path.open("ab") as file:
            file.write(content[written : written + more])
        written += more
        for chunk in everything(files):
            assert chunk.data.endswith(b"\n")
            assert chunk.line == found.count(b"\n") + 1
            found += chunk.data
        if data.draw(st.booleans()):  # a restart
            saved, files = files.save(), files_of(path, follow=True)
            files.restore(orjson.loads(orjson.dumps(saved)))
    assert found == content


def test_long_lines_unfinished_lines_packed_and_replaced_files(tmp_path):
    long = b"x" * (3 * inputs.READ_BYTES)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"first\n" + long + b"\nlast")
    files = files_of(path, follow=False)
    chunks = everything(files)
    assert b"".join(chunk.data for chunk in chunks) == b"first\nlast"
    assert [(line, len(raw)) for chunk in chunks for line, raw in chunk.too_long] == [(2, inputs.RAW_BYTES)]
    assert chunks[-1].line == 3
    growing = files_of(path, follow=True)
    assert b"last" not in b"".join(chunk.data for chunk in everything(growing))
    path.unlink()
    path.write_bytes(b"new\n")
    assert [chunk.data for chunk in everything(growing)] == [b"new\n"]
    assert growing.restarted == 1
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(b"one\ntwo\n" * 50_000))
    files = files_of(packed, follow=False)
    assert b"".join(chunk.data for chunk in everything(files)) == b"one\ntwo\n" * 50_000
    files.close()
    with pytest.raises(UsageError, match="does not exist"):
        files_of(tmp_path / "nothing", follow=False)


def test_a_folder_takes_new_files(tmp_path):
    files = files_of(tmp_path, follow=True)
    assert files.read() is None
    (tmp_path / "b.jsonl").write_bytes(b"2\n")
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    (tmp_path / ".hidden").write_bytes(b"3\n")
    assert sorted(chunk.data for chunk in everything(files)) == [b"1\n", b"2\n"]
    (tmp_path / "c.jsonl").write_bytes(b"4\n")
    assert [chunk.data for chunk in everything(files)] == [b"4\n"]


def until(inbox, wanted):
    found = b""
    while len(found) < wanted:
        chunk = inbox.read()
        if chunk is None:
            if inbox.ended and inbox.read() is None:
                break
            time.sleep(0.01)
        else:
            found += chunk.data
    return found


def test_a_pipe_goes_through_files_that_are_removed_when_read(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "_SEGMENT_BYTES", 1 << 12)
    content = b"".join(b"%d\n" % number for number in range(20_000))
    read, write = os.pipe()
    inbox = Inbox(tmp_path, from_pipe(read))
    inbox.start()
    threading.Thread(target=lambda: (os.write(write, content), os.close(write)), daemon=True).start()
    found = until(inbox, 5000)
    # A second start: what was saved and what is in the files is all there is.
    saved = inbox.save()
    while not inbox.ended:
        time.sleep(0.01)
    again = Inbox(tmp_path, from_pipe(os.open(os.devnull, os.O_RDONLY)))
    again.restore(saved)
    again.start()
    found += until(again, len(content) - len(found))
    assert found == content
    again.committed()
    assert not list(tmp_path.glob("inbox-*"))
    os.close(read)


def test_a_stream_over_http_is_opened_again(tmp_path):
    sent = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(len(sent))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"line %d\nhalf" % sent[-1])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    inbox = Inbox(tmp_path, from_url(f"http://127.0.0.1:{server.server_address[1]}/"))
    inbox.start()
    found = until(inbox, len(b"line 0\nhalf\nline 1\n"))
    inbox.close()
    server.shutdown()
    server.server_close()
    assert found.startswith(b"line 0\nhalf\nline 1\n")
    assert inbox.reconnects >= 1
    with pytest.raises(UsageError, match="http"):
        from_url("ftp://example.net/")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"refresh": 0}, "refresh must be at least 1 result, not 0"),
        ({"most_pairs": 0}, "most_pairs must be at least 1"),
        ({"accept_hours": 0.0}, "accept_hours and jump_hours must be above 0"),
        ({"least_ms": -1.0}, "least_ms and least_share must be at least 0, not -1.0"),
        ({"group_share": 2.0}, "group_share above 0 and at most 1"),
    ],
)
def test_an_invalid_option_is_refused_by_its_name(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        WatchOptions(**given)
