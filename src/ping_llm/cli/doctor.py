"""ping-llm doctor"""

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
        """Report what this machine has, what each part is for, and how to get what is missing."""
        raise NotImplementedError
