"""ping-llm bench train"""

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    @bench_app.command()
    def train(
        config: str = typer.Argument("tiny", help="A packaged config, or the path of a .yml."),
        overrides: list[str] | None = typer.Argument(None, metavar="KEY=VALUE…", help="For both sides."),
        steps: int = typer.Option(40, help="Steps of a turn."),
        turns: int = typer.Option(3, help="Turns of each side."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Step time against MaxText alone, waiting for data, and what a launch takes."""
        from ping_llm.bench.train import TrainBench, measure
        from ping_llm.tables import print_json, table

        figures = measure(TrainBench(config, steps, turns, tuple(overrides or ())))
        if as_json:
            print_json(figures)
            return
        launch = figures.pop("launch")
        lines = list(figures.items()) + [(f"launch: {name} s", seconds) for name, seconds in launch.items()]
        typer.echo(table(lines))
