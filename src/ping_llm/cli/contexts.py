"""`ping-llm tokens`, `batches` and `pretokenize`."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ping_llm.cli.listing import Listing

if TYPE_CHECKING:
    from ping_llm.contexts.batches import Batches


def register_tokens(app: typer.Typer) -> None:
    tokens = typer.Typer(cls=Listing, help="Show measurements as tokens.", no_args_is_help=True)
    app.add_typer(tokens, name="tokens")

    @tokens.command()
    def show(
        file: Path | None = typer.Argument(
            None, help="Parquet file of measurements, or a folder of them.  [default: built-in examples]"
        ),
        rtt_encoding: str = typer.Option(
            "compact", help="RTT encoding: compact, float64, micros, log or clipped."
        ),
        clip_limit_ms: float | None = typer.Option(
            None, help="Largest RTT of the encoding `clipped`.  [default: 1000]"
        ),
        count: int = typer.Option(5, "-n", min=1, help="Number of measurements to read from FILE."),
        all_fields: bool = typer.Option(
            False, "--all-fields", help="Include size, packet errors, measurement, probe id and throughput."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Print measurements with their tokens: role names, bytes in hexadecimal, and decoded values.

        Consecutive rows of one source form one context: it states the source once, and times as deltas.
        """
        from ping_llm.errors import UsageError
        from ping_llm.tables import print_json, table
        from ping_llm.tokens import rtt
        from ping_llm.tokens.show import examples, read_contexts, show_context
        from ping_llm.tokens.vocab import DEFAULT_FIELDS, OPTIONAL, Field, tokens_format

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
            stated = {field for _, context in shown for one in context for field in one.statement.order}
            print_json(
                {
                    "tokens_format": tokens_format(
                        [name for name, field in OPTIONAL.items() if field in stated]
                    ),
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


_DIR = typer.Argument(..., metavar="DIR", help="Probe rows, a run, or a folder that contains rows/.")
_LENGTH = typer.Option(None, help="Tokens per sequence.  [default: the run's, or 1024]")
_BATCH_SIZE = typer.Option(None, help="Sequences per batch.  [default: the run's, or 32]")
_SEED = typer.Option(None, help="Random seed.  [default: the run's, or 0]")
_OPTION = typer.Option(None, "--set", metavar="KEY=VALUE", help="Sampling option to change. May be repeated.")
_JSON = typer.Option(False, "--json", help="Print JSON.")


def register_batches(app: typer.Typer) -> None:
    batches = typer.Typer(cls=Listing, help="Inspect packed batches.", no_args_is_help=True)
    app.add_typer(batches, name="batches")

    @batches.command()
    def show(
        directory: Path = _DIR,
        batch: int = typer.Option(0, help="Index of the batch in the stream, from 0."),
        sequences: int = typer.Option(4, help="Number of sequences to print."),
        length: int | None = _LENGTH,
        batch_size: int | None = _BATCH_SIZE,
        seed: int | None = _SEED,
        change: list[str] | None = _OPTION,
        color: bool | None = typer.Option(None, help="Coloured output.  [default: on a terminal]"),
    ) -> None:
        """Print the measurements of packed sequences, by segment."""
        from ping_llm.contexts.inspect import show_batch
        from ping_llm.tokens.rtt import rtt_encoding

        if color is None:
            color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        stream = _open(directory, length, batch_size, seed, change)
        options = stream.stream.options
        encoding = rtt_encoding(options.rtt_encoding, options.clip_limit_ms)
        unit = stream.current_unit()
        while batch >= len(unit):
            batch -= len(unit)
            stream.skip_unit()
            unit = stream.current_unit()
        shown = dataclasses.replace(
            unit,
            inputs=unit.inputs[:, :sequences],
            targets=unit.targets[:, :sequences],
            positions=unit.positions[:, :sequences],
            segments=unit.segments[:, :sequences],
            notes=unit.notes[:, :sequences],
        )
        for line in show_batch(shown, batch, encoding, color):
            print(line)

    @batches.command()
    def stats(
        directory: Path = _DIR,
        count: int = typer.Option(64, "--batches", help="Number of batches, rounded up to whole units."),
        epochs: int | None = typer.Option(
            None, help="Epochs of a finite stream, without filler contexts.  [default: endless]"
        ),
        length: int | None = _LENGTH,
        batch_size: int | None = _BATCH_SIZE,
        seed: int | None = _SEED,
        change: list[str] | None = _OPTION,
        as_json: bool = _JSON,
    ) -> None:
        """Print shares of kinds and timestamp modes, context lengths, tokens per role, and padding."""
        from ping_llm.contexts.inspect import collect
        from ping_llm.tables import print_json, table

        stream = _open(directory, length, batch_size, seed, change, epochs)
        summary = collect(stream, count).summary()
        summary["rows"] = len(stream.stream.rows.index)
        if as_json:
            print_json(summary)
            return
        plain = [(name, value) for name, value in summary.items() if not isinstance(value, dict)]
        print(
            table(
                [
                    (name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
                    for name, value in plain
                ]
            )
        )
        for name, part in summary.items():
            if isinstance(part, dict):
                total = sum(part.values()) if name == "tokens_by_role" else None
                print(f"\n{name.replace('_', ' ')}")
                print(table([("  " + key, _text(value, total)) for key, value in part.items()]))

    @batches.command()
    def profile(
        directory: Path = _DIR,
        seconds: float = typer.Option(5.0, help="Duration in seconds."),
        length: int | None = _LENGTH,
        batch_size: int | None = _BATCH_SIZE,
        seed: int | None = _SEED,
        change: list[str] | None = _OPTION,
        as_json: bool = _JSON,
    ) -> None:
        """Run the pipeline in one thread and print the time per stage."""
        from ping_llm.contexts.inspect import profile as run
        from ping_llm.tables import print_json, table

        result = run(_open(directory, length, batch_size, seed, change), seconds)
        if as_json:
            print_json(result)
            return
        print(
            table(
                [
                    (
                        stage["stage"],
                        f"{stage['work_s']:.2f} s",
                        f"{stage['waiting_s']:.2f} s",
                        f"{100 * stage['share']:.0f} %",
                        f"{stage['elements_per_s']:,.0f} {stage['elements']}/s",
                    )
                    for stage in result["stages"]
                ],
                header=("stage", "work", "waiting", "share", "elements"),
            )
        )
        print(f"\n{result['tokens_per_s']:,.0f} tokens/s in one thread")
        print(f"bottleneck: {result['bottleneck']} ({result['advice']})")


def _text(value: Any, total: float | None) -> str:
    if total:
        return f"{value:,}  {100 * value / total:.1f} %"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _open(
    directory: Path,
    length: int | None,
    batch_size: int | None,
    seed: int | None,
    changes: list[str] | None,
    epochs: int | None = None,
) -> "Batches":
    """Open the stream of a run, or of a folder of rows."""
    from ping_llm.contexts.batches import Batches

    keys = run_keys(directory)
    rows = Path(keys.get("network_train_files") or rows_below(directory))
    return Batches(
        rows if rows.exists() else rows_below(directory),  # the run may have moved with its rows
        options_of(keys, changes or []),
        batch_size=batch_size or int(keys.get("network_batch_size") or 0) or 32,
        length=length or int(keys.get("max_target_length") or 0) or 1024,
        seed=seed if seed is not None else int(keys.get("data_shuffle_seed") or 0),
        epochs=epochs,
        threads=0,
        data_format=str(keys.get("network_data_format") or "probe_chunks"),
    )


def run_keys(directory: Path) -> dict[str, Any]:
    """Return the keys of a run's config.yml; none for a folder of rows."""
    config = directory / "config.yml"
    if not config.is_file():
        return {}
    from ping_llm.files import read_yaml

    return read_yaml(config)


def rows_below(directory: Path) -> Path:
    return directory / "rows" if (directory / "rows" / "manifest.json").is_file() else directory


def options_of(keys: dict[str, Any], changes: list[str]) -> Any:
    """Return ContextOptions from a run's keys, then from KEY=VALUE words."""
    from ping_llm.contexts.options import ContextOptions
    from ping_llm.errors import UsageError

    types: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(ContextOptions)}
    values = {name: keys[f"network_{name}"] for name in types if f"network_{name}" in keys}
    for word in changes:
        name, equals, value = word.partition("=")
        if not equals or name not in types:
            raise UsageError(f"--set {word}: give KEY=VALUE, where KEY is one of {', '.join(types)}")
        values[name] = value
    try:
        return ContextOptions(**{name: types[name](value) for name, value in values.items()})
    except ValueError as error:
        raise UsageError(f"a sampling option must have a number as its value: {error}") from None


def register_pretokenize(app: typer.Typer) -> None:
    @app.command()
    def pretokenize(
        rows: Path = typer.Argument(..., metavar="IN", help="Probe rows."),
        out: Path = typer.Option(..., "--out", help="Folder of the Parquet file."),
        length: int = typer.Option(1024, help="Largest number of tokens per context."),
        epochs: int = typer.Option(1, help="Number of epochs to write."),
        seed: int = typer.Option(0, help="Random seed."),
        threads: int = typer.Option(2, help="Threads that make contexts."),
        change: list[str] | None = typer.Option(
            None, "--set", metavar="KEY=VALUE", help="Sampling option to change. May be repeated."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Write contexts as tokens in advance, to compare loaders."""
        from ping_llm.contexts.batches import Batches
        from ping_llm.contexts.pretokenized import pretokenize as write
        from ping_llm.tables import print_json, table

        with Batches(
            rows_below(rows),
            options_of({}, change or []),
            batch_size=256,
            length=length,
            seed=seed,
            epochs=epochs,
            threads=threads,
        ) as batches:
            description = write(batches, out)
        if as_json:
            print_json(description)
        else:
            print(table([("contexts", description["contexts"]), ("tokens", description["tokens"])]))
