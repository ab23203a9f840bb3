"""ping-llm simulate"""

from pathlib import Path
from typing import Any

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def simulate(
        out: Path = typer.Argument(help="Folder for date=YYYY-MM-DD/*.parquet and world.json."),
        measurements: int = typer.Option(
            1_000_000, "--measurements", "-n", help="Number of measurements, exactly."
        ),
        worlds: int | None = typer.Option(
            None,
            help="Number of different worlds that share the measurements, in folders of their own. Sizes and "
            "shares are drawn for each.",
        ),
        probes: int | None = typer.Option(None, help="Number of sources. [default: one per 28 measurements]"),
        targets: int | None = typer.Option(
            None,
            help="Number of destinations, each with an IPv4 and an IPv6 address. [default: 4 √probes, "
            "at least 8]",
        ),
        days: int | None = typer.Option(None, help="Number of days. [default: 7 for a million measurements]"),
        seed: int = typer.Option(0, help="Random seed; the same seed gives the same bytes."),
        ases: int | None = typer.Option(
            None, help="Number of ASes. [default: √(probes + targets), at least 4]"
        ),
        ipv6: float | None = typer.Option(None, help="Share of IPv6 measurements. [default: 0.42]"),
        failed: float | None = typer.Option(
            None, help="Share of measurements without a reply. [default: 0.035]"
        ),
        size_delay: float | None = typer.Option(
            None,
            help="Factor on the time that a byte takes on the access links (1: 8 to 100 Mbit/s). Above 0, "
            "every measurement has a size of its own. [default: 0]",
        ),
        start: str | None = typer.Option(None, help="First day, as YYYY-MM-DD. [default: 2024-01-01]"),
        as_json: bool = typer.Option(False, "--json", help="Print the options and the time taken as JSON."),
    ) -> None:
        """Write measurements of a simulated Internet with known truth.

        If run again after an interruption, it keeps the complete days.
        """
        import time

        from ping_llm.simulate import WorldOptions
        from ping_llm.simulate import simulate as write
        from ping_llm.tables import print_json, table

        begun = time.monotonic()
        given: dict[str, Any] = {
            "probes": probes,
            "targets": targets,
            "days": days,
            "ases": ases,
            "ipv6_share": ipv6,
            "failed_share": failed,
            "size_delay": size_delay,
            "start": start,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if worlds is not None:
            from ping_llm.errors import UsageError
            from ping_llm.simulate.write import simulate_worlds

            if given:
                option = next(iter(given)).removesuffix("_share").replace("_", "-")
                raise UsageError(f"--worlds draws --{option} for each world: leave it out.")
            written = simulate_worlds(out, worlds, measurements, seed)
            about: dict[str, Any] = {"worlds": len(written), "measurements": measurements, "seed": seed}
        else:
            about = write(out, WorldOptions(measurements=measurements, seed=seed, **given)).options.to_json()
        seconds = time.monotonic() - begun
        result = {**about, "out": str(out), "seconds": round(seconds, 2)}
        if as_json:
            print_json(result)
        else:
            print(table([(name, str(value)) for name, value in result.items()]))
