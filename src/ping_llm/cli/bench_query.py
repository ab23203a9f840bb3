"""ping-llm bench query"""

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    @bench_app.command()
    def query(
        repeats: int = typer.Option(200, help="Questions asked one by one."),
        batch: int = typer.Option(64, help="Questions asked together."),
        context: int = typer.Option(32, help="Measurements known to each."),
        maxtext: bool = typer.Option(True, help="Compare with MaxText's decode engine."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Exact rtt questions to a model of 2 million parameters, against MaxText."""
        from ping_llm.bench.query import QueryBench, measure
        from ping_llm.tables import print_json, table

        figures = measure(QueryBench(repeats, batch, context, maxtext=maxtext))
        if as_json:
            print_json(figures)
        else:
            print(table([(name, value) for name, value in figures.items()]))
