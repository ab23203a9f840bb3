"""Tools of the Model Context Protocol, over standard input and output: rtt, rank, anomalies."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from ping_llm import __version__
from ping_llm.answer import show
from ping_llm.answer.conditions import LARGEST, WHOLE, Conditions
from ping_llm.answer.context import Context
from ping_llm.answer.files import to_columns
from ping_llm.answer.names import Names
from ping_llm.answer.remote import Remote
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.columns import Columns
from ping_llm.serve import pasted
from ping_llm.serve.refusals import Refused

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

_INSTRUCTIONS = """
ping-llm predicts Internet latency (ping RTT) between IP addresses as calibrated distributions.
Addresses are IPv4 or IPv6, prefixes such as 203.0.113.0/24, or names: AS3333, country:NL or probe:1234 where
the data or tables of places know them, HOSTS. `notes` say what a name stands for. Times are ISO 8601 (UTC).
RTTs are in ms; an rtt of -1 is a lost packet. Measurements are given as a text: a table with dst_addr, rtt
and optionally event_time and src_addr, RIPE Atlas ping results (JSON), or the output of ping.
Earlier measurements of the source improve an answer more than anything else. Without any of the pair,
`rests_on` says so, and the answer is wide."""


def create(model: "Model | Remote", names: Names) -> MCPServer:
    """Return the server; `run()` answers until standard input ends. `names` looks up names of addresses."""
    hosts = "or a host name" if names.resolves_hosts else "but not host names"
    said = _INSTRUCTIONS.replace("HOSTS", hosts)
    server = MCPServer("ping-llm", version=__version__, instructions=said, log_level="WARNING")
    one_at_a_time = threading.Lock()

    def tool(function: Callable[..., Any]) -> None:
        @wraps(function)
        def safe(**arguments: Any) -> Any:
            try:
                with one_at_a_time:
                    return function(**arguments)
            except (PingError, Refused) as error:
                raise ToolError(str(error)) from None

        # Looking up a host name contacts other machines.
        hints = ToolAnnotations(
            read_only_hint=True, idempotent_hint=True, open_world_hint=names.resolves_hosts
        )
        server.tool(annotations=hints)(safe)

    @tool
    def rtt(
        src: str,
        dst: str,
        at: str | None = None,
        measurements: str | None = None,
        below_ms: float | None = None,
        size: int | None = None,
        errors: int | None = None,
        msm_id: int | None = None,
        probe_id: int | None = None,
        throughput: float | None = None,
    ) -> dict[str, Any]:
        """Distribution of the ping RTT from a source to a destination: quantiles in ms, P(no reply), and what
        the answer rests on. `measurements`: earlier measurements of the source. `below_ms` adds
        P(RTT < below_ms). `size` (bytes of the payload), `errors` (packets not answered), `msm_id` and
        `probe_id` (of Atlas) and `throughput` (Mbit/s) are for models that were trained on them; others
        refuse them.
        """
        ends = names.ends(src, dst)
        assert ends.src is not None
        assert ends.dst is not None
        given = Conditions(size, errors, msm_id, probe_id, throughput)
        known, left_out = _context(measurements, str(ends.src))
        answer = model.rtt(ends.src, ends.dst, at, known, conditions=given)
        return show.rtt_values(replace(answer, notes=(*ends.notes, *left_out, *answer.notes)), below_ms)

    @tool
    def rank(
        src: str,
        candidates: list[str],
        at: str | None = None,
        measurements: str | None = None,
        objective_ms: float | None = None,
        size: int | None = None,
        errors: int | None = None,
        msm_id: int | None = None,
        probe_id: int | None = None,
        throughput: float | None = None,
    ) -> dict[str, Any]:
        """Ranking of destinations for a source, best first: P(fastest), expected ms and regret of each.
        `objective_ms` adds P(a reply within it). `size` to `throughput`: as for rtt.
        """
        sources, destinations, notes = names.lists([src], candidates)
        known, left_out = _context(measurements, str(sources[0]))
        if known is not None and len(sources) > 1:
            raise UsageError(f"{notes[0]}; measurements are of one source: name one of them")
        given = Conditions(size, errors, msm_id, probe_id, throughput)
        made = model.rank(sources, destinations, at, known, objective_ms=objective_ms, conditions=given)
        return replace(made, notes=(*notes, *left_out, *made.notes)).as_dict()

    @tool
    def anomalies(measurements: str, src: str | None = None, count: int = 10) -> dict[str, Any]:
        """The most unusual of the given measurements, each compared with what was expected at its time:
        bits, tail probability, expected quantiles. `src` is the source of those that name none.
        """
        if not 1 <= count <= 1000:
            raise UsageError(f"count must be from 1 to 1,000, not {count}")
        ends = names.ends(src, None)
        columns, left_out = _columns(measurements, None if ends.src is None else str(ends.src))
        found = model.score(columns) if isinstance(model, Remote) else _scores(model, columns)
        unusual = sorted(found, key=lambda one: -one["bits"])[:count]
        return {"measurements": len(columns), "unusual": unusual, "notes": [*ends.notes, *left_out]}

    return server


def _scores(model: "Model", columns: Columns) -> list[dict[str, Any]]:
    from ping_llm.answer.report import result_values, results

    return [
        result_values(columns, part, place)
        for part in results(model, columns)
        for place in range(len(part.row))
    ]


def _context(text: str | None, src: str) -> tuple[Context | None, list[str]]:
    """Return the measurements of a text, if there is one, and notes on rows left out."""
    if text is None or not text.strip():
        return None, []
    columns, notes = _columns(text, src)
    return Context.of_columns(columns), notes


def _columns(text: str, src: str | None) -> tuple[Columns, list[str]]:
    """Return the measurements of a text, and notes on rows left out; `src` is for rows without a source."""
    read = pasted.read(text)
    found, note = read.measurements, read.note()
    if src is None and any(one["src_addr"] is None for one in found):
        raise UsageError("src must be given where a measurement does not name its source")
    table = pa.Table.from_pylist(
        [one | {"src_addr": one["src_addr"] or src} for one in found],
        pa.schema(
            {"src_addr": pa.string(), "dst_addr": pa.string(), "event_time": pa.string(), "rtt": pa.float64()}
            | {name: pa.int64() if name in WHOLE else pa.float64() for name in LARGEST}
        ),
    )
    needed = ("src_addr", "dst_addr", "rtt")
    columns = to_columns(table, "the measurements", needs=needed, optional=LARGEST)
    return columns, [] if note is None else [note]
