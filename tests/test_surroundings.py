"""The program where the terminal is not UTF-8 and nothing can be kept: real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64)
PROGRAM = "from ping_llm.cli import main; main()"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export.write(CONFIG, random_tensors(CONFIG), {}, tmp_path_factory.mktemp("model"))


def ask(*words, **environment) -> subprocess.CompletedProcess:
    ours = ("LC_", "LANG", "XDG_", "PYTHONIO", "PING_LLM_")
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, env=cleared | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("environment", "encoding"),
    [
        ({"PYTHONIOENCODING": "latin-1"}, "latin-1"),
        ({"PYTHONIOENCODING": "ascii"}, "ascii"),
        (ASCII, "ascii"),
        ({"LC_ALL": "C"}, "utf-8"),
    ],
)
def test_an_answer_on_any_terminal_without_a_home(model, environment, encoding):
    question = ("query", "rtt", str(model), "--src", "192.0.2.1", "--dst", "192.0.2.2")
    done = ask(*question, HOME="/proc/none", **environment)
    text = done.stdout.decode(encoding)
    assert "192.0.2.2" in text
    assert "\\u" not in text
    assert done.stderr.count(b"note: no cache folder can be written") == 1


def test_json_says_the_same_on_any_terminal(tmp_path):
    run = tmp_path / "Zürich → …"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"format": 1, "state": "stopped", "message": "…"}), "utf-8")
    for environment in ({"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "utf-8"}):
        done = ask("runs", "--in", os.fsencode(tmp_path), "--json", PYTHONUTF8="1", **environment)
        assert json.loads(done.stdout)[0]["name"] == str(run)


def test_a_name_that_is_no_text_is_printed(tmp_path):
    run = tmp_path / os.fsdecode(b"run\xff")
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"format": 1, "state": "stopped"}))
    assert rb"run\xff" in ask("runs", "--in", os.fsencode(tmp_path), PYTHONUTF8="1").stdout
