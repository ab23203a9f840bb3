"""The `ping-llm` program: one Typer app, one module a room.

The modules here declare options and print results; they import their rooms inside the functions,
because `ping-llm --help` must answer in well under half a second and JAX alone takes longer.
"""

import importlib
import os
import sys

import typer

from ping_llm.errors import PingError, UsageError

app = typer.Typer(
    name="ping-llm",
    help="Learn the joint distribution of Internet latency measurements, and ask it questions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

bench_app = typer.Typer(
    help="Measure speed, in one run, against the limit and the usual way.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench")

# In the order of the work: the help shows them so. Each module has register(app);
# a bench_* module registers on bench_app.
_ROOMS = (
    "doctor",
    "simulate",
    "ingest",
    "shard",
    "describe",
    "rows",
    "tokens",
    "batches",
    "pretokenize",
    "train",
    "runs",
    "query",
    "export",
    "evaluate",
    "bench_query",
    "bench_ingest",
    "bench_rows",
    "bench_train",
    "bench_loader",
    "bench_feed",
    "bench_encodings",
    "demo",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ping_llm import __version__

        typer.echo(f"ping-llm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    if debug:
        os.environ["PING_LLM_DEBUG"] = "1"


def main() -> None:
    """Run the program. Exit codes: 0 done, 1 failed, 2 bad usage."""
    for room in _ROOMS:
        importlib.import_module(f"ping_llm.cli.{room}").register(app)
    try:
        app()
    except UsageError as error:
        _fail(error, 2)
    except PingError as error:
        _fail(error, 1)
    except BrokenPipeError:
        # The reader (head, less) went away: not our failure. Keep the interpreter from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error} (ping-llm --debug … shows where)", 1)


def _fail(error: PingError | str, code: int) -> None:
    if os.environ.get("PING_LLM_DEBUG"):
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    print(f"ping-llm: {error}", file=sys.stderr)
    sys.exit(code)
