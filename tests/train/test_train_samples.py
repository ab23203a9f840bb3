"""Samples of what was learned: the model's own answers, at the same steps after a resume, on the page."""

import json
import shutil

import numpy as np
import pytest
from small_training import SMALL

from ping_llm.answer.model import Model
from ping_llm.answer.prompts import Prompt
from ping_llm.contexts.batches import Batches
from ping_llm.errors import UsageError
from ping_llm.tokens import vocab
from ping_llm.tokens.rtt import rtt_encoding
from ping_llm.train import page, runs, samples
from ping_llm.train.run import train

STEPS = samples.FEWEST_STEPS
WORDS = [*SMALL, f"steps={STEPS}", f"learning_rate_schedule_steps={STEPS}", "checkpoint_period=20"]


def test_the_steps_that_are_sampled():
    found = [step + 1 for step in range(700) if samples.due(step, 700)]
    assert found == [1, 2, 5, 10, 20, 50, 100, 200, 500, 700]


def test_questions_are_last_results_with_their_destination_known(rows):
    batch = next(iter(Batches(rows, batch_size=8, length=128)))
    asked = samples.questions(batch, rtt_encoding(), 6)
    assert len(asked) == 6
    known = [question.known for question in asked]
    assert min(known) >= 2
    packed = [list(sequence) for sequence in batch["targets"]]
    for question in asked:
        assert question.prompt[0] == vocab.MEASUREMENT
        assert question.prompt[-1] == vocab.RTT
        last = list(question.prompt)[::-1].index(vocab.MEASUREMENT)
        assert {vocab.DST_IPV4, vocab.DST_IPV6} & set(question.prompt[-last:].tolist())
        prompt = question.prompt.tolist()
        assert any(
            prompt == sequence[at : at + len(prompt)] for sequence in packed for at in range(len(sequence))
        )


@pytest.fixture(scope="module")
def sampled(rows, tmp_path_factory):
    run = tmp_path_factory.mktemp("sampled") / "run"
    train("tiny", WORDS, run=run, rows=rows)
    return run


def _records(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_last_samples_are_the_answers_of_the_model(sampled, rows):
    found = _records(sampled)
    assert [record["step"] + 1 for record in found] == [1, 2, 5, 10, 20, 50]
    batch = next(iter(Batches(rows, batch_size=8, length=128, epochs=1)))
    asked = samples.questions(batch, rtt_encoding(), 6)
    model = Model.load(sampled, data=False)
    prompts = [Prompt(question.prompt, 0, 0, 0, 128) for question in asked]
    for number, distribution in model.distributions(prompts):
        answer = found[-1]["answers"][number]
        assert answer["asked"] == asked[number].asked
        assert answer["failure"] == pytest.approx(distribution.failure, abs=1e-5)
        for name, level in (("low", samples.LOW), ("median", 0.5), ("high", samples.HIGH)):
            # A code is 1/2048 wide.
            assert answer[name] == pytest.approx(float(distribution.quantile(level)), rel=2e-3)
    medians = np.array([[one["median"] for one in record["answers"]] for record in found])
    assert (medians[0] != medians[-1]).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_run_has_the_same_samples(sampled, rows, tmp_path):
    run = shutil.copytree(sampled, tmp_path / "run")
    before = (run / "samples.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints" / str(STEPS - 1))
    shutil.rmtree(run / "export")
    runs.update(run, state=runs.STOPPED)
    train("tiny", WORDS, run=run, rows=rows)
    assert (run / "samples.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_shows_them(sampled, tmp_path):
    text = page.write(sampled, tmp_path / "page.html").read_text()
    assert "What it learned" in text
    assert _records(sampled)[0]["answers"][0]["asked"] in text
    assert "step 50" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_fails_ends_the_samples_and_not_the_training(sampled, capsys, tmp_path):
    asked = [samples.SampleQuestion(np.array([vocab.MEASUREMENT, vocab.RTT], np.int32), "", 0, 1.0)]
    taken = samples.Samples(tmp_path, 0, STEPS, rtt_encoding(), asked)

    def broken():
        raise ValueError("no weights")

    taken.take(0, broken)
    taken.take(1, broken)
    assert (
        capsys.readouterr().err.count("no samples of what was learned are taken from here on: no weights")
        == 1
    )
    taken.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_negative_number_is_refused(rows, tmp_path):
    with pytest.raises(UsageError, match="network_samples=-1 must be at least 0"):
        train("tiny", [*WORDS, "network_samples=-1"], run=tmp_path / "run", rows=rows)
