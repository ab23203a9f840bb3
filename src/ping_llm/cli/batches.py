"""ping-llm batches"""

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ping_llm.contexts.batches import Batches

_DIR = typer.Argument(..., metavar="DIR", help="Probe rows, a run's folder, or a folder with rows/ in it.")
_LENGTH = typer.Option(None, help="Tokens of a sequence. [default: the run's, or 1024]")
_BATCH_SIZE = typer.Option(None, help="Sequences of a batch. [default: the run's, or 32]")
_SEED = typer.Option(None, help="[default: the run's, or 0]")
_OPTION = typer.Option(None, "--set", metavar="KEY=VALUE", help="Change a sampling option; may be repeated.")
_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    batches = typer.Typer(help="Look into packed batches.", no_args_is_help=True)
    app.add_typer(batches, name="batches")

    @batches.command()
    def show(
        directory: Path = _DIR,
        batch: int = typer.Option(0, help="Which batch of the stream."),
        sequences: int = typer.Option(4, help="How many of its sequences."),
        length: int | None = _LENGTH,
        batch_size: int | None = _BATCH_SIZE,
        seed: int | None = _SEED,
        change: list[str] | None = _OPTION,
        color: bool | None = typer.Option(None, help="[default: on a terminal]"),
    ) -> None:
        """Print packed sequences as measurements, segment by segment."""
        from ping_llm.contexts.show import show_batch
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
        count: int = typer.Option(64, "--batches", help="How many, rounded up to whole units."),
        epochs: int | None = typer.Option(
            None, help="A finite set: exactly the planned contexts, no fillers."
        ),
        length: int | None = _LENGTH,
        batch_size: int | None = _BATCH_SIZE,
        seed: int | None = _SEED,
        change: list[str] | None = _OPTION,
        as_json: bool = _JSON,
    ) -> None:
        """Print shares of kinds and modes, context lengths, tokens by role, and padding."""
        from ping_llm.contexts.statistics import collect
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
        seconds: float = typer.Option(5.0, help="How long to run."),
        length: int | None = _LENGTH,
        batch_size: int | None = _BATCH_SIZE,
        seed: int | None = _SEED,
        change: list[str] | None = _OPTION,
        as_json: bool = _JSON,
    ) -> None:
        """Run the pipeline in one thread and print the time of each stage."""
        from ping_llm.contexts.profile import profile as run
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
    """The stream that a run has, or that its rows would give."""
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
    """The keys of a run's config.yml; nothing for a folder of rows."""
    config = directory / "config.yml"
    if not config.is_file():
        return {}
    import yaml

    return yaml.safe_load(config.read_text()) or {}


def rows_below(directory: Path) -> Path:
    return directory / "rows" if (directory / "rows" / "manifest.json").is_file() else directory


def options_of(keys: dict[str, Any], changes: list[str]) -> Any:
    """ContextOptions from a run's keys, then from KEY=VALUE words."""
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
        raise UsageError(f"a sampling option has a value of the wrong type: {error}") from None
