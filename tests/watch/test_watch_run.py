"""`ping-llm watch` as a process: killed and started again, with everything that it talks to."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import orjson
import pytest
from watch_streams import addresses, steady

from ping_llm.answer.model import Model
from ping_llm.errors import PingError
from ping_llm.measurements.addresses import unpack_one
from ping_llm.progress import StatusLine
from ping_llm.watch.inputs import files_of
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.run import Outside, Watch
from ping_llm.watch.web import Webhook


def written(stream, path):
    """The stream as JSON lines, with garbage now and then."""
    with path.open("wb") as file:
        for row in range(len(stream)):
            src, dst = (unpack_one(end[row].tobytes()) for end in (stream.src, stream.dst))
            values = {"src_addr": src, "dst_addr": dst, "event_time": int(stream.time[row]) / 1e6}
            file.write(orjson.dumps(values | {"rtt": float(stream.rtt[row])}) + b"\n")
            if row % 500 == 250:
                file.write(b"garbage %d\n" % row)
    return path


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    stream = steady(addresses(6, "192.0"), addresses(5, "198.51"), 100, seed=4)
    stream.rtt[2000:] += 45.0
    return written(stream, tmp_path_factory.mktemp("stream") / "in.jsonl")


def outputs(state):
    return {
        path.name: path.read_bytes()
        for path in sorted(state.glob("*.jsonl"))
        if not path.name.startswith("inbox")
    }


@pytest.fixture(scope="module")
def uninterrupted(run, changing, tmp_path_factory):
    """The output files of a watch that nothing disturbs, and its counters."""
    state = tmp_path_factory.mktemp("whole")
    (state / ".state.npz.123.part").write_bytes(b"of a watch that was killed")
    watch = Watch(
        Model.load(run, data=False),
        WatchOptions(),
        files_of(changing, False),
        state,
        Outside(lambda output: None),
    )
    counts = watch.run()
    assert counts["results"] == 3000
    assert counts["rejected"] == 6
    assert counts["alarms"] >= 20
    assert not list(state.glob(".*.part"))
    return outputs(state)


def test_the_last_line_of_status_is_printed_once(run, tmp_path, monkeypatch, capsys):
    """Also where it was due just before the input ended."""
    due = iter([True])
    monkeypatch.setattr(StatusLine, "due", lambda line, now: next(due, False))
    few = written(steady(addresses(2, "192.0"), addresses(2, "198.51"), 3, seed=4), tmp_path / "in.jsonl")
    model = Model.load(run, data=False)
    Watch(model, WatchOptions(), files_of(few, False), tmp_path / "state", Outside(lambda output: None)).run()
    assert capsys.readouterr().err.count("watch: 12 results") == 1


def start(run, state, *arguments, **more):
    command = [sys.executable, "-m", "ping_llm.cli", "watch", str(run), "--no-data", "--state", str(state)]
    program = "import ping_llm.watch.run as r; r._SAVE_SECONDS = 0.2; r.Outside.save_seconds = 0.2\n"
    program += "import sys; from ping_llm.cli import main; sys.argv[0] = 'ping-llm'; main()"
    return subprocess.Popen([sys.executable, "-c", program, *command[3:], *map(str, arguments)], **more)


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the watch has ended"
        time.sleep(0.005)


def lines_in(state):
    return sum(path.read_bytes().count(b"\n") for path in state.glob("results-*.jsonl"))


@pytest.mark.slow
def test_a_watch_that_is_killed_loses_and_repeats_nothing(run, changing, uninterrupted, tmp_path):
    """kill -9 twice, at some moment of the work, with a pipe that is fed as before."""
    state = tmp_path / "state"
    read, write = os.pipe()
    content = changing.read_bytes()

    def feed():
        for begin in range(0, len(content), 2000):
            os.write(write, content[begin : begin + 2000])
            time.sleep(0.003)
        os.close(write)

    threading.Thread(target=feed, daemon=True).start()
    for wanted in (400, 1500):
        process = start(run, state, stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda wanted=wanted: lines_in(state) > wanted, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = start(run, state, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(read)
    _, errors = done.communicate(timeout=200)
    assert done.returncode == 0, errors

    def known(files):
        # The file and line of a reject are those of the inbox.
        rejects = [json.loads(line)["raw"] for line in files["rejects.jsonl"].splitlines()]
        return {name: data for name, data in files.items() if name != "rejects.jsonl"}, rejects

    assert known(outputs(state)) == known(uninterrupted)
    assert not list(state.glob("inbox-*"))
    assert "Alarms going on" in (state / "page.html").read_text()


def test_a_file_without_any_result_is_a_failure(run, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("event_time,src_addr,dst_addr,rtt\n2024-05-01T10:00:00Z,192.0.2.1,198.51.100.7,23\n")
    done = start(run, tmp_path / "state", table, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, errors = done.communicate(timeout=200)
    assert done.returncode == 1
    assert "none of the 2 lines is a result" in errors


class _Receiver(http.server.BaseHTTPRequestHandler):
    received: list[bytes]
    fail_first = 0
    hang: threading.Event | None = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.hang is not None:
            self.hang.wait(30)
        if type(self).fail_first:
            type(self).fail_first -= 1
            self.send_error(503)
            return
        self.received.append(body)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    def make(**values):
        handler = type("Receiver", (_Receiver,), {"received": [], **values})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/", handler

    servers = []
    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_webhook_gets_every_event_once_in_order(receiver, tmp_path):
    url, handler = receiver(fail_first=2)
    events = tmp_path / "alarms.jsonl"
    events.write_bytes(b"".join(b'{"number":%d}\n' % number for number in range(1, 6)))
    hook = Webhook(url, tmp_path, events=5, pause=0.01)
    hook.close(30)
    assert [json.loads(body)["number"] for body in handler.received] == [1, 2, 3, 4, 5]
    assert hook.counts == {"webhook sent": 5, "webhook failed": 2, "webhook dropped": 0}
    with events.open("ab") as file:
        file.write(b'{"number":6}\n')
    again = Webhook(url, tmp_path, events=6)
    again.close(30)
    assert [json.loads(body)["number"] for body in handler.received] == [1, 2, 3, 4, 5, 6]


def test_a_hanging_webhook_is_survived(run, changing, uninterrupted, receiver, tmp_path, monkeypatch):
    """The watch comes to its end as if it was not there, and says how far the webhook came."""
    monkeypatch.setattr("ping_llm.watch.run._LAST_SECONDS", 0.1)
    release = threading.Event()
    url, handler = receiver(hang=release)
    seen = []
    outside = Outside(lambda output: seen.extend(output.seen), metrics_port=0, webhook=url)
    model = Model.load(run, data=False)
    counts = Watch(model, WatchOptions(), files_of(changing, False), tmp_path / "state", outside).run()
    release.set()
    assert counts["results"] == len(seen) == 3000
    assert counts["webhook sent"] == 0
    assert outputs(tmp_path / "state") == uninterrupted
    assert not handler.received or len(handler.received) == 1


def test_metrics_and_page_are_served_while_it_follows(run, changing, tmp_path):
    """A second watch of the same state is refused; Ctrl-C ends the first in order."""
    state, source = tmp_path / "state", tmp_path / "in.jsonl"
    source.write_bytes(changing.read_bytes())
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = start(run, state, source, "--follow", "--metrics", 0, "--json", stdout=out, stderr=err)
    wait_for(lambda: b"\n" in (tmp_path / "err").read_bytes(), process)
    address = (tmp_path / "err").read_text().splitlines()[0].split()[-1]

    def metrics():
        with urllib.request.urlopen(address + "metrics", timeout=10) as reply:
            text = reply.read().decode()
        return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#"}

    wait_for(lambda: metrics()["ping_llm_watch_results_total"] == 3000, process)
    found = metrics()
    assert found["ping_llm_watch_rejected_total"] == 6
    assert found["ping_llm_watch_alarms_total"] >= 20
    with urllib.request.urlopen(address, timeout=10) as reply:
        page = reply.read().decode()
    assert "ALARM" in page
    assert "<script" not in page
    with pytest.raises(PingError, match="is being written"):
        Watch(
            Model.load(run, data=False), WatchOptions(), files_of(source, True), state, Outside(print)
        ).run()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    printed = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert printed[-1]["event"] == "stopped"
    assert printed[-1]["results"] == 3000
    kinds = [each["event"] for each in printed]
    assert kinds.count("result") == 3000
    assert "alarm" in kinds
