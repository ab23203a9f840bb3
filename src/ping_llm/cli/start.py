"""Commands for a first look: doctor, describe, sample and demo."""

from pathlib import Path

import typer

from ping_llm.paths import printable


def register_doctor(app: typer.Typer) -> None:
    @app.command()
    def doctor(
        run: Path | None = typer.Argument(None, help="Run to examine instead of the machine."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Report what this machine has, and what is missing.

        Says what each part is needed for, and how to install it."""
        from ping_llm.doctor import examine
        from ping_llm.tables import print_json, table

        if run is not None:
            from ping_llm.model.doubts import examine_run

            findings = examine_run(run)
        else:
            findings = examine()
        if as_json:
            print_json([finding.as_dict() for finding in findings])
        else:
            rows = [(item.part, item.state, item.found, item.needed_for, item.remedy) for item in findings]
            typer.echo(table(rows, ("part", "state", "found", "needed for", "how to get it")))
        if any(finding.state == "broken" for finding in findings):
            raise typer.Exit(1)


_PATHS = typer.Argument(
    ..., metavar="PATH…", help="Measurements, a folder of splits, or raw input.", show_default=False
)


def register_describe(app: typer.Typer) -> None:
    @app.command()
    def describe(
        paths: list[str] = _PATHS,
        places: list[Path] = typer.Option(
            [],
            "--places",
            help="Table of prefix, country, asn, or .mmdb: adds figures by country and AS. May be repeated.",
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
        html: Path | None = typer.Option(None, "--html", help="HTML file to write, with plots."),
        memory: int = typer.Option(1_000, help="Memory limit of DuckDB in MB. Larger data spill to disk."),
        threads: int = typer.Option(2, min=1, help="Threads DuckDB may use."),
        temporary: Path | None = typer.Option(
            None, help="Folder for data that do not fit into memory.  [default: the system's]"
        ),
    ) -> None:
        """Summarise measurements: sources, RTTs, failures, coverage.

        Also the time span, RTT percentiles, gaps, and the coverage per day."""
        from ping_llm.describe import describe as run
        from ping_llm.files import write_text
        from ping_llm.tables import print_json

        located = None
        if places:
            from ping_llm.measurements.places import Places

            located = Places(places)
        description = run(paths, memory, threads, temporary, located)
        if html is not None:
            write_text(html, description.as_html())
        if as_json:
            print_json(description.as_json())
        else:
            print(description.as_text())
        for sentence in description.troubles:
            typer.echo(f"ping-llm: {printable(sentence)}", err=True)
        if description.troubles:
            raise typer.Exit(1)

    @app.command()
    def sample(
        paths: list[str] = _PATHS,
        count: int = typer.Option(20, "-n", min=1, help="Number of measurements."),
        seed: int = typer.Option(0, min=0, help="Random seed."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Print a random sample of measurements."""
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
            for name in ("msm_id", "size", "packet_error_count", "probe_id", "throughput_mbps"):
                if name in row:
                    row[name] = "" if row[name] is None else str(row[name])
        print(table([list(row.values()) for row in rows], list(rows[0])))


def register_demo(app: typer.Typer) -> None:
    @app.command()
    def demo(
        out: Path = typer.Option(
            Path("runs/demo"), help="Folder of the run. The simulated data go to OUT-world."
        ),
        minutes: float = typer.Option(
            0.0, help="Minutes of training. 0: as many as fit into a demo of ten minutes."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print summary.json instead of text."),
    ) -> None:
        """Fit a model to a simulated Internet; compare with the truth."""
        from dataclasses import replace

        from ping_llm.demo.run import DemoOptions, last_screen, run_demo
        from ping_llm.tables import print_json

        options = replace(DemoOptions(), minutes=minutes) if minutes else DemoOptions()
        summary = run_demo(out, options, lambda text: typer.echo(text, err=True))
        if as_json:
            print_json(summary)
        else:
            typer.echo(last_screen(summary, str(out)))
