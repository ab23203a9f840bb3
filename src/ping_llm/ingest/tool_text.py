"""Conversion of the output of ping, fping and mtr to rows of a table.

None of them states the source address reliably, so it has to be given (`--src`). Times: `ping -D` and
`fping -D` print a timestamp on every line, mtr in its report; otherwise the last packet gets the time of the
file's last change, and each packet before it is one second earlier. Host names are not resolved: run the
tools with -n.
"""

import csv
import ipaddress
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ping_llm.ingest.options import STDIN
from ping_llm.measurements.schema import NO_REPLY

if TYPE_CHECKING:
    from ping_llm.ingest.records import Chunks

_STAMP = r"(?:\[(?P<stamp>\d+(?:\.\d+)?)\] *)?"
_NUMBER = r"\d+(?:\.\d+)?"
_DST, _RTT = r"(?P<dst>\S+?)", r"(?P<rtt>\d+(?:[.,]\d+)?)"  # some languages use a decimal comma
_BLOCK = re.compile(rf"^(?:PING|Pinging) (?:\S+ [(\[])?{_DST}[)\]]?:?(?: with| \d+\(| \d+ data| 56)")
_PING6 = re.compile(r"^PING6?\b.*(?:-->|\(\S+\)\)| from \S+ )")
_ANY_BLOCK = re.compile(r"^(?:PING6?|Pinging)\b")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{3,}")
_REPLY = re.compile(
    rf"^{_STAMP}\d+ bytes from (?:\S+ \()?{_DST}\)?[:,] .*?seq=(?P<seq>\d+) .*?time=" rf"{_RTT} ?ms"
)
_WINDOWS = re.compile(rf"^Reply from {_DST}: (?:bytes=\d+ )?time[=<]{_RTT} ?ms")
_LOST = re.compile(
    rf"^{_STAMP}(?:no answer yet for icmp_seq=|Request timeout for icmp_seq |Request timed out\.)"
    r"(?P<seq>\d+)?"
)
_SENT = re.compile(r"^(?P<sent>\d+) packets transmitted, (?P<received>\d+) (?:packets )?received")
_SUMMARY = re.compile(rf"^(?:rtt|round-trip) min/avg/max\S* = [\d.]+/{_RTT}/")

_FPING_LIST = re.compile(rf"^{_DST} +: (?P<rtts>(?:{_NUMBER}|-)(?: (?:{_NUMBER}|-))*)$")
_FPING_LINE = re.compile(rf"^{_STAMP}{_DST} +: \[\d+\], (?:\d+ bytes, {_RTT} ms|timed out)")
_FPING_TOTAL = re.compile(
    rf"^{_DST} +: xmt/rcv/%loss = \d+/\d+/\S+?(?:, min/avg/max = [\d.]+/{_RTT}/[\d.]+)?$"
)
_FPING_ALIVE = re.compile(rf"^{_DST} is (?:alive \({_RTT} ms\)|(?P<lost>unreachable))")

_MTR_START = re.compile(r"^Start: (?P<time>\S+)")
_MTR_HOP = re.compile(
    rf"^ *\d+\.(?:\|--)? *{_DST} +(?P<loss>{_NUMBER})%? +\d+ +[\d.]+ +{_RTT}(?: +[\d.]+){{3}}"
)
_MTR_CSV = "Mtr_Version,Start_Time,"

_KNOWN = (_BLOCK, _PING6, _REPLY, _WINDOWS, _FPING_LIST, _FPING_LINE, _FPING_TOTAL, _FPING_ALIVE, _MTR_HOP)


#: Largest length of a line. No tool prints longer ones, and the patterns take quadratic time at worst.
_LINE = 500
#: Largest number of packets, in all runs of a text, that appear only in the statistics.
_MOST_LOST = 1_000_000
#: Largest text that is read: some 600,000 packets.
MOST_BYTES = 64 << 20


def is_tool_text(head: bytes) -> bool:
    """Whether a text looks like the output of one of the tools, by its first 20 lines."""
    lines = [line[:_LINE] for line in head.decode("utf-8", "replace").splitlines()[:20]]
    if lines and lines[0].startswith(_MTR_CSV):
        return True
    return any(pattern.match(line) for line in lines for pattern in _KNOWN)


@dataclass
class ToolRow:
    """A packet, or the summary of several. `time` is in seconds; `time` and `src` are None if not stated."""

    line: int
    dst: str
    rtt: float
    time: float | None = None
    src: str | None = None


