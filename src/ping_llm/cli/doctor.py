"""ping-llm doctor"""

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
        """Report what this machine has, what each part is for, and how to get what is missing."""
        from ping_llm.doctor import examine
        from ping_llm.tables import print_json, table

        findings = examine()
        if as_json:
            print_json([finding.as_dict() for finding in findings])
        else:
            rows = [(item.part, item.state, item.found, item.needed_for, item.remedy) for item in findings]
            typer.echo(table(rows, ("part", "state", "found", "needed for", "how to get it")))
        if any(finding.state == "broken" for finding in findings):
            raise typer.Exit(1)
