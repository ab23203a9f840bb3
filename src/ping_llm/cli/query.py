"""`ping-llm query …`: questions to a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ping_llm.errors import UsageError

if TYPE_CHECKING:
    from ping_llm.query.context import Context
    from ping_llm.query.model import Model

_RUN = typer.Argument(help="A run, a checkpoint or an export.", show_default=False)
_SRC = typer.Option(None, "--src", help="Source: an address or a prefix (203.0.113.0/24, 203.0.113.?).")
_DST = typer.Option(None, "--dst", help="Destination: an address or a prefix.")
_AT = typer.Option(
    None, "--at", help="When: 2024-05-01T12:00:00Z, or seconds since 1970. Not given: unknown."
)
_CONTEXT = typer.Option(None, "--context", help="Past measurements of the source: .parquet, .csv or .jsonl.")
_JSON = typer.Option(False, "--json", help="Print JSON.")
_PNG = typer.Option(None, "--png", help="Draw the answer to this file.")


def register(app: typer.Typer) -> None:
    query = typer.Typer(help="Ask a trained model.", no_args_is_help=True)
    app.add_typer(query, name="query")
    query.command("rtt")(rtt)


def rtt(
    run: Path = _RUN,
    src: str | None = _SRC,
    dst: str | None = _DST,
    at: str | None = _AT,
    context: Path | None = _CONTEXT,
    below: float | None = typer.Option(None, "--below", help="Also P(rtt < this many ms)."),
    all_orders: bool = typer.Option(False, "--all-orders", help="Average over the orders of the fields."),
    as_json: bool = _JSON,
    png: Path | None = _PNG,
) -> None:
    """How long will a packet take from here to there, and will it come back at all?"""
    from ping_llm.query import show
    from ping_llm.tables import print_json

    if src is None or dst is None:
        raise UsageError("say --src and --dst, or give a table with --pairs")
    model = _load(run)
    answer = model.rtt(src, dst, at, _context(src, context), all_orders=all_orders)
    if png is not None:
        show.rtt_picture(answer, png)
    if as_json:
        print_json(show.rtt_values(answer, below))
    else:
        print(show.rtt_text(answer, below))


def _load(run: Path) -> "Model":
    import ping_llm

    return ping_llm.load(run)


def _context(src: str, path: Path | None) -> "Context | None":
    """The measurements of a file. All must be the asked source's: a context belongs to one."""
    if path is None:
        return None
    from ping_llm.query.context import Context
    from ping_llm.query.files import read_columns

    columns = read_columns(path)
    return Context.of(columns.src, columns.dst, columns.time, columns.rtt)
