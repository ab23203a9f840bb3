"""`ping-llm fetch`: downloads from RIPE Atlas."""

import os
from pathlib import Path
from typing import Any

import typer

from ping_llm.cli.listing import Listing

fetch = typer.Typer(
    cls=Listing,
    help="Download results, dumps and probes of RIPE Atlas. An interrupted download resumes.",
    no_args_is_help=True,
)

_OUT = typer.Option(..., "--out", help="Folder for the downloads.", show_default=False)
_RETRIES = typer.Option(8, min=0, help="Failures in a row after which a download is given up.")
_KEY_FILE = typer.Option(
    None, "--key-file", help="File with an API key, for what is not public.  [default: ATLAS_API_KEY]"
)
_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    app.add_typer(fetch, name="fetch")


@fetch.command()
def atlas(
    msm: str = typer.Option(
        ..., "--msm", help="Ids of measurements, separated by commas.", show_default=False
    ),
    start: str = typer.Option(..., help="First time, such as 2024-05-01 or 2024-05-01T12:00Z."),
    stop: str = typer.Option(..., help="End time; results of that time are not included."),
    out: Path = _OUT,
    probes: str = typer.Option(
        "", help="Ids of probes, separated by commas.  [default: all]", show_default=False
    ),
    window: float = typer.Option(24.0, help="Hours per file; a file is fetched again after a failure."),
    base_url: str = typer.Option("https://atlas.ripe.net/api/v2/", help="Address of the API or a mirror."),
    key_file: Path | None = _KEY_FILE,
    retries: int = _RETRIES,
    as_json: bool = _JSON,
) -> None:
    """Fetch results of measurements from the Atlas API, as gzipped JSON lines."""
    from datetime import timedelta

    from ping_llm.fetch.atlas import ResultsOptions, fetch_results
    from ping_llm.fetch.server import Pace

    options = ResultsOptions(
        _ids(msm, "--msm"), _time(start, "--start"), _time(stop, "--stop"), _ids(probes, "--probes"),
        timedelta(hours=window), base_url,
    )  # fmt: skip
    figures = fetch_results(options, out, _key(key_file), Pace(retries=retries))
    _print(figures, as_json, f"ping-llm ingest {out} --out …")


@fetch.command()
def dump(
    hours: list[str] = typer.Argument(
        ..., metavar="HOUR…", help="Hours like 2024-05-01T07, or days like 2024-05-01.", show_default=False
    ),
    out: Path = _OUT,
    kind: str = typer.Option("ping", "--type", help="Kind of results: ping or traceroute."),
    base_url: str = typer.Option(
        "https://data-store.ripe.net/datasets/atlas-daily-dumps/", help="Address of the dumps or a mirror."
    ),
    retries: int = _RETRIES,
    as_json: bool = _JSON,
) -> None:
    """Fetch hours of the daily dumps: all public results, about 1 GB of pings per hour."""
    from ping_llm.fetch.dumps import fetch_dumps, hours_of
    from ping_llm.fetch.server import Pace

    wanted = [hour for text in hours for hour in hours_of(text)]
    figures = fetch_dumps(wanted, out, kind, base_url, Pace(retries=retries))
    _print(figures, as_json, f"ping-llm ingest {out} --out …")


@fetch.command()
def probes(
    out: Path = typer.Option(..., "--out", help="File for the table (Parquet).", show_default=False),
    base_url: str = typer.Option("https://atlas.ripe.net/api/v2/", help="Address of the API or a mirror."),
    key_file: Path | None = _KEY_FILE,
    retries: int = _RETRIES,
    as_json: bool = _JSON,
) -> None:
    """Fetch the list of probes: addresses, networks, countries and places."""
    from ping_llm.fetch.atlas import fetch_probes
    from ping_llm.fetch.server import Pace

    _print(fetch_probes(out, base_url, _key(key_file), Pace(retries=retries)), as_json)


def _print(figures: dict[str, Any], as_json: bool, following: str = "") -> None:
    from ping_llm.tables import print_json

    if as_json:
        print_json(figures)
        return
    print(" · ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in figures.items()))
    if following:
        print(f"next: {following}")


def _ids(text: str, option: str) -> list[int]:
    from ping_llm.errors import UsageError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not (part.isascii() and part.isdecimal()):
            raise UsageError(f"{option} must be numbers with commas, such as 1001,1004, not {part!r}")
    return [int(part) for part in parts]


def _time(text: str, option: str) -> Any:
    from datetime import UTC, datetime

    from ping_llm.errors import UsageError

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} must be like 2024-05-01 or 2024-05-01T12:00Z, not {text!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)


def _key(file: Path | None) -> str | None:
    """Return the key from the file or the environment: all users of the machine see the command line."""
    from ping_llm.errors import UsageError

    if file is None:
        return os.environ.get("ATLAS_API_KEY") or None
    key = file.read_text().strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{file} must hold one API key and nothing else")
    return key
