"""The plan's figures against a training's, and every packaged config against its header."""

import re
import shlex

import pytest
from small_training import SMALL

from ping_llm.bench import plan_check
from ping_llm.contexts.batches import Batches
from ping_llm.errors import UsageError
from ping_llm.files import read_yaml
from ping_llm.model.config import ModelConfig
from ping_llm.train import runs, settings
from ping_llm.train.estimate import plan
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_PARTS = (plan_check.STATE, plan_check.TEMPORARIES)


def test_a_plan_says_what_the_training_has(undisturbed, rows):
    figures = plan("tiny", SMALL, rows=rows)
    parameters = runs.read(undisturbed)["parameters"]
    assert figures["parameters"] == parameters
    assert figures["weights_mib"] == 4 * parameters / 2**20
    assert figures["optimizer_mib"] == pytest.approx(2 * figures["weights_mib"], rel=1e-3)
    assert figures["tokens_per_step"] == 4 * 128
    # Six a parameter and token, embeddings apart, and the attention's own.
    assert 4 < figures["flops_per_step"] / (parameters * 4 * 128) < 8
    epoch = sum(1 for _ in Batches(rows, batch_size=4, length=128, epochs=1))
    assert figures["steps_per_epoch"] == pytest.approx(epoch, rel=0.1)


def test_memory_and_flops_of_real_steps_are_those_of_the_plan(rows, tmp_path):
    """As `bench plan-check` measures them, for a model so large that its weights count."""
    words = [*SMALL, "base_emb_dim=256", "base_mlp_dim=512", "network_batch_size=1", "steps=2"]
    words += ["enable_checkpointing=false", "network_samples=0", f"jax_cache_dir={tmp_path / 'cache'}"]
    made = plan_check.of_steps("tiny", words, rows, tmp_path / "steps")
    assert len(made["losses"]) == 2
    planned = [sum(made["plan"][name] for name in names) * 2**20 for names in _PARTS]
    assert made["arguments"] == pytest.approx(planned[0], rel=0.01)
    assert made["temporaries"] == pytest.approx(planned[1], rel=0.15)
    flops = plan_check.of_flops("tiny", [*words, "scan_layers=false"], rows, tmp_path / "flops")["flops"]
    assert 1 < flops / made["plan"]["flops_per_step"] < 1.35


@pytest.mark.parametrize("config", settings.packaged())
def test_a_packaged_config_is_what_its_header_says(config):
    """The first line states the size; the commands below it name the config and keys that there are."""
    path = settings.find(config)
    keys, header = read_yaml(path), path.read_text().split("base_config")[0]
    commands = re.sub(r"\\\n# *", " ", header)
    commands = [shlex.split(line[1:]) for line in commands.splitlines() if line.startswith("#   ")]
    assert commands
    for words in commands:
        assert config in words
        assert "--rows" in words
    figures = plan(config, [word for word in commands[0] if "=" in word and not word.startswith("--")])
    stated = re.match(rf"# {config}: ([\d.]+)M parameters", header)[1]
    digits = len(stated.partition(".")[2])
    assert f"{figures['parameters'] / 1e6:.{digits}f}" == stated
    # What is trained can be asked: the engine's network of these sizes has the same parameters.
    network = ModelConfig(
        layers=keys["base_num_decoder_layers"],
        width=keys["base_emb_dim"],
        heads=keys["base_num_query_heads"],
        kv_heads=keys["base_num_kv_heads"],
        head_dim=keys["head_dim"],
        mlp_width=keys["base_mlp_dim"],
    )
    assert figures["parameters"] == network.parameters
    assert figures["tokens_per_step"] == keys["network_batch_size"] * keys["max_target_length"]


def test_a_model_for_gpus_is_not_trained_on_cpus_unless_told(rows, tmp_path):
    words = ["steps=3", "eval_interval=-1"]
    with pytest.raises(
        UsageError, match=r"21M parameters .*: 3 steps would take about .* hours.*--allow-cpu"
    ):
        train("20m", words, run=tmp_path / "run", rows=rows)
    assert not (tmp_path / "run").exists()
