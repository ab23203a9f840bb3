import dataclasses

import pytest
import yaml

from ping_llm.contexts.options import ContextOptions
from ping_llm.errors import UsageError
from ping_llm.train import settings


def test_every_context_option_is_a_key_with_its_default():
    keys = settings.fields()
    for field in dataclasses.fields(ContextOptions):
        assert keys[f"network_{field.name}"][1] == field.default


def test_a_config_is_a_packaged_name_or_a_path(tmp_path):
    assert settings.find("tiny").name == "tiny.yml"
    own = tmp_path / "own.yml"
    own.write_text("base_config: base.yml\n")
    assert settings.find(str(own)) == own


@pytest.mark.parametrize("config", settings.packaged())
def test_a_packaged_config_starts_no_worker_processes(config):
    """MaxText's default is one, which takes memory, and which stored contexts refuse."""
    keys = yaml.safe_load(settings.find(config).read_text())
    assert (keys.get("grain_worker_count"), keys.get("grain_worker_count_eval")) == (0, 0)


@pytest.mark.parametrize(
    ("config", "says"),
    [("tny", "did you mean 'tiny'"), ("nowhere/own.yml", "no config at nowhere/own.yml")],
)
def test_a_config_that_is_not_there(config, says):
    with pytest.raises(UsageError, match=says):
        settings.find(config)


def test_overrides_are_key_value_and_the_last_wins():
    assert settings.split_overrides(["steps=1", "steps=2", "a=b=c"]) == {"steps": "2", "a": "b=c"}
    with pytest.raises(UsageError, match="'steps' must be key=value"):
        settings.split_overrides(["steps"])


def test_a_misspelt_key_is_answered_with_the_right_one():
    known = ["learning_rate", "network_prefix_probability", "steps"]
    with pytest.raises(UsageError, match="did you mean 'network_prefix_probability'"):
        settings.check_keys({"network_prefix_probabilty": 0.1}, known, "own.yml")
    settings.check_keys({"steps": 1}, known, "own.yml")


def test_a_batch_over_all_devices():
    share = settings.per_device_batch_size
    assert share({"per_device_batch_size": 12.0}, 8) == {}
    assert share({"network_batch_size": 24, "per_device_batch_size": 12.0}, 2) == {
        "per_device_batch_size": "12"
    }
    assert share({"network_batch_size": "24", "gradient_accumulation_steps": "3"}, 2) == {
        "per_device_batch_size": "4"
    }
    with pytest.raises(UsageError, match="must be divisible by 5 devices"):
        share({"network_batch_size": 24}, 5)
    with pytest.raises(UsageError, match="exclude each other"):
        share({"network_batch_size": 24, "per_device_batch_size": "2"}, 1)
