"""Training on stored contexts."""

import pytest
from small_training import SMALL, what_was_learnt

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.pretokenized import pretokenize
from ping_llm.errors import UsageError
from ping_llm.train.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_stored_contexts_are_trained_on_and_resumed_exactly(rows, tmp_path, capfd):
    words = [*SMALL, "network_data_format=pretokenized"]
    with Batches(rows, batch_size=4, length=128, epochs=1) as batches:
        pretokenize(batches, tmp_path / "tokens")
    train("tiny", words, run=tmp_path / "straight", rows=tmp_path / "tokens")
    assert "data: pretokenized" in capfd.readouterr().err
    for steps in (6, 12):
        train("tiny", [*words, f"steps={steps}"], run=tmp_path / "halves", rows=tmp_path / "tokens")
    assert what_was_learnt(tmp_path / "halves") == what_was_learnt(tmp_path / "straight")
    assert len(what_was_learnt(tmp_path / "straight")) == 12

    with pytest.raises(UsageError, match="grain_worker_count=2: stored contexts are packed by threads"):
        train("tiny", [*words, "grain_worker_count=2"], run=tmp_path / "workers", rows=tmp_path / "tokens")
    words.append("network_repeat_source=0.9")
    with pytest.raises(UsageError, match=r"repeat_source=0.1: give network_repeat_source=0.1"):
        train("tiny", words, run=tmp_path / "other", rows=tmp_path / "tokens")
    assert not (tmp_path / "other").exists()
