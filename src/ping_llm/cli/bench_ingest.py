"""ping-llm bench ingest"""

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    @bench_app.command()
    def ingest(
        inputs: list[str] = typer.Argument(
            None, metavar="[INPUT…]", help="Gzipped JSON lines; without any, results are made up."
        ),
        results: int = typer.Option(2_000_000, help="Results to make up."),
        files: int = typer.Option(8, help="Files to put them in."),
        workers: int = typer.Option(0, min=0, help="Processes for the scaling; 0 takes one a core."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Ingest, against bare decompression and JSON parsing of the same files."""
        from ping_llm.bench.ingest import run
        from ping_llm.tables import print_json, table

        measured = run(inputs or [], results, files, workers or None).as_json()
        if as_json:
            print_json(measured)
        else:
            print(table([(name.replace("_", " "), value) for name, value in measured.items()]))
