"""Limits and options of a server, with all defaults."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """Limits of a request. A request beyond them is refused before any work is done for it.

    Attributes:
      body: bytes of a JSON body. 1,000 questions take 0.1 MB, a context of 4,000 measurements 0.4 MB.
      stream: bytes of an NDJSON body; unanswered questions are kept in a temporary file.
      line: bytes of one NDJSON line.
      items: number of questions, candidates or measurements in a JSON body; more need NDJSON.
      context: number of measurements in a context: the network considers the newest 4,000.
      nesting: number of levels of arrays and objects; the deepest valid body has five.
      text: characters of a text; an IPv6 prefix has at most 43.
      top: number of answers of `complete` and `inverse`.
      requests: number of requests in progress at the same time.
      read_seconds: longest pause while a body is received.
      body_seconds: longest time for a whole JSON body.
      head_seconds: longest time for the head of a request.
      write_seconds: longest pause of a client that reads its answer.
      discard: bytes of a refused body that are read and dropped, so that its client can read the refusal.
      discard_seconds: longest time for reading a refused body.
      look_ups: number of host names resolved at the same time.
      look_up_seconds: longest time for resolving the host names of a request.
    """

    body: int = 4 << 20
    stream: int = 1 << 30
    line: int = 1 << 20
    items: int = 1000
    context: int = 4000
    nesting: int = 8
    text: int = 128
    top: int = 100
    requests: int = 256
    read_seconds: float = 30.0
    body_seconds: float = 300.0
    head_seconds: float = 10.0
    write_seconds: float = 30.0
    discard: int = 64 << 20
    discard_seconds: float = 5.0
    look_ups: int = 8
    look_up_seconds: float = 5.0


#: Default limits: pydantic and the OpenAPI document need those of bodies when the module is loaded.
LIMITS = Limits()


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server.

    Attributes:
      run: a run, a checkpoint or an export.
      data: probe rows from which contexts are taken. None: those recorded in the run.
      no_data: whether to use no rows at all.
      places: tables or databases with the places of prefixes, for the map and for names.
      resolve_hosts: whether host names in requests are resolved.
      token_file: file of lines `name: token`; None: no token is needed.
      workers: number of processes that answer, each with its own model and queue.
      queue: number of questions that may wait; one more is refused with 503.
      wait_ms: time that a question waits for others to be answered with it.
      longest_wait: expected wait, s, beyond which a question is refused with 503.
      reload_seconds: time between two checks for a newer model in the run; 0: only on SIGHUP.
      drain_seconds: longest time for requests in progress after SIGTERM.
    """

    run: Path
    data: Path | None = None
    no_data: bool = False
    places: tuple[Path, ...] = ()
    resolve_hosts: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    workers: int = 1
    queue: int = 1000
    wait_ms: float = 2.0
    longest_wait: float = 10.0
    drain_seconds: float = 30.0
    reload_seconds: float = 10.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log_addresses: bool = False
    limits: Limits = field(default=LIMITS)