@dataclass
class _Ping:
    """The output of one `ping` so far."""

    line: int
    dst: str
    src: str | None = None
    rows: dict[int, ToolRow] = field(default_factory=dict)
    summary: float | None = None
    sent: int | None = None
    received: int = 0
    order: int = 0

    def add(self, line: int, sequence: int | None, rtt: float, stamp: str | None) -> None:
        self.order += 1
        key = self.order if sequence is None else sequence
        # A late reply replaces an earlier line that reports its loss; a duplicate changes nothing.
        if key not in self.rows or self.rows[key].rtt == NO_REPLY:
            self.rows[key] = ToolRow(line, self.dst, rtt, float(stamp) if stamp else None, self.src)

    def packets(self, most_lost: int) -> Iterator[ToolRow]:
        if not self.rows and self.summary is not None:  # ping -q
            yield ToolRow(self.line, self.dst, self.summary, None, self.src)
            return
        yield from self.rows.values()
        missing = (self.sent or 0) - len(self.rows)
        if missing > most_lost:
            return  # no ping runs that long, so the statistics are not plausible
        if self.rows and missing > 0 and self.received <= len(self.rows):
            # Packets without a line were lost; their times are not known.
            yield from self._lost(missing)
        elif not self.rows and self.sent and not self.received:
            yield from self._lost(self.sent)

    def _lost(self, count: int) -> Iterator[ToolRow]:
        for _ in range(count):
            yield ToolRow(self.line, self.dst, NO_REPLY, None, self.src)


def _ends(header: str) -> tuple[str, str | None]:
    """The destination and, if stated and public, the source in the first line of a `ping`."""
    named = re.search(r"\bfrom\s+([0-9A-Fa-f:.]+)", header)
    src = named[1].rstrip(":") if named else None
    if "-->" in header:
        before, _, header = header.partition("-->")
        src = next((one for one in reversed(_ADDRESS.findall(before)) if is_address(one)), None)
    elif named:
        header = header[: named.start()]
    found = [one.rstrip(":") for one in _ADDRESS.findall(header)]
    dst = next((one for one in reversed(found) if is_address(one)), "")
    if not dst and (name := _BLOCK.match(header)):
        dst = name["dst"]
    return dst, src if src and is_address(src) and ipaddress.ip_address(src).is_global else None


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _ms(text: str | None) -> float:
    """Parse an RTT; None means no reply."""
    return NO_REPLY if text is None else float(text.replace(",", "."))


def read_text(lines: Iterable[str], most_lost: int = _MOST_LOST) -> tuple[list[ToolRow], list[int]]:
    """The packets in the output of a tool, and the numbers of lines that are not recognised."""
    rows: list[ToolRow] = []

    def finish(ping: _Ping | None) -> None:
        nonlocal most_lost
        if ping is not None:
            packets = list(ping.packets(most_lost))
            most_lost -= max(len(packets) - len(ping.rows), 0)
            rows.extend(packets)

    totals: dict[str, ToolRow] = {}
    ping: _Ping | None = None
    hop: ToolRow | None = None
    started: float | None = None
    strange: list[int] = []
    listed: set[str] = set()
    for number, text in enumerate(lines, 1):
        line = text.rstrip()
        if _ANY_BLOCK.match(line):
            finish(ping)
            ping = _Ping(number, *_ends(line))
        elif found := _REPLY.match(line):
            ping = ping or _Ping(number, found["dst"])
            ping.add(number, int(found["seq"]), _ms(found["rtt"]), found["stamp"])
        elif found := _WINDOWS.match(line):
            ping = ping or _Ping(number, found["dst"])
            ping.add(number, None, _ms(found["rtt"]), None)
        elif (found := _LOST.match(line)) and ping:
            ping.add(number, int(found["seq"]) if found["seq"] else None, NO_REPLY, found["stamp"])
        elif (found := _SENT.match(line)) and ping:
            ping.sent, ping.received = int(found["sent"]), int(found["received"])
        elif (found := _SUMMARY.match(line)) and ping:
            ping.summary = _ms(found["rtt"])
        elif found := _FPING_LIST.match(line):
            listed.add(found["dst"])
            for rtt in found["rtts"].split():
                rows.append(ToolRow(number, found["dst"], NO_REPLY if rtt == "-" else float(rtt)))
        elif found := _FPING_LINE.match(line):
            listed.add(found["dst"])
            stamp = float(found["stamp"]) if found["stamp"] else None
            rows.append(ToolRow(number, found["dst"], _ms(found["rtt"]), stamp))
        elif found := _FPING_TOTAL.match(line):
            totals[found["dst"]] = ToolRow(number, found["dst"], _ms(found["rtt"]))
        elif found := _FPING_ALIVE.match(line):
            rows.append(ToolRow(number, found["dst"], NO_REPLY if found["lost"] else _ms(found["rtt"])))
        elif found := _MTR_START.match(line):
            rows += [hop] if hop else []
            started, hop = _seconds(found["time"]), None
        elif found := _MTR_HOP.match(line):
            lost = float(found["loss"]) >= 100
            hop = ToolRow(number, found["dst"], NO_REPLY if lost else _ms(found["rtt"]), started)
        elif line and not _is_decoration(line):
            strange.append(number)
    finish(ping)
    rows += [hop] if hop else []  # the last hop of a report is its destination
    rows += [row for dst, row in totals.items() if dst not in listed]
    return rows, strange


