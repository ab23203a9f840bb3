"""deploy/modal/rows.py without an account: the app builds, says what it needs, and its body runs here."""

import importlib.util
import sys
from pathlib import Path

import pytest
from rows_data import write_measurements
from test_rows_build import folder_bytes

from ping_llm.rows.build import RowOptions, build
from ping_llm.rows.options import parse_bytes

pytest.importorskip("modal", reason="the modal extra is not installed")


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    """The module, with a folder in the place of the volume."""
    path = Path(__file__).parents[2] / "deploy/modal/rows.py"
    spec = importlib.util.spec_from_file_location("modal_rows", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "modal_rows", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VOLUME", str(tmp_path))
    for name in ("reload", "commit"):
        monkeypatch.setattr(module._volume, name, lambda: None)
    monkeypatch.setattr(module, "CPUS", 1)
    return module


def test_the_function_is_declared_with_its_resources(deployed):
    assert deployed.app.name == "ping-llm-rows"
    declared = deployed.rows._spec_  # what Modal shows of a function that is not deployed
    assert declared.cpu == 8
    assert declared.memory == 20 * 1024
    assert declared.gpus is None
    assert list(declared.volumes) == ["/volume"]
    assert parse_bytes(deployed.MEMORY_LIMIT) + 10**9 <= declared.memory * 2**20


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
