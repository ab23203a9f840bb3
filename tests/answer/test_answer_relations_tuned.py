"""The method `relations tuned`: what it learns from the data at hand, and what it leaves alone."""

import numpy as np
import pytest
from answer_oracle import ends_on_a_circle

from ping_llm.answer import state
from ping_llm.answer.methods import relations_tuned
from ping_llm.answer.methods.registry import kept_classes
from ping_llm.answer.methods.relation_training import FEWEST
from ping_llm.answer.methods.relations import Relations, packaged_weights
from ping_llm.answer.methods.relations_tuned import RelationsTuned
from ping_llm.measurements.history import History

pytest.importorskip("jax", reason="relations are trained by JAX, of the extra query")


@pytest.fixture(scope="module")
def splits():
    return ends_on_a_circle()


@pytest.fixture(scope="module")
def fitted(splits):
    return RelationsTuned().fit(splits.train)


def bits(method, splits, kind):
    test = splits.test(kind)
    test = test.take(test.replied)
    return method.predict(test.queries(), History(splits.visible)).bits(test.rtt).mean()


def test_it_learns_how_ends_are_related_here(fitted, splits):
    """Addresses say next to nothing about places on the circle; in real studies they do."""
    packaged = Relations().fit(splits.train)
    for kind in ("pairs", "sources", "destinations"):
        assert bits(fitted, splits, kind) < bits(packaged, splits, kind) - 0.1, kind


def test_the_packaged_weights_stay_as_they_are(fitted):
    ours, theirs = fitted._weights, packaged_weights()
    assert Relations()._weights is theirs
    assert not any(np.array_equal(ours[name], theirs[name]) for name in ("result", "said", "0 attend"))


def test_the_same_data_give_the_same_weights(splits, monkeypatch):
    monkeypatch.setattr(relations_tuned, "FEWEST_STEPS", 3)
    one, other = (RelationsTuned(steps=3).fit(splits.train) for _ in range(2))
    for name, part in one._weights.items():
        np.testing.assert_array_equal(part, other._weights[name])


def test_with_too_few_replies_it_is_the_packaged_network(splits):
    few = splits.train.take(splits.train.replied).take(slice(0, FEWEST - 1))
    one, other = (kind().fit(few) for kind in (RelationsTuned, Relations))
    queries, history = few.queries(), History(few)
    np.testing.assert_array_equal(
        one.predict(queries, history).levels, other.predict(queries, history).levels
    )


def test_it_can_be_stored_and_read(fitted, splits):
    again = state.unpack(*state.pack(fitted), kept_classes())
    queries, history = splits.test("pairs").queries(), History(splits.visible)
    assert isinstance(again, RelationsTuned)
    np.testing.assert_array_equal(
        again.predict(queries, history).levels, fitted.predict(queries, history).levels
    )
