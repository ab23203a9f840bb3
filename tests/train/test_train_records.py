import json

import pytest

from ping_llm.train import records as train_records
from ping_llm.train.records import Records, TrainingLine, read


def _write(path, step, upto):
    records = Records(path, step)
    for number in range(step, upto):
        records.append({"kind": "train", "step": number, "loss": 1.0 / (number + 1)})
        if number % 4 == 0:
            records.append({"kind": "eval", "step": number, "loss": 2.0})
    records.close()


def test_a_resumed_record_has_neither_gap_nor_repeat(tmp_path):
    path, straight = tmp_path / "metrics.jsonl", tmp_path / "straight.jsonl"
    _write(path, 0, 9)
    _write(path, 6, 12)
    _write(straight, 0, 12)
    assert path.read_text() == straight.read_text()


def test_a_line_cut_short_by_a_kill_is_no_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, 0, 3)
    with path.open("a") as file:
        file.write('{"kind": "train", "st')
    assert [record["step"] for record in read(path) if record["kind"] == "train"] == [0, 1, 2]
    _write(path, 3, 4)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_no_number_that_json_does_not_have(tmp_path):
    records = Records(tmp_path / "metrics.jsonl", 0)
    with pytest.raises(ValueError, match="Out of range float"):
        records.append({"step": 0, "loss": float("nan")})
    records.close()


def test_the_live_line_shows_rates_of_the_last_steps(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(train_records.time, "monotonic", lambda: now[0])
    line = TrainingLine(steps=1000)
    for step in range(11):
        line.train(step, loss=2.5, bits=70.0, tokens=600, waited=0.01 * step)
        now[0] += 0.5
    assert line.text(10) == (
        "step 11 of 1,000 · loss 2.500 (70.0 bits) · 1,200 tokens/s · data wait 2.0 % · 8 min left"
    )
