"""What a user can do wrong with files ends in a sentence, and never in "unexpected"."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ping_llm.cli import main
from ping_llm.model import export
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.write import simulate

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16, max_length=64)
RTT = ("query", "rtt", "MODEL", "--src", "192.0.2.1", "--dst", "192.0.2.2")
OTHERS = (
    ("query", "complete", "MODEL", "--src", "192.0.2.1", "--dst", "192.0.2.?", "--top", "2"),
    ("query", "score", "MODEL", "PAIRS"),
    ("query", "rtt", "MODEL", "--pairs", "PAIRS"),
    ("query", "generate", "MODEL", "--src", "192.0.2.1", "--measurements", "1"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model, a table, a file, a folder, and a run that is damaged."""
    place = tmp_path_factory.mktemp("trouble")
    export.write(CONFIG, random_tensors(CONFIG), {}, place / "model")
    (place / "pairs.csv").write_text(
        "event_time,src_addr,dst_addr,rtt\n2024-05-01T12:00:00Z,192.0.2.1,192.0.2.2,10\n"
    )
    (place / "file").touch()
    (place / "folder.png").mkdir()
    (place / "run").mkdir()
    (place / "run" / "metrics.jsonl").write_text(
        json.dumps({"kind": "train", "step": 0, "loss": 1.0, "bits": {}}) + "\n"
    )
    return place


NAMES = {"MODEL": "model", "PAIRS": "pairs.csv"}


@pytest.fixture
def ask(place, monkeypatch, capsys):
    """The program on some words, in this process: one of its own takes 2 s to import what answers."""
    monkeypatch.chdir(place)

    def asked(*words):
        words = [NAMES.get(word, word) for word in words]
        monkeypatch.setattr(sys, "argv", ["ping-llm", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, end.value.code or 0, printed.out, printed.err)

    return asked


@pytest.mark.parametrize(
    ("png", "says"),
    [
        ("x.txt", "the name of x.txt must end in .png, .svg, .pdf"),
        ("file/x.png", "file/x.png: Not a directory"),
        ("/proc/none/x.png", "/proc/none/x.png: No such file"),
        ("folder.png", "folder.png: Is a directory"),
    ],
)
def test_the_answer_comes_before_the_trouble_with_its_picture(ask, png, says):
    done = ask(*RTT, "--png", png)
    assert done.returncode == 1
    assert "192.0.2.1 → 192.0.2.2" in done.stdout
    assert f"no picture was written: {says}" in done.stderr


@pytest.mark.parametrize("question", OTHERS, ids=lambda words: f"{words[1]} {words[-2]}")
def test_every_question_answers_before_its_picture(ask, question):
    done = ask(*question, "--png", "x.txt")
    assert done.returncode == 1
    assert done.stdout.strip()
    assert "must end in .png" in done.stderr


def test_a_picture_that_can_be_written(place, ask):
    assert ask(*RTT, "--png", "new/picture.svg").returncode == 0
    assert "<svg" in (place / "new" / "picture.svg").read_text()


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (("runs", "plot", "run", "--out", "x.txt"), "the name of x.txt must end in", 2),
        (("runs", "plot", "run", "--out", "file/x.png"), "file: Not a directory", 1),
        (("export", "model", "--out", "file"), "file is not a folder", 2),
        (("export", "model", "--out", "file/x"), "file/x is not a folder", 2),
        (("rows", "build", "pairs.csv", "--out", "file/x"), "file/x is not a folder", 2),
        (("simulate", "file/x", "--measurements", "10"), "file/x is not a folder", 2),
    ],
)
def test_a_file_in_the_place_of_a_folder(ask, words, says, code):
    done = ask(*words)
    assert says in done.stderr
    assert "unexpected" not in done.stderr
    assert done.returncode == code


WITHOUT_SKLEARN = "import sys; sys.modules['sklearn'] = None; from ping_llm.cli import main; main()"


@pytest.mark.parametrize(
    ("baselines", "says"),
    [
        ("all", 'note: the baseline boosted is left out: it needs pip install "ping-llm[evaluate]"'),
        ("global,boosted", 'this needs sklearn, which is not installed: pip install "ping-llm[evaluate]"'),
    ],
)
def test_a_method_whose_package_is_missing_is_said_before_an_evaluation(baselines, says, tmp_path):
    simulate(tmp_path / "world", WorldOptions(measurements=1500, probes=15, targets=6, days=2))
    # The world that does not exist ends what would take half a minute; without it, `all` goes on.
    words = ["evaluate", "--data", "world", "--out", "report", "--baselines", baselines, "--world", "none"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SKLEARN, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.startswith(says if baselines == "all" else f"ping-llm: {says}")
    assert ("none" in done.stderr) == (baselines == "all")
    assert done.returncode


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("train", "tiny", "--rows", "rows", "--steps", "5"),
            "there is no option --steps; keys of the config",
        ),
        (("query", "rtt", "MODEL", "--src", "name.invalid", "--dst", "192.0.2.2"), "name.invalid cannot be"),
        (("query", "rtt", "MODEL", "--src", "10.0.0/8", "--dst", "192.0.2.2"), "write 10.0.0.0/8"),
        (("query", "rtt", "MODEL", "--src", "192.0.2.1", "--dst", "192.0.2.2", "--at", "later"), "later"),
        (("query", "inverse", "MODEL", "--src", "192.0.2.1", "--rtt", "20-10"), "a smaller to a larger RTT"),
        (("rank", "--src", "192.0.2.1", "--dst", "192.0.2.2", "192.0.2.3"), "not a RUN: separate several"),
        (("watch", "base", "pairs.csv", "--state", "state"), "give it earlier measurements with --data\n"),
    ],
)
def test_what_was_probably_meant_is_said(ask, words, says):
    done = ask(*words)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_process_ends_as_its_command(place):
    """And `now` is a time."""
    program = [sys.executable, "-c", "from ping_llm.cli import main; main()"]
    for more, code in ((["--at", "now"], 0), (["--png", "x.txt"], 1), (["--at", "later"], 2)):
        words = [NAMES.get(word, word) for word in (*RTT, *more)]
        done = subprocess.run([*program, *words], cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
