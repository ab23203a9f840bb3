"""ping-llm split"""

from pathlib import Path
from typing import Any

import typer

HELD_OUT = "held-out"


def register(app: typer.Typer) -> None:
    @app.command()
    def split(
        inputs: list[str] = typer.Argument(
            ...,
            metavar="IN...",
            help="Measurements, or whatever `ingest` reads: files, folders or patterns.",
            show_default=False,
        ),
        out: Path = typer.Option(..., "--out", help="Folder for the parts.", show_default=False),
        by: str = typer.Option(
            "time",
            help="What is never in two parts: time, probe (a source), pair or row; or held-out, the split "
            "that `evaluate` measures on.",
        ),
        fractions: str | None = typer.Option(
            None,
            help="Fractions of train, val and test, or of train and test. [default: 0.8,0.1,0.1]",
        ),
        shards: int | None = typer.Option(
            None, help="Number of files in all parts together. [default: one per 500,000 rows, at least 10]"
        ),
        stratify: str | None = typer.Option(
            None, help="Columns to spread evenly over the files: time, msm_id, ip_version, failed, probe_id."
        ),
        gap: str | None = typer.Option(
            None, help="Time to leave out between parts, by time only: 90s, 15m, 6h, 2d."
        ),
        time: float | None = typer.Option(
            None, help="Held-out: share of the measurements, oldest first, to train on. [default: 0.8]"
        ),
        pairs: float | None = typer.Option(
            None, help="Held-out: share of the pairs to hold out. [default: 0.1]"
        ),
        sources: float | None = typer.Option(
            None, help="Held-out: share of the sources to hold out. [default: 0.1]"
        ),
        destinations: float | None = typer.Option(
            None, help="Held-out: share of the destinations to hold out. [default: 0.1]"
        ),
        seed: int = typer.Option(0, help="Random seed of the hash that decides; time needs none."),
        memory: int = typer.Option(1_000, help="Memory limit of DuckDB in MB. Larger data spill to disk."),
        threads: int = typer.Option(2, min=1, help="Threads DuckDB may use."),
        as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    ) -> None:
        """Split measurements for training and tests, without leakage.

        The parts are checked for leaks after they are written."""
        sharded = {"--fractions": fractions, "--shards": shards, "--stratify": stratify, "--gap": gap}
        held_out = {
            "--time": time,
            "--pairs": pairs,
            "--sources": sources,
            "--destinations": destinations,
        }
        _refuse_given(sharded if by == HELD_OUT else held_out, by)
        if by == HELD_OUT:
            shares = {name.removeprefix("--"): share for name, share in held_out.items() if share is not None}
            _held_out(inputs, out, {**shares, "seed": seed}, as_json)
            return
        _shard(
            inputs, out, as_json, memory, threads,
            by=by, fractions=fractions, shards=shards, stratify=stratify, gap=gap, seed=seed,
        )  # fmt: skip


def _refuse_given(others: dict[str, Any], by: str) -> None:
    from ping_llm.errors import UsageError

    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UsageError(f"{given[0]} does not apply to --by {by}.")


def _held_out(inputs: list[str], out: Path, shares: dict[str, Any], as_json: bool) -> None:
    from ping_llm.ingest.tabled import as_tables
    from ping_llm.splits.holdout import SplitOptions, write_held_out
    from ping_llm.tables import print_json, table

    options = SplitOptions(**shares)
    with as_tables(inputs, out) as tables:
        report = write_held_out(tables, out, options)
    if as_json:
        print_json(report)
        return
    lines = [*report["parts"].items(), ("unused", report["unused"]), ("in", report["in"])]
    print(table(lines, ("part", "measurements")))


def _shard(
    inputs: list[str],
    out: Path,
    as_json: bool,
    memory: int,
    threads: int,
    *,
    by: str,
    fractions: str | None,
    shards: int | None,
    stratify: str | None,
    gap: str | None,
    seed: int,
) -> None:
    from ping_llm.ingest.tabled import as_tables
    from ping_llm.splits.options import ShardOptions, parse_duration, parse_fractions
    from ping_llm.splits.run import shard
    from ping_llm.tables import print_json, table

    options = ShardOptions(
        by=by,
        fractions=parse_fractions("0.8,0.1,0.1" if fractions is None else fractions),
        shards=shards,
        stratify=tuple(name.strip() for name in (stratify or "").split(",") if name.strip()),
        gap_seconds=parse_duration("0s" if gap is None else gap),
        seed=seed,
    )
    with as_tables(inputs, out) as tables:
        report = shard(tables, out, options, memory, threads)
    if as_json:
        print_json(report.content)
        return
    splits = report.content["splits"]
    header = ["split", *next(iter(splits.values()))]
    print(table([[name, *figures.values()] for name, figures in splits.items()], header))
    print()
    for check in report.content["checks"]:
        figures = ", ".join(f"{name} {value}" for name, value in check["figures"].items())
        print(f"{'holds' if check['holds'] else 'BROKEN'}: {check['promise']} ({figures})")
    if report.was_done:
        print(f"\nNothing was written: {out} has these shards already.")
