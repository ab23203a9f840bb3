"""ping-llm train"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        config: str = typer.Argument(help="A packaged config (tiny, 20m, 100m, 300m) or the path of a .yml."),
        overrides: list[str] | None = typer.Argument(
            None, metavar="KEY=VALUE…", help="MaxText's keys or ours."
        ),
        run: Path | None = typer.Option(None, "--run", help="The run's folder.  [default: runs/CONFIG]"),
        rows: Path | None = typer.Option(None, "--rows", help="Probe rows to train on."),
        eval_rows: Path | None = typer.Option(None, "--eval-rows", help="Probe rows to evaluate on."),
        coordinator: str = typer.Option(
            "", envvar="PING_LLM_COORDINATOR", help="HOST:PORT where several processes meet."
        ),
        processes: int | None = typer.Option(None, envvar="PING_LLM_PROCESSES", help="How many there are."),
        process: int | None = typer.Option(None, envvar="PING_LLM_PROCESS", help="Which this is, from 0."),
    ) -> None:
        """Train a model, or go on where the run stopped.

        Exit codes: 0 finished, 1 failed, 2 bad usage, 75 stopped by SIGTERM or SIGINT and saved: run it
        again.
        """
        from ping_llm.train.hosts import Hosts
        from ping_llm.train.run import train as run_training

        outcome = run_training(
            config,
            overrides or [],
            run=run,
            rows=rows,
            eval_rows=eval_rows,
            hosts=Hosts.of(coordinator, processes, process),
        )
        if outcome.state == "stopped":
            from ping_llm.train.stops import EXIT_CODE

            typer.echo(f"stopped and saved after step {outcome.step}; the same command goes on", err=True)
            raise typer.Exit(EXIT_CODE)
        if outcome.state == "already":
            typer.echo(f"{outcome.run} is finished: {outcome.step + 1} steps; raise steps=… to go on")
        else:
            typer.echo(f"{outcome.run}: {outcome.step + 1} steps, loss {outcome.loss:.4f}")
