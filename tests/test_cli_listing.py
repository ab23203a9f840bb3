"""What help screens list: every command once, in whole sentences that fit the terminal."""

import subprocess
import sys
from pathlib import Path

import pytest

from ping_llm.cli.listing import SECTIONS

PROGRAM = Path(sys.executable).with_name("ping-llm")
GROUPS = ("query", "rows", "runs", "tokens", "batches", "fetch", "bench")


def screen(*words: str) -> str:
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def program() -> str:
    return screen()


def test_every_command_is_in_one_section():
    """In a process of its own: registering commands is what the program does once."""
    listed = """
import sys, typer, ping_llm.cli as cli
cli.app.command("new")(print)
sys.argv[1:] = ["--version"]
try:
    cli.main()
except SystemExit:
    print(*typer.main.get_command(cli.app).commands)
"""
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    commands = done.stdout.splitlines()[-1].split()
    assert sorted(commands) == sorted(["new", *(name for names in SECTIONS.values() for name in names)])


def test_the_program_lists_its_sections_with_a_line_for_each_command(program):
    listed = program[program.index("Start:") :].splitlines()
    for title, names in SECTIONS.items():
        first = listed.index(f"{title}:") + 1
        lines = listed[first : first + len(names)]
        assert [line.split()[0] for line in lines] == list(names)
        assert all(line.startswith("  ") and line.endswith(".") for line in lines)


@pytest.mark.parametrize("group", GROUPS)
def test_no_sentence_is_cut(group):
    text = screen(group)
    listed = text[text.index("Commands:\n") :]
    assert "..." not in listed
    assert max(map(len, text.splitlines())) <= 80
    starts = [line for line in listed.splitlines()[1:] if line.startswith("  ") and line[2] != " "]
    ends = [line for line in listed.splitlines()[1:] if line.rstrip().endswith(".")]
    assert len(starts) == len(ends) > 0
