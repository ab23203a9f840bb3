"""`ping-llm export`: a model that leaves home."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import numpy as np

from ping_llm.errors import PingError, UsageError


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Path = typer.Argument(help="A run, a checkpoint or an export.", show_default=False),
    to: str = typer.Option("hf", "--to", help="hf: a Hugging Face folder. onnx: a graph with a KV cache."),
    out: Path | None = typer.Option(
        None, "--out", help="Folder to write.  [default: RUN/export or RUN/onnx]"
    ),
    int8: bool = typer.Option(True, help="With onnx: also a graph of 8-bit weights, with its loss measured."),
    data: Path | None = typer.Option(
        None, "--data", help="With onnx: measure the loss on these measurements (by default on made-up ones)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write a model for other programs: safetensors with a model card, or ONNX."""
    from ping_llm.tables import print_json, table

    if to not in ("hf", "onnx"):
        raise UsageError(f"cannot export to {to!r}: choose hf or onnx")
    folder = out or run / ("export" if to == "hf" else "onnx")
    written = _hugging_face(run, folder) if to == "hf" else _onnx(run, folder, int8, data)
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


def _onnx(run: Path, folder: Path, int8: bool, data: Path | None) -> dict[str, Any]:
    try:
        from ping_llm.model import onnx
    except ImportError as error:
        raise PingError(f"{error}: install the extra `onnx` (pip install 'ping-llm[onnx]')") from None
    from ping_llm.files import write_json
    from ping_llm.model import check
    from ping_llm.model import export as model_export
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
    sequences = check.sample_sequences(engine) if data is None else _told(run, data)
    files = [_size(path) | asdict(check.compare(engine, path, sequences)) for path in graphs]
    write_json(folder / "tokens.json", model.tokens)
    write_json(folder / "loss.json", files)
    if files[0]["max_difference"] > 1e-3:
        difference = files[0]["max_difference"]
        raise PingError(f"{graphs[0]} differs from the engine by {difference:.2g} in a logit: do not use it")
    return {"folder": str(folder), "files": files}


def _told(run: Path, data: Path, count: int = 64) -> "np.ndarray":
    """Windows of measurements as tokens, int32 [count, length], padded with PAD."""
    import numpy as np

    from ping_llm.query.files import read_columns
    from ping_llm.query.model import Model

    windows = Model.load(run).scorer().windows(read_columns(data), count)
    if not windows:
        raise PingError(f"{data} holds no measurements: the loss cannot be measured on it")
    told = np.zeros((len(windows), max(map(len, windows))), np.int32)
    for row, window in enumerate(windows):
        told[row, : len(window)] = window
    return told


def _size(path: Path) -> dict[str, Any]:
    return {"file": path.name, "bytes": path.stat().st_size}
