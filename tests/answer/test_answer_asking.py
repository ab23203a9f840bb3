"""How a network is asked: which context, which ways, and how their answers are averaged."""

from dataclasses import replace

import numpy as np

from ping_llm.answer import network
from ping_llm.answer.model import Model
from ping_llm.answer.network import KEYS, Asking, ways
from ping_llm.answer.questions import UNSEEN_NETWORK, evidence
from ping_llm.measurements.addresses import pack_one
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.history import History
from ping_llm.model.config import ModelConfig
from ping_llm.model.engine import Engine
from ping_llm.model.random import random_tensors
from ping_llm.splits.novelty import Novelty
from ping_llm.tokens.rtt import rtt_encoding


def _columns() -> Columns:
    packed = np.zeros((4, 16), np.uint8)
    packed[:, 10:12] = 255
    src, dst = packed.copy(), packed.copy()
    src[:, 12:] = [10, 20, 30, 40]
    dst[:, 15] = [1, 2, 1, 3]
    return Columns(np.arange(1, 5) * 60_000_000, src, dst, np.array([10.0, 20.0, 11.0, 30.0]))


def test_ends_that_were_not_trained_on_are_cut_unless_the_pair_has_a_past():
    data = _columns()
    asked, asking = data.take(np.array([2, 3])).queries(), Asking(source_bytes=(2,), destination_bytes=(0, 1))
    trained = data.take(np.array([0]))
    trained.src[:, 14:] = trained.dst[:, 14:] = 99  # the same networks, other addresses
    known, new = ways(asked, History(data), asking, Novelty.of(trained))
    assert [(str(question.src), str(question.dst)) for question in known] == [("10.20.30.40", "0.0.0.1")]
    assert [(str(question.src), str(question.dst)) for question in new] == [
        ("10.20.0.0/16", "0.0.0.3"),
        ("10.20.0.0/16", "0.0.0.0/8"),
    ]
    assert [len(question.context) for question in new] == [3, 3]  # never what is not earlier
    for trained in (None, Novelty.of(data)):
        several = ways(asked, History(data), asking, trained)
        assert [str(question.src) for (question,) in several] == ["10.20.30.40"] * 2


def test_a_source_unlike_any_trained_one_is_not_named():
    data = _columns()
    asked = data.take(np.array([2, 3])).queries()
    trained = Novelty.of(replace(data, src=data.src + np.uint8(1)))
    assert trained.unseen_source_networks(asked.src).tolist() == [True, True]
    assert evidence(asked, History(data.take(slice(0, 0))), trained).kind.tolist() == [UNSEEN_NETWORK] * 2
    asking = network.asking_of(_model(unnamed_source_probability=0.5))
    for (question,) in ways(asked, History(data), asking, trained):
        assert str(question.src) == "0.0.0.0/8"
        assert len(question.context)
    for several in ways(asked, History(data), asking, Novelty.of(data)):  # a known one in both ways
        assert [str(question.src) for question in several] == ["10.20.30.40", "0.0.0.0/8"]
    assert network.asking_of(_model()) == Asking()  # a run that was not trained on such contexts


def test_a_run_that_knows_only_pseudonyms_is_asked_by_pseudonyms():
    data = _columns()
    asked, history = data.take(np.array([2, 3])).queries(), History(data)
    assert network.asking_of(_model(scramble_probability=0.9)).keys == 0
    asking = network.asking_of(_model(scramble_probability=1.0))
    assert asking.keys == KEYS > 1
    for trained in (None, Novelty.of(data), Novelty.of(data.take(slice(0, 1)))):
        several = ways(asked, history, asking, trained)
        plain = [question for (question,) in ways(asked, history, Asking(), None)]
        for index, prompts in enumerate(several):
            keys = [int(key[index]) for key in network.keys_of(asked, KEYS)]
            assert [_stated(question) for question in prompts] == [
                _stated(plain[index].scrambled(key)) for key in keys
            ]
            assert len({str(question.dst) for question in (plain[index], *prompts)}) == 1 + KEYS
        # Nothing depends on what else is asked.
        alone = ways(asked.take(slice(1, 2)), history, asking, trained)
        assert [_stated(question) for question in alone[0]] == [_stated(question) for question in several[1]]


def _stated(question) -> tuple:
    return str(question.src), str(question.dst), question.context.dst.tolist(), question.context.rtt.tolist()


def test_what_an_unseen_network_is():
    def packed(*texts: str) -> np.ndarray:
        return np.array([list(pack_one(text)) for text in texts], np.uint8)

    src = packed("192.0.2.1", "2001:db8::1", "198.51.100.7", "2001:db8:1::1")
    trained = Novelty.of(Columns(np.arange(4), src, src, np.ones(4)))
    asked = packed(
        "192.0.99.99", "192.1.2.1", "2001:db8:0:1::", "2001:db8:2::1", "2001:db8:1:ffff::", "198.51.0.0"
    )
    assert trained.unseen_source_networks(asked).tolist() == [False, True, False, True, False, False]


def _model(**context: float) -> Model:
    config = ModelConfig(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=64, max_length=128)
    return Model(Engine(config, random_tensors(config)), rtt_encoding("compact"), {"context": context})


def test_answers_of_several_ways_are_averaged():
    model, data = _model(), _columns()
    asked, history = data.take(np.array([2, 3])).queries(), History(data)

    def answer(*source_bytes: int):
        asking = Asking(source_bytes=source_bytes, unseen_bytes=source_bytes, destination_bytes=(0,))
        nothing = Novelty.of(data.take(slice(0, 0)))
        return network.curves(model, asked, history, nothing, asking).distributions()

    whole, cut, both = answer(0), answer(2), answer(0, 2)
    rtt = np.array([50.0, 50.0])
    chance = [2.0 ** -part.bits(rtt) for part in (whole, cut, both)]
    np.testing.assert_allclose(chance[2][1], (chance[0][1] + chance[1][1]) / 2, rtol=1e-4)
    assert chance[2][0] == chance[0][0]  # its pair has a past: asked once, and whole
    np.testing.assert_allclose(both.failure[1], (whole.failure[1] + cut.failure[1]) / 2, rtol=1e-6)
