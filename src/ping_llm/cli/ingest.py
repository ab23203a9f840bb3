"""ping-llm ingest"""

import sys
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def ingest(
        inputs: list[str] = typer.Argument(
            ...,
            metavar="INPUT…",
            help="Files, folders, patterns, or - for standard input.",
            show_default=False,
        ),
        out: Path = typer.Option(..., "--out", help="Folder of the table.", show_default=False),
        rtt: str = typer.Option(
            "avg", help="avg, min or max of a result's packets, or each: one row a packet."
        ),
        source: str = typer.Option("auto", help="from, src_addr, or auto: src_addr if public, else from."),
        workers: int = typer.Option(0, min=0, help="Processes; 0 takes one a core."),
        keep_going: bool = typer.Option(False, "--keep-going", help="Exit with 0 in spite of damaged files."),
        overwrite: bool = typer.Option(False, "--overwrite", help="Replace a table made from other inputs."),
        as_json: bool = typer.Option(False, "--json", help="Print ingest.json."),
    ) -> None:
        """Read ping results of RIPE Atlas, or tables, into one validated table; account for every result."""
        from ping_llm.ingest.options import IngestOptions
        from ping_llm.ingest.run import ingest as run
        from ping_llm.tables import print_json, table

        report = run(inputs, out, IngestOptions(rtt, source), workers or None, overwrite)
        if as_json:
            print_json(report.as_json())
        else:
            rows = [
                (path, a.results, a.measurements, a.duplicates, a.not_pings, a.rejected)
                for path, a, _ in report.files
            ]
            total = report.total
            shown = rows if len(rows) <= 20 else []
            shown.append(
                (
                    "total",
                    total.results,
                    total.measurements,
                    total.duplicates,
                    total.not_pings,
                    total.rejected,
                )
            )
            print(table(shown, ("file", "results", "measurements", "duplicates", "not pings", "rejects")))
            if total.rejects:
                print()
                print(table(total.rejects.most_common(), ("rejected because", "results")))
        for sentence in report.troubles:
            print(f"ping-llm: {sentence}", file=sys.stderr)
        if report.troubles and not keep_going:
            raise typer.Exit(1)
