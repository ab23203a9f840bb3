"""What a training leaves to watch: records, TensorBoard, W&B, export."""

import json
import math
import struct

import pytest
from small_training import SMALL, STEPS, losses

from ping_llm.contexts.batches import Batches
from ping_llm.errors import UsageError
from ping_llm.train import runs, token_loss
from ping_llm.train.run import train

# Minutes where the cores are shared; seconds where they are not.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _records(run, kind):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_evaluation_counts_every_token_of_the_set(undisturbed, few_rows):
    evaluations = _records(undisturbed, "eval")
    assert [record["step"] for record in evaluations] == [0, 5, 10]
    batches = list(Batches(few_rows, batch_size=4, length=128, epochs=1))
    tokens = sum(int((batch["targets_segmentation"] != 0).sum()) for batch in batches)
    assert {record["tokens"] for record in evaluations} == {tokens}
    # There are several batches and padding, so that neither a missing batch nor counted padding goes unseen.
    assert len(batches) > 1
    assert (batches[-1]["targets_segmentation"] == 0).any()


def test_bits_of_the_fields_sum_to_the_loss(undisturbed):
    records = _records(undisturbed, "train") + _records(undisturbed, "eval")
    for record in records:
        bits = record["bits"]
        assert set(bits) == {"total", *token_loss.NAMES}
        assert math.isclose(bits["total"], sum(bits[name] for name in token_loss.NAMES))
        # Loss is nats a token, bits are per measurement: their ratio is tokens a measurement.
        per_token = record["loss"] / math.log(2)
        assert 5 < bits["total"] / per_token < 50
        for name in ("source", "destination", "rtt", "time"):
            assert bits[name] > 0


def test_tensorboard_events_can_be_read_back(undisturbed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(undisturbed / "tensorboard" / undisturbed.name))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("learning/loss")}
    assert shown == pytest.approx(losses(undisturbed), rel=1e-6)
    assert [event.step for event in events.Scalars("eval/bits/rtt")] == [0, 5, 10]


def _wandb_records(file):
    """W&B's file is a LevelDB log: after 7 bytes, blocks of 32 KiB with pieces of records."""
    content = file.read_bytes()
    position, whole = 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole, or its last piece
            yield whole
            whole = b""


def test_wandb_offline_holds_the_losses(undisturbed):
    from wandb.proto import wandb_internal_pb2

    (file,) = (undisturbed / "wandb").glob("offline-run-*/*.wandb")
    logged = {}
    for data in _wandb_records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        if "learning/loss" in values:
            logged[record.history.step.num] = float(values["learning/loss"])
        if record.HasField("run"):
            assert record.run.project == "ping-llm"
    assert logged == pytest.approx(losses(undisturbed))


def test_the_run_holds_what_trains_it_again(undisturbed):
    run = runs.read(undisturbed)
    assert run["steps"] == STEPS
    assert run["context_options"]["rtt_encoding"] == "compact"
    config = (undisturbed / "config.yml").read_text()
    assert "base_emb_dim: 32" in config
    assert "dataset_type: network" in config


def test_a_finished_run_has_an_export(undisturbed):
    exported = json.loads((undisturbed / "export" / "config.json").read_text())
    assert exported["hidden_size"] == 32
    assert (undisturbed / "export" / "model.safetensors").exists()


def test_wandb_without_a_key_is_one_sentence(rows, tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    words = [*SMALL, "steps=2", "enable_wandb=true"]
    with pytest.raises(UsageError, match=r"needs an API key of Weights & Biases: set WANDB_API_KEY"):
        train("tiny", words, run=tmp_path / "run", rows=rows)
    assert not (tmp_path / "run").exists()
