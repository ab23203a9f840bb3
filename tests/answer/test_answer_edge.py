"""An edge export answers as its run does: in this process, from the command line, and from its one file."""

import csv
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from ping_llm.answer import edge
from ping_llm.answer.context import Context, Question
from ping_llm.answer.edge_export import RUNNER, write
from ping_llm.answer.model import Model
from ping_llm.cli import app
from ping_llm.cli import query as query_commands
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.addresses import unpack_one

query_commands.register(app)
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("edge") / "edge"
    write(run, out)
    return out


@pytest.fixture(scope="module")
def questions(world):
    """Known pairs, new sources and new destinations, each with a context of its own; and some without."""
    out = []
    for number, index in enumerate(np.linspace(500, len(world.data) - 1, 12).astype(int)):
        one = world.data.take(slice(index, index + 1))
        past = world.visible.take((world.visible.src == one.src[0]).all(axis=1))
        past = past.take(past.time < one.time[0]).sorted_by_time().take(slice(-25, None))
        known = Context.of(past.src, past.dst, past.time, past.rtt) if number % 3 else None
        ends = [unpack_one(end[0].tobytes()) for end in (one.src, one.dst)]
        out.append(Question.of(*ends, int(one.time[0]) / 1e6, known))
    return out


@pytest.mark.parametrize("how", [{}, {"raw": True}, {"method": "network"}])
def test_an_edge_export_answers_as_its_run(run, folder, questions, how):
    ours, theirs = Model.load(run, data=False), Model.load(folder)
    for one, other in zip(ours.rtt_many(questions, **how), theirs.rtt_many(questions, **how), strict=True):
        assert other.failure == pytest.approx(one.failure, abs=1e-4)
        np.testing.assert_allclose(other.distribution.levels, one.distribution.levels, atol=1e-4)
        assert other.distribution.point == pytest.approx(one.distribution.point, rel=1e-3)
        assert (other.rests_on, other.notes, other.context_used) == (
            one.rests_on,
            one.notes,
            one.context_used,
        )


def test_the_engine_equals_that_of_jax(run, folder, engine):
    """Continuations of several tokens, too, which only encodings of eight bytes ask for."""
    other = edge.load(folder).engine
    generator = np.random.default_rng(2)
    context, suffix = generator.integers(1, 272, 40), generator.integers(1, 272, 9)
    ways = generator.integers(1, 272, (1, 5, 3))
    outs = []
    for one in (engine, other):
        read = one.extend(one.context(context.astype(np.int32)), [suffix.astype(np.int32)], tail=2)
        outs.append((read.tail, one.branch(read, ways.astype(np.int32)), read.lengths))
    for mine, theirs in zip(*outs, strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokens.json", b'{"format": 1, "context": 3}', "tokens.json"),
        ("tokens.json", b'{"format": 9}', "tokens.json has format 9"),
        ("config.json", b"[]", "must hold a JSON object"),
        ("model.onnx", b"no graph", "cannot read .*model.onnx"),
        ("stack/stack.npz", b"PK no archive", "is not a stack"),
    ],
)
def test_a_damaged_export_is_refused(folder, tmp_path, name, content, match):
    shutil.copytree(folder, tmp_path / "edge")
    (tmp_path / "edge" / name).write_bytes(content)
    with pytest.raises(PingError, match=match):
        Model.load(tmp_path / "edge")


def test_the_graph_with_8_bit_weights_is_close(folder, questions):
    plain, rounded = edge.load(folder), edge.load(folder, int8=True)
    for one, other in zip(
        plain.rtt_many(questions, raw=True), rounded.rtt_many(questions, raw=True), strict=True
    ):
        difference = np.abs(other.distribution.levels - one.distribution.levels).max()
        assert 0 < difference < 0.1


def test_it_refuses_what_it_cannot_answer(folder):
    model = Model.load(folder)
    with pytest.raises(UsageError, match="edge export answers questions about RTTs"):
        model.generate("192.0.2.1", measurements=1)


def test_the_command_and_the_runner_print_the_same(run, folder, questions, tmp_path):
    """The runner in its one file has neither Numba nor Arrow: its kernels are plain Python."""
    asked = next(question for question in questions if question.context is not None and len(question.context))
    path = tmp_path / "pings.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["event_time", "src_addr", "dst_addr", "rtt"])
        known = asked.context
        for at, src, dst, rtt in zip(known.time, known.src, known.dst, known.rtt, strict=True):
            rows.writerow([int(at) / 1e6, unpack_one(src.tobytes()), unpack_one(dst.tobytes()), rtt])
    words = ["--src", str(asked.src), "--dst", str(asked.dst), "--at", str(asked.time / 1e6)]
    words += ["--context", str(path), "--json"]
    printed = CliRunner().invoke(app, ["query", "rtt", str(folder), *words])
    assert printed.exit_code == 0, printed.output
    done = subprocess.run(
        [sys.executable, "-W", "error", folder / RUNNER, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    command, runner = json.loads(printed.stdout), json.loads(done.stdout)
    assert runner["quantiles"] == pytest.approx(command["quantiles"], rel=1e-4)
    assert runner["failure"] == pytest.approx(command["failure"], abs=1e-6)
    assert {**runner, "quantiles": 0, "failure": 0, "mean": 0, "median": 0, "point": 0} == {
        **command, "quantiles": 0, "failure": 0, "mean": 0, "median": 0, "point": 0
    }  # fmt: skip
    path.write_text("src_addr,dst_addr,rtt\n192.0.2.1,198.51.100.7,-3\n")
    refused = subprocess.run(
        [sys.executable, folder / RUNNER, *words], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "pings.csv, line 2: rtt -3.0 is neither -1" in refused.stderr
    refused = subprocess.run(
        [sys.executable, folder / RUNNER, *words[:4], "--throughput", "0.5"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "not trained on throughput" in refused.stderr


def test_a_context_may_have_the_columns_of_conditions(tmp_path):
    path = tmp_path / "pings.csv"
    head, row = "src_addr,dst_addr,rtt,size,throughput_mbps", "192.0.2.1,198.51.100.7,3"
    path.write_text(f"{head}\n{row},64,94.3\n{row},,\n")
    context = edge.read_context(path)
    assert sorted(context.column("throughput_mbps").tolist()) == [-1.0, 94.3]
    assert sorted(context.column("size").tolist()) == [-1, 64]
    for wrong in ("nan", "-3", "1e9"):
        path.write_text(f"{head}\n{row},64,{wrong}\n")
        with pytest.raises(PingError, match="must be a number of Mbit/s from 0 to 100000000"):
            edge.read_context(path)


def test_the_runner_is_the_same_bytes(run, folder, tmp_path):
    write(run, tmp_path / "again")
    assert (tmp_path / "again" / RUNNER).read_bytes() == (folder / RUNNER).read_bytes()
