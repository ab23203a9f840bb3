"""`ping-llm mcp`: tools for assistants."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ping_llm.cli import query, rtt

if TYPE_CHECKING:
    from ping_llm.answer.model import Model
    from ping_llm.answer.remote import Remote


def register(app: typer.Typer) -> None:
    app.command("mcp")(mcp)


def mcp(
    run: Path | None = typer.Argument(
        None, help="Run, checkpoint or export. Without one, --url must be given.", show_default=False
    ),
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    url: str | None = rtt.URL,
    token_file: Path | None = rtt.TOKEN_FILE,
    ca: Path | None = rtt.CA,
    places: list[Path] = query.PLACES,
    resolve_hosts: bool = typer.Option(
        True, "--resolve-hosts/--no-resolve-hosts", help="Whether host names are resolved, by this machine."
    ),
) -> None:
    """Serve tools for assistants (Model Context Protocol).

    The tools are rtt, rank and anomalies, over standard input and output."""
    from ping_llm.errors import UsageError
    from ping_llm.extras import need

    need("mcp")
    if (run is None) == (url is None):
        raise UsageError("either RUN or --url must be given")
    model: Model | Remote
    if run is not None:
        if token_file is not None or ca is not None:
            raise UsageError("--token-file and --ca need --url")
        model = query.load(run, data, no_data)
        model.places = places
    else:
        if data is not None or no_data or places:
            raise UsageError("--url excludes --data, --no-data and --places: the server has its own")
        assert url is not None
        model = rtt.connect(url, token_file, ca)
    from ping_llm.serve.mcp import create

    create(model, model.names if resolve_hosts else model.names.without_hosts()).run()
