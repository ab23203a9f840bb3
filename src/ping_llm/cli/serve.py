"""`ping-llm serve`: answers over HTTP."""

from pathlib import Path

import typer

from ping_llm.cli import query


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    run: Path = typer.Argument(
        Path("base"),
        help="Run, checkpoint or export. base: the model in the package, which answers from --data.",
        show_default=True,
    ),
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    places: list[Path] = typer.Option(
        [],
        "--places",
        help="Places for the map and for names such as AS3333: a table of prefix and latitude, longitude, "
        "country or asn, the table of `fetch probes`, or an .mmdb. May be repeated.",
    ),
    resolve_hosts: bool = typer.Option(
        False,
        "--resolve-hosts",
        help="Resolve host names in requests. Needs --token-file where other machines can ask.",
    ),
    host: str = typer.Option(
        "127.0.0.1",
        "--host",
        help="Address to listen on. Others than 127.0.0.1 need --token-file or --no-auth.",
    ),
    port: int = typer.Option(8000, "--port", min=0, max=65535, help="Port to listen on. 0: any free one."),
    token_file: Path | None = typer.Option(
        None, "--token-file", help="File of lines `name: token`: requests need one of the tokens."
    ),
    no_auth: bool = typer.Option(False, "--no-auth", help="Let anyone ask who can reach the address."),
    tls_cert: Path | None = typer.Option(None, "--tls-cert", help="Certificate chain (PEM), for HTTPS."),
    tls_key: Path | None = typer.Option(None, "--tls-key", help="Private key (PEM) of the certificate."),
    workers: int = typer.Option(
        1, "--workers", min=1, help="Processes that answer, each with a model and a queue of its own."
    ),
    queue: int = typer.Option(1000, "--queue", help="Questions that may wait. One more is refused with 503."),
    wait: float = typer.Option(2.0, "--wait", help="Time that a question waits for others to join it, ms."),
    longest_wait: float = typer.Option(
        10.0, "--longest-wait", help="Expected waiting time beyond which a request is refused with 503, s."
    ),
    drain: float = typer.Option(30.0, "--drain", help="Time for requests in progress after SIGTERM, s."),
    reload: float = typer.Option(
        10.0, "--reload", help="Time between checks for a newer model in the run, s. 0: only on SIGHUP."
    ),
    log_addresses: bool = typer.Option(
        False, "--log-addresses", help="Write the clients' addresses into the access log."
    ),
) -> None:
    """Answer questions over HTTP, as JSON (docs/serve.md)."""
    from ping_llm.errors import UsageError
    from ping_llm.extras import need

    need("serve")
    from ping_llm.serve.options import ServeOptions
    from ping_llm.serve.run import serve as run_server

    if data is not None and no_data:
        raise UsageError("--data and --no-data exclude each other")
    options = ServeOptions(
        run=run,
        data=data,
        no_data=no_data,
        places=tuple(places),
        resolve_hosts=resolve_hosts,
        host=host,
        port=port,
        token_file=token_file,
        workers=workers,
        queue=queue,
        wait_ms=wait,
        longest_wait=longest_wait,
        drain_seconds=drain,
        reload_seconds=reload,
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_addresses=log_addresses,
    )
    run_server(options, no_auth, lambda line: print(line, flush=True))
