"""The method `embeddings`: its two ways to compute, what it may look at, and what it learns."""

import numpy as np
import pytest
from answer_oracle import address, ends_on_a_circle
from hypothesis import given
from hypothesis import strategies as st

from ping_llm.answer import state
from ping_llm.answer.methods import embedding_network as network
from ping_llm.answer.methods.embeddings import Embeddings
from ping_llm.answer.methods.known_pairs import Ends, newest_of_each
from ping_llm.answer.methods.registry import kept_classes, make
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History

jax = pytest.importorskip("jax", reason="embeddings are trained by JAX, of the extra query")


@pytest.fixture(scope="module")
def splits():
    return ends_on_a_circle()


@pytest.fixture(scope="module")
def fitted(splits):
    return Embeddings(steps=600).fit(splits.train)


def crps(method, splits, kind):
    test = splits.test(kind)
    test = test.take(test.replied)
    answers = method.predict(test.queries(), History(splits.visible))
    return answers.crps(test.rtt).mean()


def test_it_infers_pairs_and_sources_better_than_what_knows_one_end(fitted, splits):
    for name in ("by source", "by destination"):
        simple = make(name).fit(splits.train)
        assert crps(fitted, splits, "pairs") < 0.5 * crps(simple, splits, "pairs"), name
        assert crps(fitted, splits, "sources") < 0.8 * crps(simple, splits, "sources"), name


def test_its_intervals_hold_what_they_should(fitted, splits):
    test = splits.test("pairs")
    test = test.take(test.replied)
    low, high = fitted.predict(test.queries(), History(splits.visible)).quantile([0.05, 0.95]).T
    assert 0.8 < np.mean((low <= test.rtt) & (test.rtt <= high)) < 0.98


def test_numpy_answers_as_jax_trained(splits):
    random = np.random.default_rng(1)
    weights = network.initial(30, 20, random)
    sources, destinations = (
        random.integers(0, rows, (ends, network.LEVELS), np.int32) for rows, ends in ((30, 9), (20, 7))
    )
    batch = network.Batch(
        sources[:5], destinations[:5],
        random.integers(0, 7, (5, 6), np.int32), random.normal(size=(5, 6, 3)).astype(np.float32),
        (random.random((5, 6)) < 0.5).astype(np.float32),
        random.integers(0, 9, (5, 6), np.int32), random.normal(size=(5, 6, 3)).astype(np.float32),
        (random.random((5, 6)) < 0.5).astype(np.float32),
    )  # fmt: skip
    ends = {"row": destinations, "column": sources}
    plain = network.answer(
        weights, batch, *(network.projected(weights, s, e, network.dense) for s, e in ends.items())
    )
    jnp, arrays = jax.numpy, jax.tree.map(jax.numpy.asarray, weights)
    compiled = network.forward(
        jnp,
        jnp.matmul,
        arrays,
        batch,
        *(network.projected(arrays, s, e, jnp.matmul) for s, e in ends.items()),
    )
    np.testing.assert_allclose(plain, compiled, atol=1e-5)


def test_an_answer_does_not_depend_on_what_is_asked_beside_it(fitted, splits):
    queries, history = splits.test("sources").queries(), History(splits.visible)
    together = fitted.predict(queries, history).quantile([0.1, 0.5, 0.9])
    for one in range(0, len(queries), 29):
        alone = fitted.predict(queries.take(np.array([one])), history).quantile([0.1, 0.5, 0.9])
        np.testing.assert_array_equal(alone[0], together[one])


def test_it_is_kept_whole_and_refuses_what_does_not_fit(fitted, splits):
    tree, arrays = state.pack(fitted)
    again = state.unpack(tree, arrays, kept_classes())
    queries, history = splits.test("pairs").queries(), History(splits.visible)
    levels = [0.05, 0.5, 0.95]
    np.testing.assert_array_equal(
        again.predict(queries, history).quantile(levels), fitted.predict(queries, history).quantile(levels)
    )
    name = tree["fields"]["_weights"]["dict"]["bins"]["array"]
    with pytest.raises(ValueError, match="shapes"):
        state.unpack(tree, arrays | {name: arrays[name][:-1]}, kept_classes())
    name = tree["fields"]["_rows"]["fields"]["other"]["array"]
    with pytest.raises(ValueError, match="not consistent"):
        state.unpack(tree, arrays | {name: arrays[name] + 1000}, kept_classes())


def test_a_prefix_without_another_end_is_not_known_to_a_new_one():
    ends = Ends(address(np.array([1, 2, 300])))
    shares = ends.shares_of_others()
    number = ends.find(address(np.array([1, 300])))
    assert shares[number[0]] == pytest.approx([2 / 3, 2 / 3, 1 / 2, 0])  # a /24 with 2
    assert shares[number[1]] == pytest.approx([2 / 3, 2 / 3, 0, 0])
    assert ends.rows(address(np.array([99_000_000])))[0, -1] == ends.starts[-2]


def test_without_replies_it_answers_as_the_marginal():
    silent = Columns(
        np.arange(9) * 1_000_000, address(np.arange(9)), address(np.arange(9) + 50), np.full(9, -1.0)
    )
    answers = Embeddings().fit(silent).predict(silent.queries(), History(silent))
    assert np.isfinite(answers.quantile([0.5])).all()
    assert (answers.failure > 0.5).all()


@given(
    st.lists(st.integers(-1, 5), max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(-1, 5)), min_size=1, max_size=4),
)
def test_newest_of_each_is_what_a_plain_search_finds(nodes, ranges):
    node = np.array(nodes, np.int64)
    low, high = (np.minimum([pair[i] for pair in ranges], len(nodes)) for i in (0, 1))
    excluded = np.array([pair[2] for pair in ranges])
    found = newest_of_each(node, low, high, excluded, 3)
    for i in range(len(ranges)):
        seen, places = set(), []
        for place in reversed(range(low[i], high[i])):
            if nodes[place] >= 0 and nodes[place] != excluded[i] and nodes[place] not in seen:
                seen.add(nodes[place])
                places.append(place)
        assert found[i].tolist() == (places + [-1] * 3)[:3]
