"""`ping-llm evaluate` and `ping-llm compare`."""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command(help="Measure a run, and every baseline, on held-out measurements.")
    def evaluate(
        run: Path | None = typer.Argument(None, help="A run or an export; without one, only baselines."),
        data: Path = typer.Option(
            ..., "--data", help="Measurements (Parquet), or a folder with train and test."
        ),
        out: Path | None = typer.Option(
            None, "--out", help="Folder of the report. An interrupted one is continued."
        ),
        write_train: Path | None = typer.Option(
            None,
            "--write-train",
            help="Only write what a run may be trained on, as Parquet, to this folder.",
        ),
        calibrate: bool = typer.Option(
            False,
            "--calibrate",
            help="Only fit how sure RUN may be, on what is held out of DATA, and keep that in RUN.",
        ),
        calibrated: bool = typer.Option(
            True,
            "--calibrated/--uncalibrated",
            help="Whether RUN answers with its calibration, if it has one.",
        ),
        world: Path | None = typer.Option(
            None, "--world", help="The simulation's folder, where the data are simulated: adds the truth."
        ),
        queries: int = typer.Option(2000, help="Questions of each test at most; 0 for all."),
        baselines: str = typer.Option("all", help="Names with commas in between, all, or none."),
        time: float = typer.Option(0.8, help="Oldest share of the measurements to train on; 1 for no cut."),
        pairs: float = typer.Option(0.1, help="Share of the pairs that are held out."),
        sources: float = typer.Option(0.1, help="Share of the sources that are held out."),
        destinations: float = typer.Option(0.1, help="Share of the destinations that are held out."),
        seed: int = typer.Option(0, help="Of what is held out and asked."),
        json: bool = typer.Option(False, "--json", help="Print report.json."),
    ) -> None:
        from ping_llm.errors import UsageError
        from ping_llm.evaluate.baselines.every import BASELINES, make
        from ping_llm.evaluate.options import EvaluateOptions
        from ping_llm.evaluate.report import HEADLINES, leaderboard
        from ping_llm.evaluate.run import evaluate as evaluate_
        from ping_llm.evaluate.splits import SplitOptions
        from ping_llm.tables import print_json, table

        splits = SplitOptions(time, pairs, sources, destinations, seed)
        if write_train is not None:
            from ping_llm.evaluate.training_part import write_training_part

            proof = write_training_part(data, write_train, splits)
            if json:
                print_json(proof)
            else:
                typer.echo(f"{proof['train']:,} measurements to train on: {write_train}")
            return
        if calibrate:
            from ping_llm.evaluate.run import calibrate as calibrate_

            if run is None:
                raise UsageError("--calibrate needs a run")
            kinds = calibrate_(
                run, data, EvaluateOptions(splits=splits, queries=queries, seed=seed)
            ).as_dict()
            if json:
                print_json(kinds)
            else:
                rows = [[name, *kind.values()] for name, kind in kinds.items()]
                typer.echo(table(rows, ["about a", "spread", "share of the marginal", "questions"]))
            return
        if out is None:
            raise UsageError("say where the report goes (--out), or where the training part (--write-train)")
        names = {"all": tuple(BASELINES), "none": ()}.get(baselines)
        if names is None:
            names = tuple(name.strip() for name in baselines.split(","))
            for name in names:
                make(name)
        options = EvaluateOptions(
            splits=splits,
            queries=queries,
            baselines=names,
            seed=seed,
        )
        result = evaluate_(data, out, options, run, world, calibrated)
        if json:
            print_json(result)
            return
        for metric, title, digits in HEADLINES:
            header, rows = leaderboard(result, metric, digits)
            typer.echo(f"{title} (* best)\n{table(rows, header)}\n")
        typer.echo(f"{out / 'report.html'}")

    @app.command(help="Set the reports of several evaluations side by side.")
    def compare(
        reports: list[Path] = typer.Argument(..., help="Folders of reports, or their report.json."),
        metric: str = typer.Option(
            "medae_ms", help="medae_ms, mae_ms, mse, crps_ms, bits, ece or interval_90_width_ms."
        ),
        json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        from ping_llm.evaluate.compare import cells
        from ping_llm.evaluate.compare import compare as compare_
        from ping_llm.tables import print_json, table

        result = compare_(reports, metric)
        if json:
            print_json(result)
            return
        rows = [[row["split"], row["method"], *cells(row)] for row in result["rows"]]
        typer.echo(f"{metric}, less is better (* least of a row; 95 % intervals)")
        typer.echo(table(rows, ["split", "method", *result["reports"]]))
        if not result["same_data"]:
            typer.echo("These reports are on different data: their figures cannot be compared.", err=True)