def _is_decoration(line: str) -> bool:
    """Whether a line is a title, or statistics that repeat other lines."""
    return bool(re.match(
        r"^(---|HOST:|Ping statistics|Approximate round|\s+Packets:|\s+Minimum|From .*(unreachable|exceeded)|"
        r"\s+\d+\.\|--\s+\?\?\?|\d+ packets transmitted)",
        line, re.IGNORECASE,
    ))  # fmt: skip


def read_mtr_csv(lines: Sequence[str]) -> tuple[list[ToolRow], list[int]]:
    """Read `mtr --csv`: the last hop of each report, and the numbers of lines that are not hops."""
    strange = []
    last: dict[tuple[str, str], ToolRow] = {}
    for number, row in enumerate(csv.DictReader(lines), 2):
        values = {
            (key or "").strip(): (value or "").strip() for key, value in row.items() if isinstance(key, str)
        }
        try:
            lost = float(values["Loss%"].rstrip("%")) >= 100
            rtt = NO_REPLY if lost else float(values["Avg"])
            one = ToolRow(number, values["Ip"], rtt, float(values["Start_Time"]))
        except (KeyError, ValueError):
            strange.append(number)
            continue
        last[values["Start_Time"], values.get("Host", "")] = one
    return list(last.values()), strange


def read_lines(text: str, most_lost: int = _MOST_LOST) -> tuple[list[ToolRow], list[int]]:
    """The packets in the output of any of the tools, and the numbers of lines that are not recognised."""
    lines = [line[:_LINE] for line in text.splitlines()]
    if lines and lines[0].startswith(_MTR_CSV):
        return read_mtr_csv(lines)
    return read_text(lines, most_lost)


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class ToolOutput:
    """The output of a tool as a table.

    Attributes:
      columns: Columns of the packets, by our names.
      lines: Line number of each packet.
      strange: Numbers of the lines that are not recognised.
      trouble: A sentence if the output is longer than the limit, else None.
    """

    text: bytes
    columns: dict[str, pa.Array]
    lines: list[int]
    strange: list[int]
    trouble: str | None


def read_output(stream: "Chunks", path: str, source: str) -> ToolOutput:
    """Read the packets of a stream that comes from the file at `path`."""
    text = stream.read(MOST_BYTES)
    trouble = None
    if stream.peek(1):
        trouble = f"{stream.name}: output of a tool is read up to {MOST_BYTES >> 20} MiB; split it"
    written = time.time() if path == STDIN else Path(path).stat().st_mtime
    return ToolOutput(text, *as_table(text, source, written), trouble)


def as_table(text: bytes, source: str, written: float) -> tuple[dict[str, pa.Array], list[int], list[int]]:
    """Columns of the packets by our names, the line of each packet, and the lines that are not recognised.

    Args:
      source: Address of the host on which the tool ran.
      written: Time of the file's last change, in seconds since 1970.
    """
    rows, strange = read_lines(text.decode("utf-8", "replace"))
    unknown = [row for row in rows if row.time is None]
    for back, row in enumerate(reversed(unknown)):
        row.time = written - back
    columns = {
        "event_time": pa.array([row.time for row in rows], pa.float64()),
        "src_addr": pa.array([source] * len(rows), pa.string()),
        "dst_addr": pa.array([row.dst for row in rows], pa.string()),
        "rtt": pa.array([row.rtt for row in rows], pa.float64()),
    }
    return columns, [row.line for row in rows], strange
