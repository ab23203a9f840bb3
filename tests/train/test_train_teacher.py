"""Distillation: what a student learns against a plain NumPy loss, and that only this changes."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import SMALL, command, start, wait_for, what_was_learnt

from ping_llm.contexts.batches import Batches
from ping_llm.errors import UsageError
from ping_llm.model import export
from ping_llm.model.engine import Engine
from ping_llm.tokens import vocab
from ping_llm.train import runs, token_loss
from ping_llm.train.run import train
from ping_llm.train.teacher import Teacher

# A fifth of the parameters of a small training.
STUDENT = (
    "base_num_decoder_layers=1",
    "base_emb_dim=8",
    "base_mlp_dim=16",
    "base_num_query_heads=1",
    "base_num_kv_heads=1",
    "head_dim=8",
)


@pytest.fixture(scope="module")
def batch(rows):
    """One packed batch of the training."""
    return next(iter(Batches(rows, batch_size=4, length=128)))


def _probabilities(run, batch):
    model = export.read(run)
    names = ("inputs", "inputs_position", "inputs_segmentation")
    logits = Engine(model.config, model.tensors).logits(*(batch[name] for name in names)).astype(np.float64)
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return logits, exponents / exponents.sum(axis=-1, keepdims=True)


def _rtt_bytes(targets):
    """Written out: the two tokens after each RTT of the encoding `compact`."""
    found = np.zeros(targets.shape, bool)
    for row, place in np.argwhere(targets == vocab.RTT):
        found[row, place + 1 : place + 3] = True
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_loss_at_rtt_bytes_is_the_cross_entropy_against_the_teacher(undisturbed, batch, share):
    targets = batch["targets"]
    _, taught = _probabilities(undisturbed, batch)
    # Any network is a student; this one is the teacher with its logits turned round.
    logits = -_probabilities(undisturbed, batch)[0]
    log_q = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    hard = -np.take_along_axis(log_q, targets[..., None], axis=-1)[..., 0]
    soft = -(taught * log_q).sum(axis=-1)
    expected = np.where(_rtt_bytes(targets), share * soft + (1 - share) * hard, hard)
    assert _rtt_bytes(targets).sum() > 20
    assert np.abs(soft - hard)[_rtt_bytes(targets)].max() > 0.01

    def learned(logits):
        nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(targets)[..., None], axis=-1)[
            ..., 0
        ]
        return token_loss.objective(logits, nats, jnp.asarray(targets), 1.0, 0.0, jnp.asarray(taught), share)

    np.testing.assert_allclose(learned(jnp.asarray(logits, jnp.float32)), expected, rtol=2e-4, atol=2e-4)
    aim = np.eye(vocab.VOCABULARY_SIZE)[targets]
    aim[_rtt_bytes(targets)] = (share * taught + (1 - share) * aim)[_rtt_bytes(targets)]
    gradient = jax.grad(lambda logits: jnp.sum(learned(logits)))(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(gradient, np.exp(log_q) - aim, atol=2e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_teacher_reads_the_batch_as_the_engine_does(undisturbed, batch):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    taught = Teacher.read(undisturbed).on(sharding)(batch)
    np.testing.assert_allclose(taught, _probabilities(undisturbed, batch)[1], atol=1e-5)


@pytest.fixture(scope="module")
def student(undisturbed, rows, few_rows, tmp_path_factory):
    run = tmp_path_factory.mktemp("taught") / "student"
    train(
        "tiny",
        [*SMALL, *STUDENT, "eval_interval=5"],
        run=run,
        rows=rows,
        eval_rows=few_rows,
        teacher=undisturbed,
    )
    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_learns_something_else_and_says_from_whom(student, undisturbed, rows, few_rows, tmp_path):
    teacher = Teacher.read(undisturbed)
    assert runs.read(student)["teacher"] == teacher.facts()
    assert runs.read(student)["parameters"] <= teacher.exported.config.parameters / 4
    alone = tmp_path / "alone"
    words = [*SMALL, *STUDENT, "eval_interval=5"]
    train("tiny", words, run=alone, rows=rows, eval_rows=few_rows)
    taught, untaught = what_was_learnt(student), what_was_learnt(alone)
    # The recorded loss is that of the true tokens: equal before the first update, and not afterwards.
    assert taught[0]["loss"] == pytest.approx(untaught[0]["loss"], rel=1e-6)
    assert taught[-1]["loss"] != untaught[-1]["loss"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_student_resumes_exactly(student, undisturbed, rows, few_rows, tmp_path):
    run = tmp_path / "killed"
    more = [*STUDENT, "--eval-rows", str(few_rows), "eval_interval=5", "--teacher", str(undisturbed)]
    words = command(run, rows, *more)
    process = start(words)
    wait_for(run, 7, process)
    process.kill()
    process.communicate()
    done = start(words)
    _, errors = done.communicate()
    assert done.returncode == 0, errors[-2000:]
    assert what_was_learnt(run) == what_was_learnt(student)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_refused(student, undisturbed, rows, tmp_path):
    before = {path: path.read_bytes() for path in student.rglob("*") if path.is_file()}
    words = [*SMALL, *STUDENT]
    with pytest.raises(UsageError, match=r"was made with the teacher .* not no teacher"):
        train("tiny", words, run=student, rows=rows)
    with pytest.raises(UsageError, match="at most a quarter of its teacher's parameters: this config has "):
        train("tiny", words, run=student, rows=rows, teacher=student)
    for word, says in (
        ("max_target_length=256", "trained on sequences of 128 tokens"),
        ("network_rtt_encoding=log", r"network_rtt_encoding=log: the teacher .* has compact"),
        ("network_fields=src,dst,rtt,time,size", "was not trained on size"),
        ("network_teacher_weight=2", r"network_teacher_weight=2\.0 must be from 0 to 1"),
    ):
        with pytest.raises(UsageError, match=says):
            train("tiny", [*words, word], run=tmp_path / "new", rows=rows, teacher=undisturbed)
    assert not (tmp_path / "new").exists()
    assert before == {path: path.read_bytes() for path in student.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_teacher_that_has_changed(student, undisturbed, rows, tmp_path):
    """By its weights, not by its place: a copy is the same teacher."""
    moved = shutil.copytree(undisturbed, tmp_path / "moved")
    words = [*SMALL, *STUDENT]
    assert train("tiny", words, run=student, rows=rows, teacher=moved).state == "already"
    model = export.read(moved)
    tensors = {name: array + np.float32(name == "model.norm.weight") for name, array in model.tensors.items()}
    export.write(model.config, tensors, model.tokens, moved / "export")
    with pytest.raises(UsageError, match=f"not the teacher {moved.resolve()}.* of fingerprint "):
        train("tiny", words, run=student, rows=rows, teacher=moved)
    assert json.loads((student / "run.json").read_text())["teacher"]["fingerprint"]
