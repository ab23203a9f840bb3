"""ping-llm simulate"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def simulate(
        out: Path = typer.Argument(help="Folder for date=YYYY-MM-DD/*.parquet and world.json."),
        measurements: int = typer.Option(
            1_000_000, "--measurements", "-n", help="Number of measurements, exactly."
        ),
        probes: int | None = typer.Option(None, help="Number of sources. [default: one per 28 measurements]"),
        targets: int | None = typer.Option(
            None, help="Number of destinations, each with an IPv4 and an IPv6 address. [default: 4 √probes]"
        ),
        days: int | None = typer.Option(None, help="Number of days. [default: 7 for a million measurements]"),
        seed: int = typer.Option(0, help="Random seed; the same seed gives the same bytes."),
        ases: int | None = typer.Option(None, help="Number of ASes. [default: √(probes + targets)]"),
        ipv6: float = typer.Option(0.42, help="Share of IPv6 measurements."),
        failed: float = typer.Option(0.035, help="Share of measurements without a reply."),
        start: str = typer.Option("2024-01-01", help="First day, as YYYY-MM-DD."),
        as_json: bool = typer.Option(False, "--json", help="Print the options and the time taken as JSON."),
    ) -> None:
        """Write measurements of a synthetic Internet whose true distribution is known.

        Run again after an interruption, it keeps the days that are whole.
        """
        import time

        from ping_llm.simulate import WorldOptions
        from ping_llm.simulate import simulate as write
        from ping_llm.tables import print_json, table

        begun = time.monotonic()
        options = WorldOptions(
            measurements=measurements,
            probes=probes,
            targets=targets,
            days=days,
            seed=seed,
            ases=ases,
            ipv6_share=ipv6,
            failed_share=failed,
            start=start,
        )
        world = write(out, options)
        seconds = time.monotonic() - begun
        result = {**world.options.to_json(), "out": str(out), "seconds": round(seconds, 2)}
        if as_json:
            print_json(result)
        else:
            print(table([(name, str(value)) for name, value in result.items()]))
