"""The `ping-llm` program: one Typer app, one module per group of commands.

The modules here declare options and print results; they import other packages inside the functions,
because `ping-llm --help` must answer in well under half a second and JAX alone takes longer.
"""

import codecs
import errno
import importlib
import io
import logging
import os
import sys
from pathlib import Path

import typer

from ping_llm import files
from ping_llm.cli.listing import Program
from ping_llm.errors import PingError, UsageError
from ping_llm.extras import missing
from ping_llm.paths import printable

app = typer.Typer(
    name="ping-llm",
    cls=Program,
    help="Learn the joint distribution of Internet latency measurements, and query it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# In the order of the work. "MODULE" is registered by its register(app), "MODULE:NAME" by register_NAME(app).
_COMMANDS = (
    "bench",
    "start:doctor",
    "simulate",
    "fetch",
    "ingest",
    "split",
    "start:describe",
    "rows",
    "contexts:tokens",
    "contexts:batches",
    "contexts:pretokenize",
    "fit",
    "train:train",
    "train:runs",
    "query",
    "decide",
    "watch",
    "serve",
    "mcp",
    "train:export",
    "evaluate",
    "start:demo",
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
    _write_any_text()
    _quiet_without_gpus()
    files.process_that_says_compiling = os.getpid()
    for command in _COMMANDS:
        module, _, name = command.partition(":")
        function = f"register_{name}" if name else "register"
        getattr(importlib.import_module(f"ping_llm.cli.{module}"), function)(app)
    try:
        _run(sys.argv[1:])
    except UsageError as error:
        _fail(error, 2)
    except PingError as error:
        _fail(error, 1)
    except BrokenPipeError:
        # The reader (head, less) has ended, which is no failure. Keep the interpreter from flushing to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except ModuleNotFoundError as error:
        _fail(missing(error), 1)
    except OSError as error:
        _fail(_file_trouble(error), 1)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error} (ping-llm --debug … shows where)", 1)
    finally:
        files.process_that_says_compiling = 0


def _run(words: list[str]) -> None:
    """Run a command, with local copies of its paths at s3:// or gs://."""
    if not any(":/" in word for word in words):
        app(words)
    from ping_llm.stores import localised

    words, finish = localised(words)
    try:
        app(words)
    except SystemExit as end:
        if end.code in (None, 0):
            finish()
        raise


# ASCII forms of other characters that we print, for terminals that cannot show them.
_PLAIN = {"…": "...", "·": "|", "–": "-", "→": "->", "×": "x", "µ": "u", "√": "sqrt", "▸": ">"}
_PLAIN |= dict.fromkeys("▇█▉▊▋▌", "#") | dict.fromkeys("▍▎▏", " ")  # bars


def _write_any_text() -> None:
    """Allow output in Latin-1 or ASCII, and of file names that are not valid text."""
    codecs.register_error("ping_llm", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ping_llm")


def _quiet_without_gpus(devices: Path = Path("/dev")) -> None:
    """Suppress JAX's traceback about CUDA on a machine without a GPU, such as a login node.

    With CUDA wheels and no driver, JAX prints one and uses CPUs. With a driver, the user needs to see it.
    """
    if not any(devices.glob("nvidia*")) and not (devices / "dxg").exists():  # dxg: the GPU of WSL
        filtered = logging.getLogger("jax._src.xla_bridge")
        filtered.addFilter(lambda record: "plugin configuration error" not in str(record.msg))


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Replace what cannot be encoded by plain characters or by JSON escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    spelled = []
    for character in error.object[error.start : error.end]:
        units = character.encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        spelled.append(_PLAIN.get(character, escaped))
    return "".join(spelled), error.end


def _file_trouble(error: OSError) -> str:
    """Return a sentence with the file or folder that cannot be read or written, and the reason."""
    if error.errno == errno.ENOSPC:
        return f"the disk is full ({error}); make room and run the same command again"
    if error.filename is None or error.strerror is None:
        return str(error) or type(error).__name__
    if isinstance(error, FileExistsError) and os.path.isfile(error.filename):  # noqa: PTH113
        return f"{os.fsdecode(error.filename)} is a file: name a folder"
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return f"{' and '.join(names)}: {error.strerror}"


def _fail(error: PingError | str, code: int) -> None:
    if os.environ.get("PING_LLM_DEBUG"):
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    print(f"ping-llm: {printable(str(error))}", file=sys.stderr)
    sys.exit(code)
