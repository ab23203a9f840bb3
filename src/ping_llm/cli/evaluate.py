"""`ping-llm evaluate` and `ping-llm compare`."""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command(help="Evaluate a run and simple methods on held-out data.")
    def evaluate(
        run: Path | None = typer.Argument(None, help="Run or export.  [default: simple methods only]"),
        data: Path = typer.Option(
            ...,
            "--data",
            help="Measurements, or whatever `ingest` reads; or a folder that contains train and test.",
        ),
        out: Path | None = typer.Option(
            None, "--out", help="Folder of the report. An interrupted evaluation resumes there."
        ),
        write_train: Path | None = typer.Option(
            None,
            "--write-train",
            help="Folder for the training part as Parquet. Nothing is evaluated.",
        ),
        answers: Path | None = typer.Option(
            None, "--answers", help="File for every question with the answer of RUN, as JSON lines."
        ),
        world: Path | None = typer.Option(
            None, "--world", help="Folder of the simulation, for simulated data: adds the true distribution."
        ),
        places: list[Path] = typer.Option(
            [],
            "--places",
            help="Table of prefix, latitude, longitude, country, or .mmdb; may be repeated. Adds errors by "
            "distance and pair of countries, and the baseline distance.",
        ),
        queries: int = typer.Option(2000, help="Largest number of questions per test. 0: all."),
        addresses: int = typer.Option(
            -1,
            "--addresses",
            help="Addresses to complete per end and IP version, 0.2 s each. -1: 20, or 0 with fewer than "
            "500 queries.",
        ),
        baselines: str = typer.Option("all", help="Simple methods, separated by commas; all, or none."),
        time: float = typer.Option(
            0.8, help="Share of the measurements, oldest first, in the training part. 1: no split by time."
        ),
        pairs: float = typer.Option(0.1, help="Share of pairs to hold out."),
        sources: float = typer.Option(0.1, help="Share of sources to hold out."),
        destinations: float = typer.Option(0.1, help="Share of destinations to hold out."),
        seed: int = typer.Option(0, help="Random seed of the held-out part and the questions."),
        json: bool = typer.Option(False, "--json", help="Print report.json."),
    ) -> None:
        from ping_llm.answer.methods.registry import BASELINES, FITTED_BY, full_name, usable
        from ping_llm.errors import UsageError
        from ping_llm.evaluate.inputs import EvaluateOptions, address_questions
        from ping_llm.evaluate.report import HEADLINES, leaderboard
        from ping_llm.evaluate.run import evaluate as evaluate_
        from ping_llm.evaluate.verdict import headline
        from ping_llm.extras import how_to_install, need
        from ping_llm.splits.holdout import SplitOptions
        from ping_llm.tables import print_json, table

        splits = SplitOptions(time, pairs, sources, destinations, seed)
        if write_train is not None:
            from ping_llm.ingest.tabled import as_tables
            from ping_llm.splits.holdout import write_training_part

            with as_tables([str(data)], write_train) as (measurements,):
                proof = write_training_part(measurements, write_train, splits)
            if json:
                print_json(proof)
            else:
                typer.echo(f"{proof['train']:,} measurements to train on: {write_train}")
            return
        if out is None:
            raise UsageError(
                "--out (folder of the report) or --write-train (folder of the training part) must be given"
            )
        names = {"all": usable(), "none": ()}.get(baselines)
        if baselines == "all":
            for name in (name for name in BASELINES if name not in usable()):
                extra = FITTED_BY[name][1]
                typer.echo(
                    f"note: the baseline {name} is left out: it needs {how_to_install(extra)}",
                    err=True,
                )
        if names is None:
            names = tuple(name.strip() for name in baselines.split(","))
            for name in names:
                if full_name(name) in FITTED_BY:
                    need(FITTED_BY[full_name(name)][1])
        if places and "boosted" not in usable():
            needed = how_to_install("evaluate")
            typer.echo(
                f"note: the baseline distance (from --places) is left out: it needs {needed}", err=True
            )
        options = EvaluateOptions(
            splits=splits,
            queries=queries,
            baselines=names,
            places=tuple(map(str, places)),
            address_questions=addresses if addresses >= 0 else address_questions(queries),
            seed=seed,
        )
        result = evaluate_(data, out, options, run, world, answers)
        if json:
            print_json(result)
            return
        typer.echo("\n".join(headline(result)) + "\n")
        for metric, title, digits in HEADLINES:
            header, rows = leaderboard(result, metric, digits)
            typer.echo(f"{title} (* best)\n{table(rows, header)}\n")
        typer.echo(f"{out / 'report.html'}")

    @app.command(help="Compare the reports of several evaluations.")
    def compare(
        reports: list[Path] = typer.Argument(..., help="Folders of reports, or report.json files."),
        metric: str = typer.Option(
            "medae_ms", help="Metric: medae_ms, mae_ms, mse, crps_ms, bits, ece or interval_90_width_ms."
        ),
        json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        from ping_llm.evaluate.report import cells
        from ping_llm.evaluate.report import compare as compare_
        from ping_llm.tables import print_json, table

        result = compare_(reports, metric)
        if json:
            print_json(result)
            return
        rows = [[row["split"], row["method"], *cells(row)] for row in result["rows"]]
        typer.echo(f"{metric}, lower is better (* lowest of a row; 95 % intervals)")
        typer.echo(table(rows, ["split", "method", *result["reports"]]))
        if not result["same_data"]:
            typer.echo("These reports are about different data: their figures cannot be compared.", err=True)
