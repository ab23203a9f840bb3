"""The plan's figures against a training's, and those of every packaged config."""

import pytest
from small_training import SMALL

from ping_llm.contexts.batches import Batches
from ping_llm.train import folder, settings
from ping_llm.train.plan import plan

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_plan_says_what_the_training_has(undisturbed, rows):
    figures = plan("tiny", SMALL, rows=rows)
    parameters = folder.read(undisturbed)["parameters"]
    assert figures["parameters"] == parameters
    assert figures["weights_mib"] == 4 * parameters / 2**20
    assert figures["optimizer_mib"] == pytest.approx(2 * figures["weights_mib"], rel=1e-3)
    assert figures["tokens_per_step"] == 4 * 128
    # Six a parameter and token, embeddings apart, and the attention's own.
    assert 4 < figures["flops_per_step"] / (parameters * 4 * 128) < 8
    epoch = sum(1 for _ in Batches(rows, batch_size=4, length=128, epochs=1))
    assert figures["steps_per_epoch"] == pytest.approx(epoch, rel=0.1)


@pytest.mark.parametrize(
    ("config", "parameters", "tokens"),
    [
        ("tiny", 922_752, 6_144),
        ("menog", 726_144, 2_048),
        ("20m", 21_124_544, 131_072),
        ("100m", 113_683_200, 262_144),
        ("300m", 308_888_576, 1_048_576),
    ],
)
def test_the_packaged_configs(config, parameters, tokens):
    figures = plan(config)
    assert (figures["parameters"], figures["tokens_per_step"]) == (parameters, tokens)
    header = settings.find(config).read_text().split("base_config")[0]
    for part in ("Result:", "Hardware", "Time:", "train", "--rows data/rows"):
        assert part in header
