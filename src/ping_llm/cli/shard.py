"""ping-llm shard"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def shard(
        inputs: list[str] = typer.Argument(
            ..., metavar="IN…", help="Parquet of measurements: files, folders, patterns.", show_default=False
        ),
        out: Path = typer.Option(..., "--out", help="Folder of the splits.", show_default=False),
        by: str = typer.Option(
            "time", help="What may not be in two splits: time, probe (source), pair, or row."
        ),
        fractions: str = typer.Option("0.8,0.1,0.1", help="Of train, val, test; or of train, test."),
        shards: int | None = typer.Option(
            None, help="In all splits together. [default: one for 500,000 rows, at least 10]"
        ),
        stratify: str = typer.Option(
            "", help="Spread evenly over the shards: time, msm_id, ip_version, failed, probe_id."
        ),
        gap: str = typer.Option("0s", help="Time left out between splits, by time: 90s, 15m, 6h, 2d."),
        seed: int = typer.Option(0, help="Of the hash that decides by probe, pair and row."),
        memory: int = typer.Option(1_000, help="MB for DuckDB; what is more goes to disk."),
        threads: int = typer.Option(2, min=1, help="Of DuckDB."),
        as_json: bool = typer.Option(False, "--json", help="Print shard.json."),
    ) -> None:
        """Split measurements into train, val and test shards without leakage, and prove it."""
        from ping_llm.shards.options import ShardOptions, parse_duration, parse_fractions
        from ping_llm.shards.run import shard as run
        from ping_llm.tables import print_json, table

        options = ShardOptions(
            by=by,
            fractions=parse_fractions(fractions),
            shards=shards,
            stratify=tuple(name.strip() for name in stratify.split(",") if name.strip()),
            gap_seconds=parse_duration(gap),
            seed=seed,
        )
        report = run(inputs, out, options, memory, threads)
        if as_json:
            print_json(report.content)
            return
        splits = report.content["splits"]
        header = ["split", *next(iter(splits.values()))]
        print(table([[name, *figures.values()] for name, figures in splits.items()], header))
        print()
        for check in report.content["checks"]:
            figures = ", ".join(f"{name} {value}" for name, value in check["figures"].items())
            print(f"{'holds' if check['holds'] else 'BROKEN'}: {check['promise']} ({figures})")
        if report.was_done:
            print(f"\nThis was done before: {out} is as it was.")
