"""ping-llm describe, ping-llm sample"""

from pathlib import Path

import typer

_PATHS = typer.Argument(
    ..., metavar="PATH…", help="Measurements, the folder of a sharding, or raw input.", show_default=False
)


def register(app: typer.Typer) -> None:
    @app.command()
    def describe(
        paths: list[str] = _PATHS,
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
        html: Path | None = typer.Option(None, "--html", help="Also write a page with plots to this file."),
        memory: int = typer.Option(1_000, help="MB for DuckDB; what is more goes to disk."),
        threads: int = typer.Option(2, min=1, help="Of DuckDB."),
        temporary: Path | None = typer.Option(None, help="Folder for what does not fit into memory."),
    ) -> None:
        """Count and measure: span, sources, RTT percentiles, failures, gaps, coverage by day."""
        from ping_llm.describe import describe as run
        from ping_llm.files import write_text
        from ping_llm.tables import print_json

        description = run(paths, memory, threads, temporary)
        if html is not None:
            write_text(html, description.as_html())
        if as_json:
            print_json(description.as_json())
        else:
            print(description.as_text())

    @app.command()
    def sample(
        paths: list[str] = _PATHS,
        count: int = typer.Option(20, "-n", min=1, help="How many."),
        seed: int = typer.Option(0, min=0, help="The same seed draws the same rows."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Print a few measurements, drawn evenly from all."""
        from ping_llm.describe import sample as draw
        from ping_llm.tables import print_json, table

        rows = draw(paths, count, seed).to_pylist()
        for row in rows:
            row["event_time"] = row["event_time"].isoformat().replace("+00:00", "Z")
        if as_json:
            print_json(rows)
            return
        for row in rows:
            row["rtt"] = "no reply" if row["rtt"] == -1 else f"{row['rtt']:,.3f}"
            for name in ("msm_id", "size", "packet_error_count", "probe_id"):
                row[name] = "" if row[name] is None else str(row[name])
        print(table([list(row.values()) for row in rows], list(rows[0])))
