"""ping-llm demo"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        out: Path = typer.Option(Path("runs/demo"), help="Everything goes below this folder."),
        steps: int = typer.Option(0, help="Training steps; 0 is as many as fit into the ten minutes."),
        as_json: bool = typer.Option(False, "--json", help="Print summary.json instead of the screen."),
    ) -> None:
        """Simulate an Internet, train a tiny model on it, and ask it a question whose answer is known."""
        from dataclasses import replace

        from ping_llm.demo.options import DemoOptions
        from ping_llm.demo.run import run_demo
        from ping_llm.demo.screen import last_screen
        from ping_llm.tables import print_json

        options = replace(DemoOptions(), steps=steps) if steps else DemoOptions()
        summary = run_demo(out, options, lambda text: typer.echo(text, err=True))
        if as_json:
            print_json(summary)
        else:
            typer.echo(last_screen(summary, str(out)))
