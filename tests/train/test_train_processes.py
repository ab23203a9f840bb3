"""Two processes: the same stream and losses as one, each making only its share."""

import socket

import pytest
from small_training import SMALL, command, losses, start

from ping_llm.train.processes import ProcessGroup
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _together(run, rows, *more):
    meet = f"127.0.0.1:{_free_port()}"
    words = [*command(run, rows, *more), "--coordinator", meet, "--processes", "2", "--process"]
    both = [start([*words, str(index)]) for index in range(2)]
    outputs = [process.communicate()[1] for process in both]
    return [process.returncode for process in both], outputs


def test_one_two_and_one_again(undisturbed, rows, tmp_path):
    """Steps 0 to 3 by one process, 4 to 7 by two, the rest by one: the losses are equal to rounding."""
    run = tmp_path / "run"
    train("tiny", [*SMALL, "steps=4"], run=run, rows=rows)
    codes, errors = _together(run, rows, "steps=8")
    assert codes == [0, 0], errors
    train("tiny", SMALL, run=run, rows=rows)
    alone, mixed = losses(undisturbed), losses(run)
    assert {step: alone[step] for step in range(4)} == {step: mixed[step] for step in range(4)}
    assert mixed == pytest.approx(alone, rel=1e-5)


def test_processes_need_a_place_to_meet():
    from ping_llm.errors import UsageError

    with pytest.raises(UsageError, match="--coordinator"):
        ProcessGroup(count=2)
    with pytest.raises(UsageError, match="the process index must be 0 to 1, not 2"):
        ProcessGroup("localhost:1", 2, 2)


def test_slurm_says_who_we_are(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert ProcessGroup.of("node1:1234", None, None) == ProcessGroup("node1:1234", 4, 3)
    assert ProcessGroup.of("", None, None) == ProcessGroup()
