"""`ping-llm train`, `runs` and `export`: from rows to a model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ping_llm.cli.listing import Listing
from ping_llm.errors import PingError, UsageError

if TYPE_CHECKING:
    import numpy as np


def _keys(words: list[str]) -> list[str]:
    """Return the overrides; refuse `--steps 5`, the form that other programs use."""
    for place, word in enumerate(words):
        if word.startswith("-"):
            key, equals, value = word.lstrip("-").partition("=")
            value = value if equals else next(iter(words[place + 1 :]), "VALUE")
            raise UsageError(f"there is no option {word}; keys of the config are written {key}={value}")
    return words


def register_train(app: typer.Typer) -> None:
    @app.command(context_settings={"ignore_unknown_options": True})
    def train(
        config: str = typer.Argument(
            help="Packaged config (tiny, menog, base-model, 20m, 100m, 300m) or path of a .yml file."
        ),
        overrides: list[str] | None = typer.Argument(
            None, metavar="KEY=VALUE…", help="Config keys to override: MaxText's or network_*."
        ),
        run: Path | None = typer.Option(None, "--run", help="Folder of the run.  [default: runs/CONFIG]"),
        rows: Path | None = typer.Option(None, "--rows", help="Probe rows to train on."),
        eval_rows: Path | None = typer.Option(None, "--eval-rows", help="Probe rows to evaluate on."),
        weights: Path | None = typer.Option(
            None, "--weights", help="Run or export whose weights a new run starts from, or base."
        ),
        teacher: Path | None = typer.Option(
            None,
            "--teacher",
            help="Run or export, at least four times as large, whose distributions of RTTs are learned.",
        ),
        minutes: float | None = typer.Option(
            None, "--minutes", help="Time budget instead of steps; needs lr_schedule_type=wsd."
        ),
        coordinator: str = typer.Option(
            "", envvar="PING_LLM_COORDINATOR", help="HOST:PORT of the coordinator, for several processes."
        ),
        processes: int | None = typer.Option(None, envvar="PING_LLM_PROCESSES", help="Number of processes."),
        process: int | None = typer.Option(
            None, envvar="PING_LLM_PROCESS", help="Index of this process, from 0."
        ),
        allow_cpu: bool = typer.Option(
            False, "--allow-cpu", help="Train a model of 10M parameters or more on CPUs."
        ),
        plan: bool = typer.Option(
            False, "--plan", help="Print parameters, memory, FLOPs and steps without training."
        ),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """Train a model, or resume a run that stopped.

        Exit codes: 0 finished, 1 failed, 2 bad usage, 75 stopped by SIGTERM or SIGINT after saving a
        checkpoint: run the same command again.
        """
        words = _keys(overrides or [])
        if plan:
            if minutes is not None:
                raise UsageError(
                    "--plan and --minutes exclude each other: --minutes decides the steps during training"
                )
            _print_plan(config, words, rows, as_json)
            return
        from ping_llm.tables import print_json
        from ping_llm.train.processes import EXIT_CODE, ProcessGroup
        from ping_llm.train.run import train as run_training

        outcome = run_training(
            config,
            words,
            run=run,
            rows=rows,
            eval_rows=eval_rows,
            weights=weights,
            teacher=teacher,
            minutes=minutes,
            hosts=ProcessGroup.of(coordinator, processes, process),
            allow_cpu=allow_cpu,
        )
        if as_json:
            print_json({**asdict(outcome), "run": str(outcome.run)})
        if outcome.state == "stopped":
            typer.echo(
                f"stopped after {outcome.step + 1} steps, with a checkpoint; the same command resumes",
                err=True,
            )
            raise typer.Exit(EXIT_CODE)
        if as_json:
            return
        if outcome.state == "already":
            typer.echo(f"{outcome.run} is finished: {outcome.step + 1} steps")
        else:
            typer.echo(f"{outcome.run}: {outcome.step + 1} steps, loss {outcome.loss:.4f}")


def _print_plan(config: str, overrides: list[str], rows: Path | None, as_json: bool) -> None:
    from ping_llm.tables import print_json, table
    from ping_llm.train.estimate import plan

    figures = plan(config, overrides, rows=rows)
    if as_json:
        print_json(figures)
    else:
        typer.echo(table([(name.replace("_", " "), _text(value)) for name, value in figures.items()]))


def _text(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 or value >= 1e9 else f"{value:,.0f}"
    return str(value)


def register_runs(app: typer.Typer) -> None:
    runs = typer.Typer(cls=Listing, help="List runs, follow them, and plot their learning curves.")
    app.add_typer(runs, name="runs")

    @runs.callback(invoke_without_command=True)
    def list_runs(
        context: typer.Context,
        base: Path = typer.Option(Path("runs"), "--in", help="Folder that contains the runs."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    ) -> None:
        """List the runs in a folder with state, step and loss."""
        if context.invoked_subcommand:
            return
        from ping_llm.tables import print_json, table
        from ping_llm.train.runs import standings

        found = standings(base)
        for run in found:
            if run.problem:
                typer.echo(f"warning: {run.problem}", err=True)
        if as_json:
            print_json([asdict(run) for run in found])
            return
        if not found:
            typer.echo(f"no runs in {base}")
            return
        lines = [
            (
                run.name,
                run.state,
                f"{run.step:,} of {run.steps:,}" if run.steps else f"{run.step:,}",
                *map(_number, (run.loss, run.bits, run.eval_loss)),
                run.updated,
            )
            for run in found
        ]
        typer.echo(table(lines, ("run", "state", "step", "loss", "bits", "eval loss", "updated")))

    @runs.command()
    def plot(
        run: list[Path] = typer.Argument(help="Runs."),
        out: Path = typer.Option(Path("runs/curves.png"), help="PNG file to write."),
        key: str = typer.Option(
            "loss",
            help="Value to plot: loss, or the bits of total, source, destination, rtt, time, size, errors, "
            "msm_id, probe_id, throughput or order.",
        ),
    ) -> None:
        """Plot the learning curves of several runs in one PNG."""
        from ping_llm.train.runs import plot as draw

        draw(run, out, key)
        typer.echo(str(out))

    @runs.command()
    def watch(
        run: Path = typer.Argument(help="Run."),
        as_json: bool = typer.Option(False, "--json", help="Print each record as JSON."),
        last: int = typer.Option(10, "--last", "-n", min=0, help="Earlier records to print first."),
        once: bool = typer.Option(False, "--once", help="Print the existing records and end."),
    ) -> None:
        """Follow a training in the terminal until it ends: loss, speed, and the stages of its pipeline."""
        from ping_llm.train.follow import follow, text_of
        from ping_llm.train.records import line

        for record in follow(run, last=last, once=once):
            typer.echo(line(record).rstrip() if as_json else text_of(record))

    @runs.command()
    def report(
        run: Path = typer.Argument(help="Run."),
        out: Path | None = typer.Option(None, "--out", help="Page to write.  [default: RUN/report.html]"),
    ) -> None:
        """Write a report of a training as one HTML page: loss, samples, speed, waiting, environment."""
        from ping_llm.train.page import write

        typer.echo(str(write(run, out or run / "report.html")))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def register_export(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Path = typer.Argument(help="Run, checkpoint or export.", show_default=False),
    to: str = typer.Option(
        "hf",
        "--to",
        help="Format. hf: Hugging Face folder. onnx: graph with a KV cache. edge: for small devices, with a "
        "runner that needs only NumPy and onnxruntime.",
    ),
    out: Path | None = typer.Option(
        None, "--out", help="Output folder.  [default: RUN/export, RUN/onnx or RUN/edge]"
    ),
    int8: bool = typer.Option(
        True, help="With onnx: also write a graph with 8-bit weights and measure its loss."
    ),
    data: Path | None = typer.Option(
        None,
        "--data",
        help="With onnx: measurements on which the loss is measured.  [default: generated ones]",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Export a model as safetensors, ONNX, or for small devices.

    A safetensors export includes a model card."""
    from ping_llm.tables import print_json, table

    if to not in ("hf", "onnx", "edge"):
        raise UsageError(f"--to must be hf, onnx or edge, not {to!r}")
    if to == "edge":
        written = _edge(run, out or run / "edge")
    elif to == "onnx":
        written = _onnx(run, out or run / "onnx", int8, data)
    else:
        written = _hugging_face(run, out or run / "export")
    if as_json:
        print_json(written)
    else:
        print(table([list(row.values()) for row in written["files"]], list(written["files"][0])))


