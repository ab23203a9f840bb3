"""A kernel must not outlive what it was compiled from, wherever that stands."""

import os
import shutil
import subprocess
import sys

import pytest

from ping_llm import compiled, errors, files

CONSTANTS = "STEP = {step}\n"
HELPER = (
    "from ping_llm.compiled import kernel\n"
    "from ping_llm.toys import constants\n\n\n"
    "@kernel\ndef add(x):\n    return x + constants.STEP\n"
)
CALLER = (
    "from ping_llm.compiled import kernel\n"
    "from ping_llm.toys.helper import (\n    add,\n)\n\n\n"
    "@kernel\ndef twice(x):\n    return add(add(x))\n"
)


@pytest.fixture
def package(tmp_path):
    """A small copy of the package, with two kernels."""
    package = tmp_path / "ping_llm"
    toys = package / "toys"
    toys.mkdir(parents=True)
    (package / "__init__.py").touch()
    for module in (compiled, files, errors):
        shutil.copy(module.__file__, package)
    (toys / "__init__.py").touch()
    (toys / "helper.py").write_text(HELPER)
    (toys / "caller.py").write_text(CALLER)
    (toys / "constants.py").write_text(CONSTANTS.format(step=1))
    return package


CALL = "from ping_llm.toys.caller import twice; print(twice(1), sum(twice.stats.cache_hits.values()))"


def call(package, **environment):
    """What a fresh process computes, how much of it came from the cache, and what it says."""
    return call_at_once(package, 1, **environment)[0]


def call_at_once(package, times, **environment):
    cleared = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PING_LLM_NO_CACHE_SAID")
    }
    cleared["HOME"] = str(package.parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CALL], cwd=package.parent, env=cleared | environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(times)
    ]  # fmt: skip
    said = [process.communicate() for process in started]
    assert not any(process.returncode for process in started), said
    return [(tuple(map(int, out.split())), errors) for out, errors in said]


def test_a_changed_constant_two_files_away_compiles_afresh(package):
    def result(step):
        (package / "toys" / "constants.py").write_text(CONSTANTS.format(step=step))
        return call(package)[0]

    assert result(1) == (3, 0)
    assert result(1) == (3, 1)  # from the cache
    assert result(10) == (21, 0)  # not from the cache


@pytest.fixture
def nowhere(package):
    """A package beside which nothing can be written, and a home where nothing can: even root is refused."""
    for folder in (package, package / "toys"):
        (folder / "__pycache__").write_text("a file in the way")
    return {"HOME": "/proc/none", "PYTHONDONTWRITEBYTECODE": "1"}


def test_the_configuration_of_numba_is_left_alone(package):
    code = (
        "import numba; numba.config.CACHE_DIR = 'mine'\n"
        "from ping_llm.toys.caller import twice; twice(1); print(numba.config.CACHE_DIR)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=package.parent, capture_output=True, text=True, check=True,
        env=os.environ | {"XDG_CACHE_HOME": str(package.parent / "cache")},
    )  # fmt: skip
    assert done.stdout == "mine\n"
    assert not (package.parent / "mine").exists()
    assert list((package.parent / "cache").rglob("*.nbc"))


def test_without_a_cache_folder_it_compiles_and_says_so_once(package, nowhere):
    for environment in (nowhere, nowhere | {"XDG_CACHE_HOME": "/proc/none", "LC_ALL": "C"}):
        result, said = call(package, **environment)
        assert result == (3, 0)
        assert said.count("note: no cache folder can be written") == said.count("\n") == 1


def test_a_cache_folder_of_numba_that_cannot_be_written(package, nowhere):
    result, said = call(package, **nowhere, NUMBA_CACHE_DIR="/proc/none")
    assert result == (3, 0)
    assert said.count("note: the cache folder /proc/none cannot be written") == 1


def test_without_a_home_compiled_code_is_kept_beside_the_package(package):
    assert call(package, HOME="/proc/none") == ((3, 0), "")
    assert call(package, HOME="/proc/none") == ((3, 1), "")


def test_installations_of_the_same_source_share_compiled_code(package, tmp_path):
    assert call(package) == ((3, 0), "")
    other = tmp_path / "other" / "ping_llm"
    shutil.copytree(package, other, copy_function=shutil.copyfile)  # with other times
    with (other / "files.py").open("a") as late:
        late.write("\n# No kernel uses anything of this file.\n")
    assert call(other, HOME=str(tmp_path)) == ((3, 1), "")
    (other / "toys" / "constants.py").write_text(CONSTANTS.format(step=2))
    assert call(other, HOME=str(tmp_path)) == ((5, 0), "")
    assert call(package) == ((3, 1), "")


def test_one_process_compiles_and_the_others_wait(package):
    results = call_at_once(package, 3)
    assert sorted(results) == [((3, 0), ""), ((3, 1), ""), ((3, 1), "")]


def test_a_user_without_a_home(monkeypatch):
    def unknown(number):
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert files.cache_folder("kernels") is None


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
def test_a_damaged_cache_is_made_anew(package, pattern):
    assert call(package) == ((3, 0), "")
    entries = list((package.parent / ".cache" / "ping-llm" / "kernels").rglob(pattern))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    assert call(package) == ((3, 0), "")
    assert call(package) == ((3, 1), "")


SAYS = """
import os, sys
from ping_llm import compiled, files
compiled._QUIET_S = 0.0
if sys.argv[1] == "program":
    files.process_that_says_compiling = os.getpid()
if sys.argv[2:]:
    sys.stderr = None
"""


@pytest.mark.parametrize(("words", "notes"), [("program", 1), ("library", 0), ("program closed", 0)])
def test_the_program_says_once_that_it_compiles(words, notes, package):
    environment = os.environ | {"HOME": str(package.parent)}
    for name in ("PYTHONPATH", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        environment.pop(name, None)

    def said():
        done = subprocess.run(
            [sys.executable, "-c", SAYS + CALL, *words.split()],
            cwd=package.parent, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stderr

    assert said() == "compiling, once per installation …\n" * notes
    assert not said()  # from the cache
