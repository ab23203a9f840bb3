"""What a server allows: every limit and default in one place."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """Bounds of a request. Beyond them a request is refused before any work is done for it.

    Attributes:
      body: bytes of a JSON body. 1,000 questions take 0.1 MB, a context of 4,000 measurements 0.4 MB.
      stream: bytes of an NDJSON body; what is not answered yet waits in a temporary file.
      line: bytes of one NDJSON line.
      items: questions, candidates or measurements of a JSON body; more only as NDJSON.
      context: measurements of a context: the network considers the newest 4,000.
      nesting: levels of arrays and objects; the deepest valid body has five.
      text: characters of a text; an IPv6 prefix has at most 43.
      top: answers of `complete` and `inverse`.
      requests: requests in progress at the same time.
      read_seconds: longest pause while a body arrives.
      body_seconds: how long a JSON body may take as a whole.
      head_seconds: how long the head of a request may take.
      write_seconds: longest pause of a client that reads its answer.
      discard: bytes of a refused body that are read and dropped, so that its client gets to see the refusal.
      discard_seconds: how long that may take.
      look_ups: host names that are being resolved at the same time.
      look_up_seconds: how long the host names of a request may take.
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


#: Bounds of the bodies, which pydantic and the OpenAPI document need when the module is loaded.
LIMITS = Limits()


@dataclass(frozen=True)
class ServeOptions:
    """How to serve.

    Attributes:
      run: a run, a checkpoint or an export.
      data: probe rows from which contexts are taken. None: those recorded in the run.
      no_data: whether to use no rows at all.
      places: where prefixes are, for the map and for names: tables or databases.
      resolve_hosts: whether host names in requests are resolved.
      token_file: lines `name: token`; None: no token is needed.
      workers: processes that answer, each with a model and a queue of its own.
      queue: questions that may wait; one more is refused with 503.
      wait_ms: how long a question waits for others to be answered with it.
      longest_wait: seconds; a question that would have to wait longer is refused with 503.
      reload_seconds: time between two looks for a newer model in the run; 0: only on SIGHUP.
      drain_seconds: how long requests in progress may take after SIGTERM.
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
