"""ping-llm bench rows"""

from pathlib import Path

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    bench_app.command("rows")(rows)


def rows(
    measurements: int = typer.Option(5_000_000, "--measurements", "-n", help="Simulated measurements."),
    data: Path | None = typer.Option(None, help="A folder of measurements to use instead."),
    hot: int = typer.Option(0, help="Add one source with this many measurements."),
    legacy_measurements: int = typer.Option(200_000, help="How many of them the earlier design gets."),
    workers: int = typer.Option(0, help="Threads. 0: one a core."),
    memory_limit: str = typer.Option("4GB", help="As for rows build."),
    repeats: int = typer.Option(2, help="Runs of each; the best counts."),
    only_build: bool = typer.Option(False, help="Leave out the limit and the earlier design."),
    scratch: Path | None = typer.Option(None, help="Where to keep data meanwhile. [default: the system's]"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Speed and memory of building rows, beside DuckDB's own sort and an earlier design."""
    from ping_llm.bench.rows import BenchOptions, bench
    from ping_llm.tables import print_json, table

    report = bench(
        BenchOptions(
            measurements, data, hot, legacy_measurements, workers, memory_limit, repeats, only_build, scratch
        )
    )
    if as_json:
        print_json(report)
    else:
        print(table([(name, value) for name, value in report.items() if name != "runs"]))
