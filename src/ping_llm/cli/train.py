"""ping-llm train"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        config: str = typer.Argument(
            help="A packaged config (tiny, menog, 20m, 100m, 300m) or a .yml's path."
        ),
        overrides: list[str] | None = typer.Argument(
            None, metavar="KEY=VALUE…", help="MaxText's keys or ours."
        ),
        run: Path | None = typer.Option(None, "--run", help="The run's folder.  [default: runs/CONFIG]"),
        rows: Path | None = typer.Option(None, "--rows", help="Probe rows to train on."),
        eval_rows: Path | None = typer.Option(None, "--eval-rows", help="Probe rows to evaluate on."),
        weights: Path | None = typer.Option(
            None, "--weights", help="Begin with the newest weights of this run, if there are none yet."
        ),
        coordinator: str = typer.Option(
            "", envvar="PING_LLM_COORDINATOR", help="HOST:PORT where several processes meet."
        ),
        processes: int | None = typer.Option(None, envvar="PING_LLM_PROCESSES", help="How many there are."),
        process: int | None = typer.Option(None, envvar="PING_LLM_PROCESS", help="Which this is, from 0."),
        plan: bool = typer.Option(False, "--plan", help="Print what it would take, and do not train."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Train a model, or go on where the run stopped.

        Exit codes: 0 finished, 1 failed, 2 bad usage, 75 stopped by SIGTERM or SIGINT and saved: run it
        again.
        """
        if plan:
            _print_plan(config, overrides or [], rows, as_json)
            return
        from dataclasses import asdict

        from ping_llm.tables import print_json
        from ping_llm.train.hosts import Hosts
        from ping_llm.train.run import train as run_training
        from ping_llm.train.stops import EXIT_CODE

        outcome = run_training(
            config,
            overrides or [],
            run=run,
            rows=rows,
            eval_rows=eval_rows,
            weights=weights,
            hosts=Hosts.of(coordinator, processes, process),
        )
        if as_json:
            print_json({**asdict(outcome), "run": str(outcome.run)})
        if outcome.state == "stopped":
            typer.echo(f"stopped and saved after step {outcome.step}; the same command goes on", err=True)
            raise typer.Exit(EXIT_CODE)
        if as_json:
            return
        if outcome.state == "already":
            typer.echo(f"{outcome.run} is finished: {outcome.step + 1} steps; raise steps=… to go on")
        else:
            typer.echo(f"{outcome.run}: {outcome.step + 1} steps, loss {outcome.loss:.4f}")


def _print_plan(config: str, overrides: list[str], rows: Path | None, as_json: bool) -> None:
    from ping_llm.tables import print_json, table
    from ping_llm.train.plan import plan

    figures = plan(config, overrides, rows=rows)
    if as_json:
        print_json(figures)
    else:
        typer.echo(table([(name.replace("_", " "), _text(value)) for name, value in figures.items()]))


def _text(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 or value >= 1e9 else f"{value:,.0f}"
    return str(value)
