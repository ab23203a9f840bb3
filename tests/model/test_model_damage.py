"""A damaged checkpoint or export is refused, never answered from."""

import shutil

import numpy as np
import orbax.checkpoint as ocp
import pytest
from maxtext_params import maxtext_params

from ping_llm.errors import PingError, UsageError
from ping_llm.model import checkpoint, export, ledger
from ping_llm.model.config import ModelConfig
from ping_llm.model.random import random_tensors
from ping_llm.train.run import train


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with the checkpoints 3 and 6, which checkpoints.json knows."""
    run = tmp_path_factory.mktemp("run")
    nested: dict = {}
    for name, array in maxtext_params().items():
        *parents, leaf = name.split("/")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[leaf] = array
    for step in (3, 6):
        items = run / "checkpoints" / str(step) / "items"
        ocp.PyTreeCheckpointer().save(items, {"params": {"params": nested}, "step": np.int32(step)})
    ledger.Ledger(run).enter_new()
    return run


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0x40
    path.write_bytes(content)


def test_a_whole_checkpoint_is_read(run):
    read = checkpoint.read(run / "checkpoints" / "6")
    assert all((read[name] == array).all() for name, array in maxtext_params().items())


@pytest.mark.parametrize("place", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_a_flipped_bit_of_a_checkpoint_is_found(run, place, tmp_path):
    flip(largest(run / "checkpoints" / "6"), place)
    for use in (export.read, lambda source: export.export(source, tmp_path / "export")):
        with pytest.raises(PingError, match=r"checkpoints/6 is damaged .* such as .*checkpoints/3"):
            use(run)
    assert not (tmp_path / "export").exists()
    export.read(run / "checkpoints" / "3")


def test_a_missing_or_short_file_of_a_checkpoint_is_found(run):
    file = largest(run / "checkpoints" / "6")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PingError, match="bytes instead of"):
        export.read(run)
    file.unlink()
    with pytest.raises(PingError, match="is missing"):
        export.read(run)


def test_a_checkpoint_that_is_not_entered_yet_is_read_to_see(run):
    """Here Orbax sees a file that is cut."""
    (run / "checkpoints.json").unlink()
    export.read(run)
    for file in (run / "checkpoints" / "6").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(PingError, match=r"checkpoints/6 is damaged \(Orbax"):
        export.read(run)


@pytest.mark.parametrize("content", ["{", "[]", '{"6": 3}', '{"6": {"items/d": [1]}}'])
def test_a_damaged_list_of_checksums_is_named(run, content):
    (run / "checkpoints.json").write_text(content)
    with pytest.raises(PingError, match=r"checkpoints.json is damaged .* may be removed"):
        export.read(run)


def test_a_training_does_not_begin_with_damaged_weights(run, tmp_path):
    flip(largest(run / "checkpoints" / "6"), 0.5)
    with pytest.raises(UsageError, match="checkpoints/6 is damaged"):
        train("tiny", run=tmp_path / "new", weights=run)
    assert not (tmp_path / "new").exists()


CONFIG = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_length=64)


@pytest.mark.parametrize("place", np.linspace(0.1, 0.99, 8))
def test_a_flipped_bit_of_an_export_is_found(tmp_path, place):
    export.write(CONFIG, random_tensors(CONFIG), {}, tmp_path)
    flip(tmp_path / export.WEIGHTS, place)
    with pytest.raises(PingError, match=r"model\.safetensors"):
        export.read(tmp_path)


def test_the_same_weights_are_the_same_bytes(tmp_path):
    from safetensors.numpy import load_file

    tensors = random_tensors(CONFIG)
    for number in range(4):
        export.write(CONFIG, tensors, {}, tmp_path / str(number))
    files = [tmp_path / str(number) / "model.safetensors" for number in range(4)]
    assert len({file.read_bytes() for file in files}) == 1
    assert files[0].stat().st_mode == (tmp_path / "0" / "config.json").stat().st_mode
    found = load_file(files[0])
    assert found.keys() == tensors.keys()
    assert all((found[name] == tensors[name]).all() for name in found)


def test_weights_know_their_configuration(tmp_path):
    """A digit of config.json that no shape can contradict."""
    export.write(CONFIG, random_tensors(CONFIG), {}, tmp_path)
    config = tmp_path / export.CONFIG
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 10400.0'))
    with pytest.raises(PingError, match=r"another config.json \(the checksum differs\)"):
        export.read(tmp_path)
