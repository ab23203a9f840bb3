"""deploy/modal/rows.py without an account: the app builds, says what it needs, and its body runs here."""

import importlib.util
import sys
from pathlib import Path

import pytest
from rows_data import folder_bytes, write_measurements

from ping_llm.rows.build import RowOptions, build
from ping_llm.rows.plan import parse_bytes

pytest.importorskip("modal", reason="the modal extra is not installed")


@pytest.fixture
def module(monkeypatch):
    path = Path(__file__).parents[2] / "deploy/modal/rows.py"
    spec = importlib.util.spec_from_file_location("modal_rows", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "modal_rows", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def deployed(module, tmp_path, monkeypatch):
    """The module, with a folder in the place of the volume."""
    monkeypatch.setattr(module, "VOLUME", str(tmp_path))
    for name in ("reload", "commit"):
        monkeypatch.setattr(module._volume, name, lambda: None)
    monkeypatch.setattr(module, "CPUS", 1)
    return module


def test_the_container_has_what_the_build_uses(module):
    declared = module.rows._spec_  # what Modal shows of a function that is not deployed
    assert declared.cpu >= module.CPUS
    assert declared.memory * 2**20 >= parse_bytes(module.MEMORY_LIMIT) + 10**9
    assert list(declared.volumes) == [module.VOLUME]
    assert declared.gpus is None


def test_the_body_builds_rows(deployed, tmp_path):
    write_measurements(tmp_path / "in" / "a.parquet", 2000)
    counts = deployed.rows.local(["in"], "rows", options="max_row_mib=4")
    assert counts["measurements"] == 2000
    build([tmp_path / "in"], tmp_path / "here", RowOptions(max_row_mib=4))
    assert folder_bytes(tmp_path / "rows") == folder_bytes(tmp_path / "here")


def test_the_steps_build_the_same(deployed, tmp_path):
    write_measurements(tmp_path / "in" / "a.parquet", 2000)
    deployed.rows.local(["in"], "rows", "plan")
    for step in ("scan", "encode"):
        for task in range(2):
            assert deployed.rows.local(["in"], "rows", step, task, 2) is None
    assert deployed.rows.local(["in"], "rows", "finish")["measurements"] == 2000
    build([tmp_path / "in"], tmp_path / "here")
    assert folder_bytes(tmp_path / "rows") == folder_bytes(tmp_path / "here")
