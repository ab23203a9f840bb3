"""ping-llm bench encodings"""

from pathlib import Path

import typer

from ping_llm.cli import bench_app


def register(app: typer.Typer) -> None:
    @bench_app.command()
    def encodings(
        data: Path | None = typer.Option(None, "--data", help="Measurements (Parquet); without, simulated."),
        steps: int = typer.Option(200, help="Steps of each training."),
        batch: int = typer.Option(8, help="Sequences of 256 tokens a step."),
        layers: int = typer.Option(2, help="Layers of the model."),
        width: int = typer.Option(96, help="Width of the model."),
        questions: int = typer.Option(120, help="Questions of each test."),
        only: str = typer.Option("all", help="Names of encodings with commas in between, or all."),
        keep: Path | None = typer.Option(
            None, "--keep", help="Folder for the trainings; an interrupted benchmark goes on there."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """The same small model with each RTT encoding: bits over the same millisecond bins."""
        from ping_llm.bench.encodings import EncodingsBench, measure
        from ping_llm.tables import print_json, table
        from ping_llm.tokens.rtt import RTT_ENCODINGS

        names = tuple(RTT_ENCODINGS) if only == "all" else tuple(name.strip() for name in only.split(","))
        figures = measure(EncodingsBench(names, steps, batch, layers, width, questions), data, keep)
        if as_json:
            print_json(figures)
            return
        tests = list(figures["questions"])
        header = ["encoding", "bytes", *(f"{test}: {what}" for test in tests for what in _COLUMNS)]
        rows = []
        for name, one in (figures["encodings"] | figures["reference"]).items():
            row = [name, str(one.get("bytes", ""))]
            for test in tests:
                bounds = one[test]["interval"]
                row += [f"{one[test]['bits']:.2f}", f"{bounds[0]:.2f}–{bounds[1]:.2f}" if bounds else ""]
                row += ["" if one[test]["medae_ms"] is None else f"{one[test]['medae_ms']:.1f}"]
            rows.append([*row, f"{one['seconds_training']:.0f}" if "bytes" in one else ""])
        typer.echo(table(rows, [*header, "training, s"]))


_COLUMNS = ("bits", "95 %", "median error, ms")
