"""ping-llm tokens"""

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    tokens = typer.Typer(help="Look at measurements as the model does.", no_args_is_help=True)
    app.add_typer(tokens, name="tokens")

    @tokens.command()
    def show(
        file: Path | None = typer.Argument(
            None, help="Parquet file of measurements, or a folder of them. Without it: built-in examples."
        ),
        rtt_encoding: str = typer.Option("compact", help="compact, float64, micros, log or clipped."),
        clip_limit_ms: float | None = typer.Option(None, help="Limit of `clipped`. [default: 1000]"),
        count: int = typer.Option(5, "-n", min=1, help="How many measurements of FILE."),
        all_fields: bool = typer.Option(
            False, "--all-fields", help="State size, packet errors and measurement id of FILE too."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Print measurements beside their tokens: roles by name, bytes in hexadecimal, and what they mean.

        Neighbouring rows of one source are one context: they state the source once, and times as deltas.
        """
        from ping_llm.errors import UsageError
        from ping_llm.tables import print_json, table
        from ping_llm.tokens import rtt
        from ping_llm.tokens.examples import examples
        from ping_llm.tokens.show import read_contexts, show_context
        from ping_llm.tokens.vocab import DEFAULT_FIELDS, TOKENS_FORMAT, Field

        try:
            limit = rtt.DEFAULT_CLIP_LIMIT_MS if clip_limit_ms is None else clip_limit_ms
            encoding = rtt.rtt_encoding(rtt_encoding, limit)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if file is None:
            contexts = examples()
        else:
            order = tuple(Field) if all_fields else DEFAULT_FIELDS
            contexts = [("", context) for context in read_contexts(file, count, order)]
        shown = [(title, show_context(context, encoding)) for title, context in contexts]
        if as_json:
            print_json(
                {
                    "tokens_format": TOKENS_FORMAT,
                    "rtt_encoding": encoding.name,
                    "contexts": [
                        {"title": title, "measurements": [one.as_dict() for one in context]}
                        for title, context in shown
                    ],
                }
            )
            return
        for number, (title, context) in enumerate(shown, 1):
            print(f"context {number}" + (f": {title}" if title else ""))
            for one in context:
                print(f"\n  {one.title()}")
                rows = [(field.role, field.bytes, field.meaning) for field in one.fields]
                print("\n".join(f"    {line}" for line in table(rows).splitlines()))
            print()
