"""ping-llm pretokenize"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def pretokenize(
        rows: Path = typer.Argument(..., metavar="IN", help="Probe rows."),
        out: Path = typer.Option(..., "--out", help="Folder for the Parquet."),
        length: int = typer.Option(1024, help="Tokens of the longest context."),
        epochs: int = typer.Option(1, help="How many epochs to write out."),
        seed: int = typer.Option(0),
        threads: int = typer.Option(2),
        change: list[str] | None = typer.Option(
            None, "--set", metavar="KEY=VALUE", help="Change a sampling option; may be repeated."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Write contexts as tokens, one a record, to compare with making them at run time."""
        from ping_llm.cli.batches import options_of, rows_below
        from ping_llm.contexts.batches import Batches
        from ping_llm.contexts.pretokenized import pretokenize as write
        from ping_llm.tables import print_json, table

        with Batches(
            rows_below(rows),
            options_of({}, change or []),
            batch_size=256,
            length=length,
            seed=seed,
            epochs=epochs,
            threads=threads,
        ) as batches:
            description = write(batches, out)
        if as_json:
            print_json(description)
        else:
            print(table([("contexts", description["contexts"]), ("tokens", description["tokens"])]))
