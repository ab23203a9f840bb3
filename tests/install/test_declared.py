"""What the source imports is what pyproject.toml declares, for each extra."""

import ast
import importlib
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import ping_llm
from ping_llm import doctor, extras
from ping_llm.errors import PingError

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "ping_llm"

#: What must be installed for a folder or module of the package; the base for all others.
NEEDS = {
    "model": "query",
    "answer": "query",
    "evaluate": "query",
    "bench": "train",
    "train": "train",
    "fit": "train",
    "demo": "train",
    "serve": "serve",
    "_api": "train",
}

#: Extras that add one function to something else: imported where that function is called, never at the top.
ADDITIONS = ("spark", "modal", "wandb", "edge", "onnx", "evaluate", "mmdb")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def declared() -> dict[str, set[str]]:
    """Extra → the packages that it declares itself; "" is the base."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {canonical(re.match(r"[\w.-]+", text).group()) for text in texts}
        for extra, texts in lists.items()
    }


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(top-level module, whether it is imported with the file rather than inside a function)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "ping_llm":
                yield top, id(node) not in inside


def third_party() -> Iterator[tuple[Path, str, bool]]:
    """(file, package, at its top) of every import of somebody else's code below src/."""
    packages = importlib.metadata.packages_distributions()
    for path in sorted(SOURCE.rglob("*.py")):
        for module, at_top in imports(path):
            found = packages.get(module)
            assert found, f"{path}: {module} is not installed, so nobody knows which package it is of"
            yield path, canonical(found[0]), at_top


def available(extra: str, declared: dict[str, set[str]]) -> set[str]:
    order = ("", "query", "serve" if extra == "serve" else "train")  # both include query, and that the base
    return set().union(*(declared[name] for name in order[: order.index(extra) + 1]))


def test_every_import_is_declared_where_it_is_needed(declared):
    additions = set().union(*(declared[extra] for extra in ADDITIONS))
    missing = []
    for path, package, at_top in third_party():
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        needed = NEEDS.get(room, "")
        if package in available(needed, declared) or (package in additions and not at_top):
            continue
        if package in declared.get(path.stem, ()):
            continue  # model/onnx.py is what the extra is for
        where = path.relative_to(SOURCE)
        missing.append(f"{where} imports {package}, which {needed or 'the base'} does not declare")
    assert not missing, "\n".join(missing)


def test_the_base_and_query_declare_nothing_that_is_not_imported(declared):
    imported = {package for _, package, _ in third_party()}
    assert declared[""] | declared["query"] <= imported


def test_what_to_install_is_said_right(declared):
    packages = importlib.metadata.packages_distributions()
    for extra, modules in extras.MODULES.items():
        assert {canonical(packages[module][0]) for module in modules} <= declared[extra]
    assert declared["query"] == {canonical(packages[module][0]) for module in extras.MODULES["query"]}
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("maxtext.nothing")
    commands = 'pip install "ping-llm[train]", or in a clone pip install -c constraints.txt ".[train]"'
    assert extras.missing(raised.value).endswith(commands)


def test_a_fit_without_maxtext_says_what_needs_none(monkeypatch, tmp_path):
    monkeypatch.setitem(extras.MODULES, "train", ("no_such_module",))
    with pytest.raises(PingError, match=r"needs no_such_module, .* or give --minutes 0"):
        ping_llm.fit(tmp_path / "data", tmp_path / "run")


def test_the_version_stands_once(declared):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]


def test_the_hook_before_a_commit_runs_the_same_ruff():
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    assert (
        f"ruff=={hooks['repos'][0]['rev'].removeprefix('v')}\n"
        in (REPOSITORY / "constraints.txt").read_text()
    )


def test_the_workflow_runs_what_a_contributor_runs():
    jobs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    assert "make test" in [step.get("run") for step in jobs["test"]["steps"]]


def test_constraints_pin_every_declared_package(declared):
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pinned = {canonical(line.partition("==")[0]) for line in lines if "==" in line}
    wanted = set().union(*declared.values()) - {"ping-llm"}
    assert not wanted - pinned, sorted(wanted - pinned)


def test_the_locked_versions_are_the_constraints():
    """Each with hashes, so that an installer can check what it gets."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE))
    pins = {canonical(name): version for name, version in pins.items()}
    text = (REPOSITORY / "requirements.lock").read_text()
    locked = re.findall(r"^([\w.-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(locked) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)) > 100
    assert {name: version for name, version in locked if pins.get(canonical(name)) != version} == {}


def test_doctor_knows_every_extra(declared):
    """But `cuda`, which are wheels of JAX: doctor looks for a GPU instead."""
    assert set(doctor._EXTRAS) == set(declared) - {
        "",
        "cuda",
    }
    for extra, packages in doctor._EXTRAS.items():
        assert {canonical(name) for name in packages} <= declared[extra], extra
