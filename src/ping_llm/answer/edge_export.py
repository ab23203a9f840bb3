"""Writes an edge export: the graphs, the stack, the tokens, and a runner in one file.

The runner is a zip file that Python runs (PEP 441). It holds unchanged copies of the modules that answer
about RTTs, so a device answers as the run does: all methods of the stack, and its calibration. Two modules
are replaced. `compiled` leaves kernels as plain Python, so Numba is not needed. `pyarrow` is a placeholder,
because these modules name its types but do not use them.
"""

import ast
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import ping_llm
from ping_llm.answer import edge
from ping_llm.answer.stack import ARRAYS, EDGE_ARRAYS, FILE, FOLDER
from ping_llm.errors import UsageError
from ping_llm.files import whole_file, write_bytes, write_json, write_text
from ping_llm.locks import only_writer
from ping_llm.model import export
from ping_llm.model.edge import GRAPH, INT8_GRAPH
from ping_llm.model.packaged import base_folder

RUNNER, README = "rtt.pyz", "README.md"

_PACKAGE = Path(ping_llm.__file__).parent
#: Modules from which imports are followed: the command, and the modules that it imports late.
_ROOTS = (
    "ping_llm.answer.edge",
    "ping_llm.answer.distribution_kernels",
    "ping_llm.tokens.columns",
    "ping_llm.answer.complete",
)

_MAIN = """\
import sys
from pathlib import Path

if sys.version_info < (3, 12):
    sys.exit("error: rtt.pyz needs Python 3.12 or newer")
from ping_llm.answer.edge import main

sys.exit(main(Path(sys.argv[0]).resolve().parent))
"""
_COMPILED = '''\
"""Kernels as plain Python: there is no Numba here."""


COMPILED = False


def kernel(function):
    return function
'''
_PYARROW = '''\
"""A placeholder: the modules of this file name types of pyarrow, and do not use them."""


class _Absent:
    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **options):
        return self

    __or__ = __ror__ = __call__


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent()
'''
_REPLACED = {
    "__main__.py": _MAIN,
    "ping_llm/compiled.py": _COMPILED,
    "pyarrow/__init__.py": _PYARROW,
    "pyarrow/compute.py": "from pyarrow import __getattr__ as __getattr__\n",
}

_ABOUT = """\
# RTTs on a small device

    pip install "numpy>=2" onnxruntime        # and Python 3.12 or newer: nothing else
    python rtt.pyz --src 192.0.2.1 --dst 198.51.100.7 --context pings.csv

`pings.csv` has the earlier measurements of the source: the columns `src_addr`, `dst_addr`, `rtt` (ms, -1: no
reply) and, where known, `event_time`. Without `--context` the answer rests on what was trained on alone.
`--json` prints JSON, `--int8` runs the smaller graph, `--raw` asks the network alone. `--size`, `--errors`,
`--msm-id`, `--probe` and `--throughput` state conditions, if the model was trained on them; `pings.csv` may
have them too.

{stack}

| file | |
|---|---|
| rtt.pyz | the runner: one file, run by Python |
| model.onnx, model.int8.onnx | the network, with 32-bit and with 8-bit weights |
| config.json, tokens.json | its sizes, and how measurements are written as tokens |
{stack_files}
`ping-llm query rtt THIS_FOLDER …` answers from it too (without JAX), with contexts in any format.
"""
_WITH_STACK = (
    "Answers are those of the run: the network and the simple methods of its stack, mixed and calibrated."
)
_WITHOUT_STACK = "The run was never calibrated, so answers are those of the network alone."


def write(run: Path, out: Path) -> dict[str, Any]:
    """Write the edge export of a run, a checkpoint or an export; returns its files and their sizes."""
    from ping_llm.model import onnx

    if base_folder(run) is not None:
        raise UsageError(
            "the packaged model fits its methods to the data of each question, which takes Numba: it has no "
            "edge export; `ping-llm fit --from base` makes a run that has one"
        )
    model = export.read(run)
    with only_writer(out, "export"):
        out.mkdir(parents=True, exist_ok=True)
        for name, int8 in ((GRAPH, False), (INT8_GRAPH, True)):
            onnx.write(model.config, model.tensors, out / name, int8=int8, branching=True)
        write_json(out / edge.TOKENS, model.tokens)
        if model.stack is not None:
            _write_stack(model.stack, out / FOLDER)
        with whole_file(out / RUNNER) as aside:
            _pack(aside)
        about = _WITH_STACK if model.stack is not None else _WITHOUT_STACK
        row = "| stack/ | simple methods, weights and calibration |\n" if model.stack is not None else ""
        write_text(out / README, _ABOUT.format(stack=about, stack_files=row))
        # Written last: a folder with config.json is complete.
        write_json(out / edge.CONFIG, model.config.to_llama())
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {
        "folder": str(out),
        "files": [{"file": str(path.relative_to(out)), "bytes": path.stat().st_size} for path in files],
    }


def _write_stack(stack: Path, out: Path) -> None:
    from safetensors.numpy import load_file

    out.mkdir(exist_ok=True)
    with whole_file(out / EDGE_ARRAYS) as aside, aside.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **load_file(stack / ARRAYS))
    for name in (edge.VERDICT, FILE):
        if (stack / name).is_file():
            write_bytes(out / name, (stack / name).read_bytes())


def _pack(path: Path) -> None:
    """Write the runner; the same modules give the same bytes."""
    held = {str(file.relative_to(_PACKAGE.parent)): file.read_text(encoding="utf-8") for file in _modules()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in sorted((held | _REPLACED).items()):
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def _modules() -> list[Path]:
    """Files of the package that the runner imports."""
    found: dict[str, Path] = {}
    waiting = list(_ROOTS)
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if name in found or file is None:
            continue
        found[name] = file
        waiting += [name.rpartition(".")[0]] * ("." in name)
        if file != _PACKAGE / "compiled.py":
            waiting += _imports(ast.parse(file.read_text(encoding="utf-8")).body)
    return sorted(found.values())


def _file_of(module: str) -> Path | None:
    if module.partition(".")[0] != "ping_llm":
        return None
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imports(body: list[ast.stmt]) -> list[str]:
    """Modules imported at the top level of a module; `from ping_llm.tokens import vocab` names two."""
    names = []
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
