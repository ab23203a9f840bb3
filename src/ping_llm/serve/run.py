"""`ping-llm serve`: listen, load, and answer until a signal ends it.

On SIGTERM and SIGINT the server stops listening, answers the requests in progress, and ends. On SIGHUP, and
when the run has a newer model, it loads the run again.
"""

import asyncio
import errno
import signal
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from ping_llm.errors import PingError, UsageError
from ping_llm.extras import need
from ping_llm.hosts import IDLE_SECONDS, is_loopback
from ping_llm.model.packaged import answers_from_nothing
from ping_llm.serve.metrics import Metrics
from ping_llm.serve.options import ServeOptions
from ping_llm.serve.workers import supervise


def check(options: ServeOptions, no_auth: bool) -> None:
    """Refuse options that would expose the model or cannot work, before anything is loaded."""
    if options.token_file is not None and no_auth:
        raise UsageError("--token-file and --no-auth exclude each other")
    if not is_loopback(options.host) and options.token_file is None and not no_auth:
        raise UsageError(
            f"{options.host} can be reached from other machines: give --token-file FILE, or --no-auth to let "
            "everybody ask"
        )
    if options.resolve_hosts and options.token_file is None and not is_loopback(options.host):
        raise UsageError(
            "--resolve-hosts needs --token-file where other machines can ask: anybody could resolve names, "
            "also those of your own network"
        )
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key must be given together")
    if options.workers < 1:
        raise UsageError("--workers must be at least 1")
    seconds = (options.wait_ms, options.longest_wait, options.drain_seconds, options.reload_seconds)
    if options.queue < 1 or min(seconds) < 0:
        raise UsageError("--queue must be at least 1; --wait, --longest-wait, --drain, --reload at least 0")
    for path in (options.tls_cert, options.tls_key, *options.places):
        if path is not None and not path.is_file():
            raise UsageError(f"{path} does not exist")


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        bound = socket.create_server((host, port), family=family, backlog=512)
        # Connections inherit TCP_NODELAY. asyncio sets it only on sockets created with IPPROTO_TCP; without
        # it, a body waits 40 ms for the acknowledgement of its head.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except (OSError, OverflowError) as error:
        other = "; give another --port, or 0 for any free one" if _is_port_trouble(error) else ""
        raise PingError(f"cannot listen on {host} port {port}: {error}{other}") from None


def _is_port_trouble(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)


def serve(options: ServeOptions, no_auth: bool, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
      no_auth: whether anyone may ask without a token, from any machine.
      say: prints a line for the user.
    """
    need("serve")
    check(options, no_auth)
    if options.token_file is not None and readable_by_others(options.token_file):
        say(f"note: {options.token_file} can be read by other users: chmod 600 it")
    bound = listen(options.host, options.port)
    scheme = "http" if options.tls_cert is None else "https"
    host, port = bound.getsockname()[:2]
    several = f" with {options.workers} workers" if options.workers > 1 else ""

    def started() -> None:
        if options.data is None and answers_from_nothing(options.run):
            say("note: base has no --data to answer from: every request must bring its own context")
        say(f"serving {options.run} at {scheme}://{f'[{host}]' if ':' in host else host}:{port}{several}")

    if options.workers > 1:
        with tempfile.TemporaryDirectory(prefix="ping-llm-serve-") as shared:

            def work(slot: int, ready: Callable[[], None]) -> None:
                _answer(options, bound, lambda note: None, ready, Metrics(Path(shared), slot))

            supervise(options.workers, work, started)
    else:
        _answer(options, bound, say, started, Metrics())


def _answer(
    options: ServeOptions,
    bound: socket.socket,
    say: Callable[[str], None],
    ready: Callable[[], None],
    metrics: Metrics,
) -> None:
    """Load the model and answer on the socket until SIGTERM or SIGINT."""
    import uvicorn

    from ping_llm.answer.model import Model
    from ping_llm.serve.app import create
    from ping_llm.serve.guard import Guard, Log
    from ping_llm.serve.model_thread import ModelThread
    from ping_llm.serve.protocol import protocol_class
    from ping_llm.serve.token_file import TokenFile

    tokens = None if options.token_file is None else TokenFile(options.token_file)
    log = Log()

    def load() -> Model:
        return Model.load(options.run, data=options.data if options.data is not None else not options.no_data)

    thread = ModelThread(load, options.queue, options.wait_ms, metrics, options.longest_wait)
    thread.report = lambda sentence: log.write(event="model", message=sentence)
    model = thread.start()
    if model.data_note:
        say(f"note: {model.data_note}")
    app = create(thread, options, metrics)
    app.state.at_start.append(
        lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, thread.reload)
    )

    def look_for_newer() -> None:
        looking = reload_when_newer(options.run, options.reload_seconds, thread.reload)
        app.state.looking = asyncio.create_task(looking)  # kept, because the loop does not keep tasks

    def publish() -> None:
        app.state.publishing = asyncio.create_task(metrics.keep_published(lambda: thread.waiting))

    if options.reload_seconds:
        app.state.at_start.append(look_for_newer)
    if options.workers > 1:
        app.state.at_start.append(publish)
    guarded = Guard(
        app,
        paths=frozenset(app.openapi()["paths"]) | {"/docs", "/openapi.json"},
        page=app.state.page,
        tokens=tokens,
        metrics=metrics,
        limits=options.limits,
        log=log,
        local=is_loopback(options.host),
        log_addresses=options.log_addresses,
    )
    config = uvicorn.Config(
        guarded,
        loop="asyncio",
        http=protocol_class(options.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=2 * options.limits.requests,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(options.drain_seconds),
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )
    # uvicorn drains, then sends itself the signal again: a requested end must not count as a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    ready()
    uvicorn.Server(config).run(sockets=[bound])
    metrics.publish(thread.waiting)


async def reload_when_newer(run: Path, seconds: float, reload: Callable[[], None]) -> None:
    """Call `reload` whenever `run` has another finished model; check every `seconds`, without end."""
    from ping_llm.model.export import state_of

    known = await asyncio.to_thread(state_of, run)
    while True:
        await asyncio.sleep(seconds)
        found = await asyncio.to_thread(state_of, run)
        # None: the model is being replaced, or its disk is not available.
        if found is not None and found != known:
            known = found
            reload()


def readable_by_others(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
