"""ping-llm runs"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    runs = typer.Typer(help="List runs with their state, and compare their curves.")
    app.add_typer(runs, name="runs")

    @runs.callback(invoke_without_command=True)
    def list_runs(
        context: typer.Context,
        base: Path = typer.Option(Path("runs"), "--in", help="Folder of the runs."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """List the runs below a folder: state, step, loss."""
        if context.invoked_subcommand:
            return
        from dataclasses import asdict

        from ping_llm.tables import print_json, table
        from ping_llm.train.history import standings

        found = standings(base)
        if as_json:
            print_json([asdict(run) for run in found])
            return
        if not found:
            typer.echo(f"no runs below {base}")
            return
        lines = [
            (
                run.name,
                run.state,
                f"{run.step:,} of {run.steps:,}",
                *map(_number, (run.loss, run.bits, run.eval_loss)),
                run.updated,
            )
            for run in found
        ]
        typer.echo(table(lines, ("run", "state", "step", "loss", "bits", "eval loss", "updated")))

    @runs.command()
    def plot(
        run: list[Path] = typer.Argument(help="Folders of runs."),
        out: Path = typer.Option(Path("runs/curves.png"), help="The PNG to write."),
        key: str = typer.Option("loss", help="loss, or bits: total, source, destination, rtt, time, order."),
    ) -> None:
        """Draw the curves of runs into one PNG."""
        from ping_llm.train.history import plot as draw

        draw(run, out, key)
        typer.echo(str(out))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
