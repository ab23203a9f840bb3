"""ping-llm bench feed"""

from pathlib import Path

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    @bench_app.command()
    def feed(
        tokens_per_s: float = typer.Option(1_000_000, "--tokens-per-s", help="What the accelerator eats."),
        rows: Path | None = typer.Option(
            None, help="Probe rows to measure on. [default: simulated for this]"
        ),
        seconds: float = typer.Option(10.0, help="How long to eat."),
        length: int = typer.Option(1024, help="Tokens of a sequence."),
        batch_size: int = typer.Option(32, help="Sequences of a batch."),
        threads: int = typer.Option(1, help="Threads of the loader."),
        workers: int = typer.Option(0, help="Grain worker processes instead of threads."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Play an accelerator beside the loader: how much of the time does it wait?"""
        import shutil
        import tempfile

        from ping_llm.bench.feed import FeedBench, measure
        from ping_llm.bench.loader import simulated_rows
        from ping_llm.tables import print_json, table

        bench = FeedBench(tokens_per_s, seconds, batch_size, length, threads, workers)
        folder = Path(tempfile.mkdtemp(prefix="ping-llm-bench-"))
        try:
            figures = measure(bench, rows or simulated_rows(folder, 300_000))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if as_json:
            print_json(figures)
        else:
            print(table(list(figures.items())))
