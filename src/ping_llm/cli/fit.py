"""`ping-llm fit` and `calibrate`: from data to a model that answers."""

from pathlib import Path

import typer

_DEFAULT_MINUTES = 20.0


def register(app: typer.Typer) -> None:
    app.command()(fit)
    app.command()(calibrate)


def fit(
    inputs: list[str] = typer.Argument(
        metavar="DATA…",
        help="Atlas results (pings, traceroutes), tables (Parquet, CSV), or a folder of measurements.",
        show_default=False,
    ),
    run: Path = typer.Option(..., "--run", help="Folder of the run.", show_default=False),
    minutes: float = typer.Option(
        _DEFAULT_MINUTES, "--minutes", help="Minutes of training; 0 tunes the packaged model."
    ),
    config: str | None = typer.Option(
        None, "--config", help="Training config.  [default: chosen by data and machine]"
    ),
    traceroutes: str = typer.Option(
        "off", "--traceroutes", help="Use of traceroutes: off, last (their destinations) or hops."
    ),
    start: Path | None = typer.Option(
        None,
        "--from",
        help="Weights to start from: a run, an export, base, or none for random ones.  [default: base, "
        "where no config is given and there is no GPU]",
        show_default=False,
    ),
    final: bool = typer.Option(
        False, "--final", help="Train on all data for the last quarter of the minutes, after the report."
    ),
    queries: int = typer.Option(1000, "--queries", help="Questions per test of the report."),
    baselines: str = typer.Option("all", "--baselines", help="Simple methods, separated by commas, or all."),
    seed: int = typer.Option(0, "--seed", help="Random seed of the held-out part."),
    world: Path | None = typer.Option(
        None,
        "--world",
        help="Folder of the simulation, for simulated data: adds the true distribution to the report.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Ingest, split, train, calibrate and evaluate in one command.

    Makes a run that answers queries, and its report.

    An interrupted fit resumes with the same command. DATA must have at least 300 measurements.
    """
    from ping_llm import _api
    from ping_llm.fit.screen import summary_text
    from ping_llm.tables import print_json

    result = _api.fit(
        inputs,
        run,
        minutes=minutes,
        config=config,
        traceroutes=traceroutes,
        start=start,
        final=final,
        queries=queries,
        baselines=() if baselines == "all" else baselines.split(","),
        seed=seed,
        world=world,
        say=lambda text: typer.echo(text, err=True),
    )
    if as_json:
        print_json(result)
    else:
        typer.echo(summary_text(result, run))


def calibrate(
    run: Path = typer.Argument(help="Trained run.", show_default=False),
    data: Path = typer.Option(
        ...,
        "--data",
        help="Measurements (Parquet). RUN must be trained on the part that the options below leave.",
        show_default=False,
    ),
    time: float = typer.Option(0.9, help="Share of the measurements, oldest first, that RUN was trained on."),
    pairs: float = typer.Option(0.08, help="Share of pairs that were held out."),
    sources: float = typer.Option(0.08, help="Share of sources that were held out."),
    destinations: float = typer.Option(0.08, help="Share of destinations that were held out."),
    seed: int = typer.Option(1, help="Random seed of the held-out part."),
    queries: int = typer.Option(800, min=1, help="Held-out questions per kind."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Fit the stack of a run on data held out of its training.

    For runs of `train`; `fit` does this already."""
    from ping_llm.fit.calibrate import calibrate as run_calibrate
    from ping_llm.fit.screen import stack_text
    from ping_llm.splits.holdout import SplitOptions
    from ping_llm.tables import print_json

    stack = run_calibrate(run, data, SplitOptions(time, pairs, sources, destinations, seed), queries)
    if as_json:
        print_json(stack.as_dict())
    else:
        typer.echo(stack_text(stack))
