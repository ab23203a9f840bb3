"""The method `relations`: what its network is shown, its two ways to compute, and what it may look at."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relation_oracle import Oracle, address, pair_results
from safetensors.numpy import load_file

from ping_llm.answer import state
from ping_llm.answer.methods import relation_network as network
from ping_llm.answer.methods.registry import kept_classes
from ping_llm.answer.methods.relation_features import PairMatrix, features
from ping_llm.answer.methods.relation_kernels import (
    COLUMN,
    NEAR,
    QUESTION,
    RESULT,
    ROW,
    SHOWN,
    AskedPairs,
    Features,
    Shown,
)
from ping_llm.answer.methods.relations import Relations
from ping_llm.measurements.addresses import is_ipv4
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.measurements.history import History
from ping_llm.measurements.parquet import write_measurements

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_relations.py"


def addresses(random, count, ipv6_share):
    """A few networks inside of each other, IPv4 and IPv6."""
    out = np.zeros((count, 16), np.uint8)
    ipv6 = random.random(count) < ipv6_share
    out[~ipv6, 10:12] = 255
    out[~ipv6, 12] = random.choice([20, 21], (~ipv6).sum())
    out[~ipv6, 13:16] = random.integers(0, 3, ((~ipv6).sum(), 3))
    out[ipv6, 0] = 32
    out[ipv6, 3:10] = random.integers(0, 2, (ipv6.sum(), 7))
    return out


def some_data(seed, count=150):
    random = np.random.default_rng(seed)
    sources, destinations = (addresses(random, 12, random.choice([0, 0.5])) for _ in range(2))
    rtt = np.where(random.random(count) < 0.1, -1.0, np.round(random.lognormal(3, 1, count), 3))
    time = random.integers(0, 10**12, count)
    chosen = (random.integers(0, 12, count), random.integers(0, 12, count))
    return Columns(time, sources[chosen[0]], destinations[chosen[1]], rtt).sorted_by_time()


def oracle_of(matrix, replies):
    groups = {}
    for src, dst, rtt in zip(replies.src, replies.dst, replies.rtt, strict=True):
        groups.setdefault((address(src), address(dst)), []).append(rtt)
    numbers = [
        {address(packed): int(ids.find(packed[None])[0]) for packed in ends}
        for ids, ends in ((matrix.sources, replies.src), (matrix.destinations, replies.dst))
    ]
    return Oracle({pair: np.median(rtts) for pair, rtts in groups.items()}, *numbers, matrix.spread)


@given(st.integers(0, 2**32))
def test_what_is_shown_is_what_the_oracle_says(seed):
    data = some_data(seed)
    replies = data.take(data.replied)
    matrix = PairMatrix(replies)
    oracle = oracle_of(matrix, replies)
    random = np.random.default_rng(seed)
    known, new = (addresses(random, 30, 0.3) for _ in range(2))
    known[:20], new[:20] = replies.src[:20], replies.dst[:20]
    queries = Columns(np.full(30, NO_TIME), known, new, np.ones(30)).queries()
    queries = replace(queries, time=np.where(np.arange(30) % 2, replies.time.max() + 1, NO_TIME))
    shown = Relations(network.initial(random)).fit(data).features(queries, History(data))
    for i in range(30):
        source, destination = address(queries.src[i]), address(queries.dst[i])
        results, asked = oracle.question(source, destination)
        of_pair = (replies.src == queries.src[i]).all(axis=1) & (replies.dst == queries.dst[i]).all(axis=1)
        if of_pair.any():
            now = None if queries.time[i] == NO_TIME else int(queries.time[i])
            pair, more = pair_results(replies.rtt[of_pair].tolist(), replies.time[of_pair].tolist(), now)
            results[COLUMN + ROW + NEAR :] = pair
            asked += more
        np.testing.assert_allclose(shown.results[i], results, atol=2e-5)
        np.testing.assert_allclose(shown.question[i], asked, atol=2e-5)
        np.testing.assert_array_equal(shown.known[i], (results[:, :4] > 0).any(axis=1))


@given(st.integers(0, 2**32))
def test_a_new_end_is_asked_about_as_if_it_had_not_been_measured(seed):
    """In training: the same as the oracle says, and nothing of what is hidden changes it."""
    data = some_data(seed)
    replies = data.take(data.replied)
    matrix, random = PairMatrix(replies), np.random.default_rng(seed)
    oracle = oracle_of(matrix, replies)
    source, destination = (int(random.integers(len(ids))) for ids in (matrix.sources, matrix.destinations))
    names = [{number: end for end, number in side.items()} for side in oracle.sides]
    ends = names[0][source], names[1][destination]
    row = dict(list(oracle.of(0, ends[0]).items())[:2])
    column = dict(list(oracle.of(1, ends[1]).items())[:1])
    expected = oracle.question(*ends, row, column)

    def of_new(shown, side):
        numbers = np.array([oracle.sides[1 - side][end] for end in shown], np.int64)
        few = np.array([len(shown)])
        every = np.ones(1, bool)
        return Shown(0 * few, few, every, numbers, np.array([*shown.values()], np.float64), every)

    def made(matrix):
        asked = AskedPairs(
            np.array([source]), np.array([destination]),
            matrix.sources.of_each[[source]], matrix.destinations.of_each[[destination]],
        )  # fmt: skip
        none = History(Columns.empty()).replies_of_pair(replies.take(slice(0, 1)).queries())
        return features(matrix, asked, of_new(row, 0), of_new(column, 1), none, np.array([NO_TIME]))

    shown = made(matrix)
    np.testing.assert_allclose(shown.results[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(shown.question[0], expected[1], atol=2e-5)
    of_end = (matrix.sources.find(replies.src) == source) | (
        matrix.destinations.find(replies.dst) == destination
    )
    changed = PairMatrix(replace(replies, rtt=np.where(of_end, 5 * replies.rtt, replies.rtt)))
    changed.spread = matrix.spread
    for before, after in zip(shown, made(changed), strict=True):
        np.testing.assert_allclose(before, after, atol=2e-5)


def test_numpy_answers_as_jax_trained():
    jax = pytest.importorskip("jax", reason="relations are trained by JAX, of the extra query")
    data = some_data(5)
    method = Relations(network.initial(np.random.default_rng(0))).fit(data)
    shown = method.features(data.queries(), History(data))
    plain = network.mixture(np, network.dense, method._weights, *shown)
    arrays = jax.tree.map(jax.numpy.asarray, method._weights)
    compiled = network.mixture(jax.numpy, jax.numpy.matmul, arrays, *shown)
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_curves_are_the_mixture():
    random = np.random.default_rng(2)
    shares, centres = random.dirichlet(np.ones(9), 5), random.normal(3, 2, (5, 9))
    widths = np.exp(random.uniform(-6, 1, (5, 9)))
    logs = np.sort(random.normal(3, 3, 400))
    apart = np.clip((logs - centres[..., None]) / widths[..., None], -500, 500)
    plain = (shares[..., None] / (1 + np.exp(-apart))).sum(axis=1)
    np.testing.assert_allclose(network._curves(shares, centres, widths, logs), plain, atol=2e-5)


def test_training_learns_what_it_is_shown():
    """Results of the pair lie where its last one was: 1,000 steps find that out."""
    pytest.importorskip("jax", reason="relations are trained by JAX, of the extra query")
    random = np.random.default_rng(0)
    bits = []

    def batches():
        while True:
            results = np.zeros((64, SHOWN, RESULT), np.float32)
            last = random.normal(4, 1, 64)
            results[:, -8, 3], results[:, -8, 4] = 1, last - 3.7
            known = results[:, :, 3] > 0
            low = np.floor(np.exp(last))
            ends = (np.log(np.maximum(low, 1e-3)), np.log(low + 1))
            yield (
                Features(results, known, np.zeros((64, QUESTION), np.float32)),
                *(e.astype(np.float32) for e in ends),
            )

    network.train(network.initial(random), batches(), 300, tell=lambda number, of_step: bits.append(of_step))
    assert np.mean(bits[-20:]) < 0.5 * np.mean(bits[:20])


def test_the_script_trains_what_the_method_reads(tmp_path):
    """Its questions come from studies; the weights answer, and are others than it began with."""
    pytest.importorskip("jax", reason="relations are trained by JAX, of the extra query")
    for name in ("one", "other"):
        data = some_data(len(name), 400)
        data = data.take(is_ipv4(data.src) == is_ipv4(data.dst))
        write_measurements(data, tmp_path / name / "measurements.parquet")
    out = tmp_path / "relations.safetensors"
    words = [
        str(tmp_path / "one"),
        str(tmp_path / "other"),
        "--steps",
        "3",
        "--questions",
        "400",
        "--out",
        str(out),
    ]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "other:" in done.stdout
    weights = load_file(out)
    network.check(weights)
    begun = network.initial(np.random.default_rng(0))
    assert not any(np.array_equal(weights[name], begun[name]) for name in ("result", "said", "0 attend"))
    data = some_data(1)
    answers = Relations(weights).fit(data).predict(data.queries(), History(data))
    assert np.isfinite(answers.quantile([0.05, 0.95])).all()


@pytest.fixture(scope="module")
def fitted():
    data = some_data(9, 600)
    return Relations().fit(data), data


def test_an_answer_does_not_depend_on_what_is_asked_beside_it(fitted):
    method, data = fitted
    queries, history = data.queries(), History(data)
    together = method.predict(queries, history).levels
    for one in range(0, len(queries), 97):
        alone = method.predict(queries.take(np.array([one])), history).levels
        np.testing.assert_array_equal(alone[0], together[one])


def test_nothing_later_than_a_question_is_shown_of_its_pair(fitted):
    method, data = fitted
    queries = data.queries()
    early = data.take(data.time < np.median(data.time))
    asked = early.queries()
    whole, before = (method.features(asked, History(known)) for known in (data, early))
    np.testing.assert_array_equal(whole.results[:, -8:], before.results[:, -8:])
    assert not np.array_equal(
        method.features(queries.without_time(), History(data)).results[:, -8:],
        method.features(queries, History(data)).results[:, -8:],
    )


def test_it_can_be_stored_and_read(fitted):
    method, data = fitted
    tree, arrays = state.pack(method)
    again = state.unpack(tree, arrays, kept_classes())
    queries, history = data.queries(), History(data)
    np.testing.assert_array_equal(
        again.predict(queries, history).levels, method.predict(queries, history).levels
    )


def test_damage_is_refused(fitted):
    method, _ = fitted
    tree, arrays = state.pack(method)
    matrix = tree["fields"]["_matrix"]["fields"]
    for part, text in (
        (matrix["source"], "do not fit"),
        (matrix["destinations"]["fields"]["of_each"], "prefix"),
    ):
        damaged = arrays[part["array"]].copy()
        damaged[len(damaged) // 2] = 1 << 30
        with pytest.raises(ValueError, match=text):
            state.unpack(tree, arrays | {part["array"]: damaged}, kept_classes())
    weights = tree["fields"]["_weights"]["dict"]
    for part, value in ((weights["said"], np.nan), (weights["0 read"], np.inf)):
        damaged = arrays[part["array"]].copy()
        damaged[0, 0] = value
        with pytest.raises(ValueError, match="finite"):
            state.unpack(tree, arrays | {part["array"]: damaged}, kept_classes())


def test_without_any_reply_it_answers(fitted):
    silent = some_data(3)
    silent = replace(silent, rtt=np.full(len(silent), -1.0))
    answers = Relations().fit(silent).predict(silent.queries(), History(silent))
    assert (answers.failure > 0.5).all()
    assert np.isfinite(answers.quantile([0.1, 0.5, 0.9])).all()
