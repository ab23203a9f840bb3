"""Verdicts: who wins a test, by how much, and what is said about it."""

import json

import pytest

from ping_llm.answer.methods.registry import BASELINES
from ping_llm.evaluate.verdict import (
    headline,
    lost_to,
    main_tests,
    method_words,
    number,
    subject_of,
    title_of,
    verdicts,
)


def figures(crps: float = 10.0, bits: float = 5.0, medae: float = 2.0, inside: float = 0.91, n: int = 500):
    return {
        "measurements": n,
        "replies": n,
        "crps_ms": crps,
        "bits": bits,
        "medae_ms": medae,
        "mae_ms": 2 * medae,
        "coverage": {"50%": 0.5, "80%": 0.8, "90%": inside},
    }


SILENT = {"measurements": 53, "replies": 0}


def of(splits: dict, **more) -> dict:
    return {"splits": splits, **more}


def one(methods: dict, test: str = "later", **more):
    (verdict,) = verdicts(of({test: methods}, **more))
    return verdict


def test_a_win():
    result = of({"later": {"pair last": figures(medae=1.1), "model": figures(9.0, 4.0, 1.22)}})
    (verdict,) = verdicts(result)
    assert verdict.sentence == (
        "For pairs seen in training, typical error 1.22 ms, 91 % of replies inside its 90 % interval; "
        "1.10 ms with the pair's last value (pair last). Best of 2 methods by CRPS and bits."
    )
    assert verdict.wins
    assert verdict.outcome == "better"
    assert verdict.figures is result["splits"]["later"]["model"]
    assert verdict.best_other["medae_ms"] == ("pair last", 1.1)
    assert lost_to(result) == {}
    assert headline(result)[0] == "The model is best in 1 of 1 test."


def test_a_loss_names_the_method_in_the_first_line():
    result = of(
        {
            "later": {
                "global": figures(30.0, 7.0),
                "pair weighted": figures(6.2, 3.63),
                "stack": figures(6.5, 3.6),
            },
            "pairs": {"global": figures(30.0, 7.0), "stack": figures(20.0, 6.0)},
        }
    )
    first, second = verdicts(result)
    assert (first.outcome, second.outcome) == ("worse", "better")
    assert not first.wins
    assert first.sentence.endswith(
        "Better here: the pair's weighted mean (pair weighted), CRPS 6.20 ms against 6.50 ms."
    )
    assert headline(result)[0] == (
        "A simpler method does better in 1 of 2 tests: the pair's weighted mean (pair weighted) for "
        "pairs seen in training. The answer (stack) is best in 1."
    )
    assert lost_to(result) == {
        "later": {"method": "pair weighted", "metric": "crps_ms", "ours": 6.5, "theirs": 6.2}
    }
    assert json.loads(json.dumps(lost_to(result))) == lost_to(result)


def test_both_scores_can_be_lost_to_two_methods():
    methods = {"global": figures(5.0, 9.0), "vivaldi": figures(9.0, 3.0), "network": figures(10.0, 4.0)}
    verdict = one(methods, "pairs")
    assert [(loss.method, loss.metric) for loss in verdict.losses] == [
        ("global", "crps_ms"),
        ("vivaldi", "bits"),
    ]
    assert (
        "CRPS 5.00 ms against 10.0 ms; Vivaldi coordinates (vivaldi), 3.00 bits against 4.00."
        in verdict.sentence
    )
    lost = lost_to(of({"pairs": methods}))["pairs"]
    assert lost["metric"] == "crps_ms"  # the larger ratio, 2 against 1.33


@pytest.mark.parametrize(
    ("theirs", "outcome"), [(9.89, "worse"), (9.91, "level"), (10.09, "level"), (10.11, "better")]
)
def test_one_per_cent_decides(theirs, outcome):
    assert one({"global": figures(theirs, 5.0), "model": figures(10.0, 5.0)}).outcome == outcome
    assert one({"global": figures(10.0, theirs), "model": figures(10.0, 10.0)}).outcome == outcome


def test_a_tie():
    verdict = one({"by source": figures(10.05, 5.01), "model": figures()}, "destinations")
    assert not verdict.wins
    assert verdict.sentence.endswith("Level with the source's own results (by source) by CRPS and bits.")
    assert headline(of({"destinations": {"by source": figures(), "model": figures()}}))[0] == (
        "The model is level with the best in 1 of 1 test."
    )


def test_a_score_won_does_not_make_up_for_one_lost():
    assert one({"global": figures(20.0, 4.0), "model": figures(10.0, 5.0)}).outcome == "worse"


def test_without_replies_there_is_no_verdict():
    result = of({"later": {"global": SILENT, "model": SILENT}})
    (verdict,) = verdicts(result)
    assert verdict.outcome == "no replies"
    assert not verdict.wins
    assert verdict.sentence == (
        "For pairs seen in training, none of 53 questions got a reply: there is no error to measure."
    )
    assert headline(result)[0] == "There is nothing to compare. 1 test without a reply."
    assert lost_to(result) == {}
    assert "none of 53 questions" in one({"global": SILENT}).sentence


