"""Rooms import in one direction, in the order that CONTRIBUTING.md lists them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ping_llm"

DATA_ROOMS = ("measurements", "ingest", "splits", "rows", "tokens", "contexts")
#: Files below this many lines that only one other file of their room imports belong to that one.
SHORT = 60
#: The reasons of those that stay.
ALONE = {
    "fit/tune.py": "its importer has all steps of a fit in 400 lines, and this is another noun",
    "serve/protocol.py": "it imports uvicorn, which its importer does without until it listens",
}
#: Importing Grain imports JAX where that is installed; only its worker processes are made there.
GRAIN = "ping_llm.contexts.grain_pipeline"


def listed_rooms() -> list[str]:
    """The rooms of the code block in CONTRIBUTING.md, in reading order."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^    files → measurements.*(?:\n    .+)*", text, re.MULTILINE)
    assert block, "CONTRIBUTING.md has no code block that starts with `files → measurements`"
    return re.findall(r"\w+", block[0])


def rooms() -> list[str]:
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def imported(path: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, inside functions too, with its line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            module = node.module or ""
            found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def rooms_imported(path: Path) -> list[tuple[str, int]]:
    return [(module.split(".")[1], line) for module, line in imported(path) if module.startswith("ping_llm.")]


def test_every_room_is_listed_once():
    listed = listed_rooms()
    assert len(set(listed)) == len(listed)
    assert set(rooms()) <= set(listed)
    assert set(listed) - set(rooms()) == {"files"}, "CONTRIBUTING.md lists a room that does not exist"


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_earlier_rooms(room):
    order = listed_rooms()
    later = set(order[order.index(room) + 1 :])
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {target}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for target, line in rooms_imported(path)
        if target in later
    ]
    assert not wrong


def test_the_ground_floor_imports_no_room():
    wrong = [
        f"{path.name}:{line} imports {target}"
        for path in sorted(PACKAGE.glob("*.py"))
        if path.name not in ("__init__.py", "_api.py")  # the public API
        for target, line in rooms_imported(path)
        if target in rooms()
    ]
    assert not wrong


def test_only_train_imports_maxtext():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "train"
        for module, line in imported(path)
        if module.split(".")[0] == "maxtext"
    ]
    assert not wrong


def test_data_rooms_do_not_load_jax():
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for room in DATA_ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
    ]
    modules.remove(GRAIN)
    program = f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
    program += "print([name for name in ('jax', 'maxtext') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_short_file_has_more_than_one_importer():
    """A room's `__init__.py` is its face, and counts as everybody."""
    importers: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for module, _ in imported(path):
            parts = module.split(".")
            for end in (len(parts), len(parts) - 1):  # a name of a module, or a module
                file = PACKAGE.parent.joinpath(*parts[:end]).with_suffix(".py")
                if file.is_file():
                    importers.setdefault(file.relative_to(PACKAGE).as_posix(), set()).add(
                        path.relative_to(PACKAGE).as_posix()
                    )
    alone = {
        file
        for file, others in importers.items()
        if len(others) == 1
        and (other := Path(*others)).parent == Path(file).parent
        and other.name != "__init__.py"
        and len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) < SHORT
    }
    assert alone == set(ALONE)
