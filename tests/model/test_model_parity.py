"""Our export and engine against MaxText itself."""

import subprocess
import sys

import numpy as np
import pytest

from ping_llm.errors import PingError
from ping_llm.model import export
from ping_llm.model.engine import Engine


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["scanned", "unscanned"])
def test_logits_and_loss_equal_maxtext(maxtext_runs, tmp_path, layers):
    export.export(maxtext_runs / layers, tmp_path)
    model = export.read(tmp_path)
    engine = Engine(model.config, model.tensors)
    theirs = np.load(maxtext_runs / layers / "logits.npz")
    real = theirs["inputs_segmentation"] != 0
    packed = (theirs["inputs_position"], theirs["inputs_segmentation"])

    ours = engine.logits(theirs["inputs"], *packed)
    assert np.abs(theirs["logits"]).max() > 1
    assert np.abs(ours - theirs["logits"])[real].max() < 1e-4

    log_probabilities = engine.log_probabilities(theirs["inputs"], theirs["targets"], *packed)
    assert theirs["weights"] == real.sum()
    assert -log_probabilities.sum() == pytest.approx(theirs["xent_sum"], rel=1e-5)
    assert (log_probabilities[~real] == 0).all()


@pytest.mark.slow
def test_the_settings_of_the_run_are_kept(maxtext_runs):
    config = export.read(maxtext_runs / "scanned").config
    assert (config.rope_theta, config.norm_epsilon, config.max_length) == (5000.0, 1e-4, 48)


@pytest.mark.slow
def test_an_export_loads_without_maxtext_and_orbax(maxtext_runs, tmp_path):
    export.export(maxtext_runs / "unscanned", tmp_path)
    program = (
        "import sys; from ping_llm.model import export, engine;"
        f"m = export.read({str(tmp_path)!r}); engine.Engine(m.config, m.tensors);"
        "print([n for n in ('maxtext', 'orbax', 'flax', 'torch') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_a_folder_without_a_model_gets_a_sentence(tmp_path):
    with pytest.raises(PingError, match="holds no model"):
        export.read(tmp_path)
    (tmp_path / "pings.csv").touch()
    with pytest.raises(PingError, match=r"holds no model: .*give them as --data or --context"):
        export.read(tmp_path / "pings.csv")
    with pytest.raises(PingError, match="does not exist"):
        export.read(tmp_path / "missing")