def _hugging_face(run: Path, folder: Path) -> dict[str, Any]:
    from ping_llm.files import write_text
    from ping_llm.model import export as model_export
    from ping_llm.model.card import model_card

    model_export.export(run, folder)
    model = model_export.read(folder)
    write_text(folder / "README.md", model_card(model, run if (run / "run.json").is_file() else None))
    return {"folder": str(folder), "files": [_size(path) for path in sorted(folder.iterdir())]}


def _edge(run: Path, folder: Path) -> dict[str, Any]:
    from ping_llm.extras import need

    need("onnx")
    from ping_llm.answer import edge_export

    return edge_export.write(run, folder)


def _onnx(run: Path, folder: Path, int8: bool, data: Path | None) -> dict[str, Any]:
    try:
        from ping_llm.model import onnx
    except ImportError as error:
        from ping_llm.extras import how_to_install

        raise PingError(f"{error}: {how_to_install('onnx')}") from None
    from ping_llm.files import write_json
    from ping_llm.model import export as model_export
    from ping_llm.model import graph_loss
    from ping_llm.model.engine import Engine, keep_compiled

    keep_compiled()
    model = model_export.read(run)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.write(model.config, model.tensors, folder / "model.onnx")
    graphs = [folder / "model.onnx"]
    if int8:
        onnx.write(model.config, model.tensors, folder / "model.int8.onnx", int8=True)
        graphs.append(folder / "model.int8.onnx")
    engine = Engine(model.config, model.tensors)
    sequences = graph_loss.sample_sequences(engine) if data is None else _windows(run, data)
    files = [_size(path) | asdict(graph_loss.compare(engine, path, sequences)) for path in graphs]
    write_json(folder / "tokens.json", model.tokens)
    write_json(folder / "loss.json", files)
    if files[0]["max_difference"] > 1e-3:
        difference = files[0]["max_difference"]
        raise PingError(
            f"{graphs[0]} differs from the engine by {difference:.2g} in a logit; it must not be used"
        )
    return {"folder": str(folder), "files": files}


def _windows(run: Path, data: Path, count: int = 64) -> "np.ndarray":
    """Return windows of measurements as tokens, int32 [count, length], padded with PAD."""
    import numpy as np

    from ping_llm.answer.files import read_columns
    from ping_llm.answer.model import Model

    windows = Model.load(run).scorer().windows(read_columns(data), count)
    if not windows:
        raise PingError(f"{data} has no measurements: the loss cannot be measured")
    padded = np.zeros((len(windows), max(map(len, windows))), np.int32)
    for row, window in enumerate(windows):
        padded[row, : len(window)] = window
    return padded


def _size(path: Path) -> dict[str, Any]:
    return {"file": path.name, "bytes": path.stat().st_size}
