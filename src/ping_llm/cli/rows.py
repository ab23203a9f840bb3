"""ping-llm rows"""

from pathlib import Path

import typer

from ping_llm.tables import print_json, table


def register(app: typer.Typer) -> None:
    rows = typer.Typer(help="Group measurements by source into probe rows.", no_args_is_help=True)
    app.add_typer(rows, name="rows")

    @rows.command()
    def build(
        inputs: list[str] = typer.Argument(..., metavar="IN...", help="Parquet files, folders or globs."),
        out: Path = typer.Option(..., "--out", help="Folder for the rows."),
        max_row_mib: int = typer.Option(8, help="A longer history is split into consecutive rows."),
        as_json: bool = typer.Option(False, "--json", help="Print the manifest's counts as JSON."),
    ) -> None:
        """Build probe rows from measurements."""
        from ping_llm.rows.build import RowOptions
        from ping_llm.rows.build import build as run

        manifest = run(inputs, out, RowOptions(max_row_mib=max_row_mib))
        counts = manifest["counts"]
        if as_json:
            print_json(counts)
            return
        lines = [(name, counts[name]) for name in ("in", "measurements", "rows")]
        lines += [(f"rejected: {reason}", count) for reason, count in counts["rejected"].items()]
        print(table(lines))