def test_baselines_only_name_the_best_of_each_test():
    result = of(
        {
            "later": {"global": figures(30.0, 7.0), "pair last": figures(7.2, 3.9, 1.19)},
            "pairs": {"global": figures(28.0, 7.5), "by destination": figures(29.0, 7.3)},
        }
    )
    assert subject_of(result) is None
    lines = headline(result)
    assert lines[0] == "No run was evaluated: these are the simple methods only."
    assert lines[1].startswith(
        "For pairs seen in training, the best method is the pair's last value (pair last): CRPS 7.20 ms, "
        "typical error 1.19 ms, 91 % of replies"
    )
    assert lines[2].endswith(
        "the best method is one histogram of all results (global): CRPS 28.0 ms, typical error 2.00 ms, "
        "91 % of replies inside its 90 % interval; by bits it is the destination's own results "
        "(by destination)."
    )
    assert lost_to(result) == {}
    assert all(verdict.subject is None and verdict.figures == {} for verdict in verdicts(result))


def test_the_subject_is_the_stack_before_the_model_before_the_network():
    methods = {name: figures() for name in ("network", "global", "model", "stack")}
    for name in ("stack", "model", "network"):
        assert subject_of(of({"later": methods})) == name
        del methods[name]
    assert subject_of(of({"later": methods})) is None


def test_the_network_alone_competes_with_the_stack_and_the_truth_does_not():
    methods = {"truth": figures(1.0, 1.0), "network": figures(9.0, 4.5), "stack": figures()}
    verdict = one(methods)
    assert verdict.losses[0].method == "network"
    assert (
        "Better here: the network alone, CRPS 9.00 ms against 10.0 ms, 4.50 bits against 5.00."
        in verdict.sentence
    )
    assert one({"truth": figures(1.0, 1.0), "model": figures()}).outcome == "alone"


def test_tests_may_be_missing():
    assert headline(of({})) == ["No run was evaluated: these are the simple methods only."]
    result = of({"later": {"global": figures()}, "pairs": {"global": figures(), "model": figures(9.0, 4.0)}})
    first, second = verdicts(result)
    assert (first.subject, first.outcome) == (None, "no subject")
    assert second.wins
    assert headline(result)[0] == "The model is best in 1 of 1 test."


def test_new_sources_are_one_sentence_but_every_loss_counts():
    won, lost = (
        {"global": figures(), "model": figures(9.0, 4.0)},
        {"global": figures(), "model": figures(11.0)},
    )
    splits = {
        "sources, 0 known": lost,
        "sources, 1 known": lost,
        "sources, 10 known": won,
        "sources, 30 known": won,
    }
    lines = headline(of(splits))
    assert len(lines) == 3
    assert lines[0] == (
        "A simpler method does better in 2 of 4 tests: one histogram of all results (global) for new sources "
        "with 0, 1 known. The model is best in 2."
    )
    assert lines[1].startswith("For new sources with no known measurement, ")  # the first loss
    assert lines[2].startswith("For new sources with 10 known measurements, ")
    won_only = dict.fromkeys(splits, won)
    assert len(headline(of(won_only))) == 2
    assert set(lost_to(of(splits))) == {"sources, 0 known", "sources, 1 known"}
    assert main_tests(["later", "sources, 0 known", "sources, 2 known", "pairs"]) == [
        "later",
        "sources, 2 known",
        "pairs",
    ]


def test_intervals_that_are_off_and_small_tests_are_pointed_out():
    assert (
        "47 % of replies inside its 90 % interval (too narrow)"
        in one({"model": figures(inside=0.47)}).sentence
    )
    assert (
        "99 % of replies inside its 90 % interval (too wide)" in one({"model": figures(inside=0.99)}).sentence
    )
    assert "interval." in one({"model": figures(inside=0.954)}).sentence
    assert one({"model": figures(n=99)}).sentence.endswith(" (Only 99 questions.)")
    assert "nly" not in one({"model": figures(n=100)}).sentence
    data = {"asked": {"later": {"questions": 500, "sources": 7}}}
    assert one({"model": figures()}, data=data).sentence.endswith(" (500 questions from only 7 sources.)")


def test_notes_follow_the_verdict():
    splits = {"later": {"model": figures()}}
    assert headline(of(splits, notes=["One.", "Two."]))[-2:] == ["One.", "Two."]
    assert len(headline(of(splits, notes=None))) == 2


def test_words():
    assert title_of("sources, 0 known") == "New sources with no known measurement"
    assert title_of("sources, 1 known") == "New sources with 1 known measurement"
    assert title_of("a test of tomorrow") == "a test of tomorrow"
    assert method_words("pair last", "pairs") == "the destination's median (pair last)"
    assert method_words("magic", "pairs") == "magic"
    for name in BASELINES:
        assert f"({name})" in method_words(name, "later"), "every baseline has words"
    assert [number(value) for value in (0.1234, 1.234, 12.34, 123.4, 1234.5)] == [
        "0.123",
        "1.23",
        "12.3",
        "123",
        "1,234",
    ]
