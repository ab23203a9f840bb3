"""The Modal file as far as it goes without an account: it loads, and its part that runs here runs here."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[2] / "deploy" / "modal" / "train.py"


def _saves(ready: Path) -> list[str]:
    """A command that exits with 75 on SIGTERM, like a training; `ready` exists once it listens."""
    return ["sh", "-c", f"trap 'exit 75' TERM; touch '{ready}'; while :; do sleep 0.1; done"]


@pytest.fixture(scope="module")
def deployed():
    pytest.importorskip("modal")
    spec = importlib.util.spec_from_file_location("modal_train", _FILE)
    module = importlib.util.module_from_spec(spec)
    # Modal asks a function's module for its name.
    sys.modules["modal_train"] = module
    spec.loader.exec_module(module)
    return module


def test_the_app_has_the_function(deployed):
    import modal

    assert isinstance(deployed.train, modal.Function)
    assert deployed.app.name == "ping-llm-train"


def test_there_is_time_to_save_before_the_timeout(deployed):
    assert 0 < deployed.SAVING_S < deployed.CALL_S <= 24 * 3600


def test_the_exit_code_is_the_trainings(deployed):
    from ping_llm.train.processes import EXIT_CODE

    assert deployed.STOPPED == EXIT_CODE


def test_the_command_on_the_machine(deployed):
    assert deployed.training_command("100m", "--rows /volume/rows steps=5") == [
        *("ping-llm", "train", "100m", "--rows", "/volume/rows", "steps=5", "--run", "/volume/runs/100m"),
    ]
    named = deployed.training_command("/volume/own.yml", "", "first", "wandb", "latency")
    keys = ["enable_wandb=true", "wandb_project_name=latency"]
    assert named == ["ping-llm", "train", "/volume/own.yml", *keys, "--run", "/volume/runs/first"]
    with pytest.raises(SystemExit, match="must be letters, digits"):
        deployed.training_command("100m", run_name="../other")
    with pytest.raises(SystemExit, match="--wandb-project needs --wandb-secret"):
        deployed.training_command("100m", wandb_project="latency")


def test_only_what_may_work_is_tried_again(deployed):
    """Modal calls a function again that raises."""
    assert [deployed.outcome(code) for code in (0, 2)] == [0, 2]
    with pytest.raises(deployed.Unfinished):
        deployed.outcome(75)
    for code in (1, -9):
        with pytest.raises(RuntimeError, match=f"code {code}"):
            deployed.outcome(code)


def test_a_command_that_ends_in_time(deployed):
    assert deployed.run_until([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3


def test_a_command_that_takes_too_long_is_stopped(deployed, monkeypatch, tmp_path):
    # The time is over once the command listens for signals, however slow the machine is.
    ready = tmp_path / "ready"
    wait = subprocess.Popen.wait

    def wait_until_ready(process, timeout=None):
        if timeout is None:
            return wait(process)
        _wait_for(ready)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_ready)
    assert deployed.run_until(_saves(ready), 60) == 75


def test_a_preemption_is_passed_on(deployed, tmp_path):
    ready = tmp_path / "ready"

    def interrupt():
        _wait_for(ready)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert deployed.run_until(_saves(ready), 60) == 75


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)
