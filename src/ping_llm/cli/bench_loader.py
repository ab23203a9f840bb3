"""ping-llm bench loader"""

from pathlib import Path

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    @bench_app.command()
    def loader(
        rows: Path | None = typer.Option(
            None, help="Probe rows to measure on. [default: simulated for this]"
        ),
        measurements: int = typer.Option(1_000_000, help="Of the simulated rows."),
        length: int = typer.Option(1024, help="Tokens of a sequence."),
        batch_size: int = typer.Option(32, help="Sequences of a batch."),
        seconds: float = typer.Option(3.0, help="Of each turn."),
        turns: int = typer.Option(3, help="Of each contestant; the fastest counts."),
        startup_rows: int = typer.Option(7_000_000, help="Rows for the start-up time; 0 leaves it out."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Tokens a second against plain Python and pre-tokenized data; start-up and memory."""
        from ping_llm.bench.loader import LoaderBench, measure
        from ping_llm.tables import print_json, table

        figures = measure(LoaderBench(measurements, length, batch_size, seconds, turns, startup_rows), rows)
        if as_json:
            print_json(figures)
        else:
            print(table(list(figures.items())))
