"""The wheel in clean environments: each extra's commands run with what it declares, and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ping_llm import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
EXPORT = """
from pathlib import Path
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors

config = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=256)
export.write(config, random_tensors(config), {}, Path("export"))
"""
CONTEXT = "src_addr,dst_addr,rtt\n192.0.2.1,198.51.100.7,20\n192.0.2.1,198.51.100.7,21\n"

#: What a client of the Model Context Protocol says first.
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def uv(*words: str | Path) -> None:
    program = Path(sys.executable).with_name("uv")
    program = program if program.is_file() else shutil.which("uv")
    assert program, "uv is missing: it is part of the extra dev"
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, cwd=REPOSITORY, env=clean()
    )
    assert done.returncode == 0, done.stderr


def clean() -> dict[str, str]:
    """Without what would lead to the checkout or to this environment; bytecode is kept."""
    without = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in without}


class Environment:
    """A virtual environment with the wheel and one extra, and a folder to work in."""

    def __init__(self, folder: Path, wheel: Path, extra: str):
        self.bin, self.work = folder / "venv" / "bin", folder / "work"
        self.work.mkdir()
        uv("venv", "-q", "--python", sys.executable, folder / "venv")
        package = f"ping-llm{extra} @ {wheel.as_uri()}"
        uv("pip", "install", "-q", "--python", self.bin / "python", "-c", "constraints.txt", package)

    def fails(self, *command: str) -> str:
        done = self._run(command)
        assert done.returncode, done.stdout
        return done.stderr

    def run(self, *command: str) -> str:
        done = self._run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _run(self, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        program = [str(self.bin / command[0]), *command[1:]]
        return subprocess.run(
            program, capture_output=True, text=True, check=False, cwd=self.work, env=clean()
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    uv("build", "-q", "--wheel", "--python", sys.executable, "-o", out, ".")
    (built,) = out.glob("*.whl")
    assert __version__ in built.name
    return built


def test_the_base_handles_data(wheel, tmp_path):
    base = Environment(tmp_path, wheel, "")
    assert base.run("ping-llm", "--version") == f"ping-llm {__version__}\n"
    assert "simulate" in base.run("ping-llm", "--help")
    base.run("ping-llm", "simulate", "world", "-n", "2000", "--probes", "20", "--days", "1")
    base.run("ping-llm", "ingest", "world/date=2024-01-01", "--out", "measurements")
    built = json.loads(base.run("ping-llm", "rows", "build", "measurements", "--out", "rows", "--json"))
    assert built["measurements"] == 2000
    assert "2,000" in base.run("ping-llm", "describe", "measurements")
    base.run("ping-llm", "batches", "stats", "rows")
    code = "import ping_llm; print(len(ping_llm.split('measurements').train) > 0)"
    assert base.run("python", "-c", code) == "True\n"
    assert 'pip install "ping-llm[query]"' in base.fails(
        "ping-llm", "query", "rtt", "x", "--src", "::1", "--dst", "::2"
    )
    refusal = base.fails("ping-llm", "fit", "measurements", "--run", "run")
    assert 'pip install "ping-llm[train]"' in refusal
    assert "--minutes 0" in refusal
    assert not (base.work / "run").exists()
    assert (base.bin.parent / f"lib/python3.{sys.version_info[1]}/site-packages/ping_llm/py.typed").is_file()


EDGE = """
from pathlib import Path
from ping_llm.answer.edge_export import write
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors

config = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=256)
export.write(config, random_tensors(config), {}, Path("export"))
write(Path("export"), Path("edge"))
"""


def test_an_edge_export_answers_without_jax(wheel, tmp_path):
    """Its runner with NumPy and onnxruntime alone; `query rtt` and `load` with the extra edge."""
    subprocess.run([sys.executable, "-c", EDGE], check=True, cwd=tmp_path)
    ends = ("--src", "192.0.2.1", "--dst", "198.51.100.7", "--context", "context.csv", "--json")
    uv("venv", "-q", "--python", sys.executable, tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    uv("pip", "install", "-q", "--python", python, "-c", "constraints.txt", "numpy", "onnxruntime")
    (tmp_path / "context.csv").write_text(CONTEXT)
    runner = [python, "edge/rtt.pyz", *ends]
    done = subprocess.run(runner, capture_output=True, text=True, check=False, cwd=tmp_path, env=clean())
    assert done.returncode == 0, done.stderr
    for absent in ("jax", "numba", "pyarrow", "safetensors", "onnx"):
        assert subprocess.run([python, "-c", f"import {absent}"], capture_output=True, check=False).returncode

    edge = Environment(tmp_path, wheel, "[edge]")
    (edge.work / "context.csv").write_text(CONTEXT)
    answer = edge.run("ping-llm", "query", "rtt", "../edge", *ends)
    assert json.loads(answer)["quantiles"] == pytest.approx(json.loads(done.stdout)["quantiles"], rel=1e-4)
    for absent in ("jax", "safetensors"):
        assert "ModuleNotFoundError" in edge.fails("python", "-c", f"import {absent}")
    code = "import ping_llm; print(ping_llm.load('../edge').rtt('192.0.2.1', '192.0.2.2').failure)"
    assert 0 < float(edge.run("python", "-c", code)) < 1


def test_query_answers_without_maxtext(wheel, tmp_path):
    query = Environment(tmp_path, wheel, "[query]")
    query.run("python", "-c", EXPORT)
    (query.work / "context.csv").write_text(CONTEXT)
    ends = ("--src", "192.0.2.1", "--dst", "198.51.100.7")
    for model in (["export"], []):  # without a model, base answers
        answer = json.loads(
            query.run("ping-llm", "query", "rtt", *model, *ends, "--context", "context.csv", "--json")
        )
        assert answer["context"]["given"] == 2
        assert 0 < answer["quantiles"]["0.05"] < answer["quantiles"]["0.95"]
    for absent in ("maxtext", "flax", "sklearn"):
        assert "ModuleNotFoundError" in query.fails("python", "-c", f"import {absent}")
    # A run without an export is read from its checkpoint.
    assert query.run("python", "-c", "import orbax.checkpoint; print('orbax')") == "orbax\n"


#: A tenth of the steps, because nothing is asserted about how good the answers are: 80 s otherwise.
TUNE = """
import ping_llm
from ping_llm.answer.methods import relations_tuned

relations_tuned.FEWEST_STEPS, relations_tuned.PAIRS_PER_STEP = 15, 80
ping_llm.fit("world", "run", minutes=0, queries=10, baselines=("by destination", "pair last"))
"""


def test_query_tunes_base(wheel, tmp_path):
    query = Environment(tmp_path, wheel, "[query]")
    query.run("ping-llm", "simulate", "world", "-n", "2000", "--probes", "20", "--days", "3")
    query.run("python", "-c", TUNE)
    assert (query.work / "run" / "report" / "report.html").is_file()
    assert "best guess" in query.run(
        "ping-llm", "query", "rtt", "run", "--src", "192.0.2.1", "--dst", "198.51.100.7"
    )


def test_train_trains_and_answers(wheel, tmp_path):
    train = Environment(tmp_path, wheel, "[train]")
    train.run("ping-llm", "simulate", "world", "-n", "2000", "--probes", "20", "--days", "3")
    train.run("ping-llm", "rows", "build", "world", "--out", "rows")
    train.run("ping-llm", "train", "tiny", "--rows", "rows", "--run", "run", "steps=2")
    ends = ("--src", "192.0.2.1", "--dst", "198.51.100.7")
    answer = json.loads(train.run("ping-llm", "query", "rtt", "run", *ends, "--no-data", "--json"))
    assert 0 < answer["quantiles"]["0.05"] < answer["quantiles"]["0.95"]


def test_serve_answers_over_http(wheel, tmp_path):
    serve = Environment(tmp_path, wheel, "[serve]")
    (serve.work / "context.csv").write_text(CONTEXT)
    command = [serve.bin / "ping-llm", "serve", "--data", "context.csv", "--port", "0"]
    with subprocess.Popen(command, cwd=serve.work, env=clean(), stdout=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"at (http://\S+)", server.stdout.readline())[1]
            body = json.dumps({"src": "192.0.2.1", "dst": "198.51.100.7"}).encode()
            headers = {"Content-Type": "application/json"}
            with urlopen(Request(f"{url}/v1/rtt", body, headers), timeout=60) as answer:
                assert json.load(answer)["quantiles"]["0.5"] > 0
        finally:
            server.terminate()
    assert server.returncode == 0


def test_mcp_lists_its_tools(wheel, tmp_path):
    mcp = Environment(tmp_path, wheel, "[mcp]")
    mcp.run("python", "-c", EXPORT)
    messages = [
        {"id": 1, "method": "initialize", "params": INITIALIZE},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in messages)
    done = subprocess.run(
        [mcp.bin / "ping-llm", "mcp", "export"], input=lines, capture_output=True, text=True, check=False,
        cwd=mcp.work, env=clean(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (listed,) = (one["result"] for one in map(json.loads, done.stdout.splitlines()) if one.get("id") == 2)
    assert {tool["name"] for tool in listed["tools"]} == {"rtt", "rank", "anomalies"}
