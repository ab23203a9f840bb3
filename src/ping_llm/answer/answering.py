"""Answers to questions about RTTs: the one function that `query`, Python, `evaluate` and exports call.

By default the answer comes from the run's stack (`stack.py`): network and simple methods, mixed and
calibrated. Without a stack, or with `raw`, the answer is the exact distribution of the network alone.
`method` selects a single method.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ping_llm.answer import network
from ping_llm.answer.conditions import COLUMNS, array_of, unused
from ping_llm.answer.context import Question
from ping_llm.answer.distribution import RttDistribution, mix
from ping_llm.answer.files import read_columns
from ping_llm.answer.methods.base import FailureRates, Method
from ping_llm.answer.methods.registry import full_name, make
from ping_llm.answer.past import Data
from ping_llm.answer.prompts import Prompt, orders_of
from ping_llm.answer.questions import CELLS, KINDS, NAMES, Evidence, evidence
from ping_llm.answer.results import RAW as RAW
from ping_llm.answer.results import STACK as STACK
from ping_llm.answer.results import RttAnswer as RttAnswer
from ping_llm.answer.stack import CHUNK, NETWORK, Answers, Stack
from ping_llm.errors import UsageError
from ping_llm.measurements.columns import NO_TIME, Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.rows.manifest import MANIFEST_FILE
from ping_llm.splits.novelty import Novelty

if TYPE_CHECKING:
    from ping_llm.answer.model import Model
    from ping_llm.answer.rtt_model import RttModel


def answers(
    model: "RttModel | None",
    questions: Sequence[Question],
    *,
    stack: Stack | None = None,
    method: str = STACK,
    data: Data | None = None,
    all_orders: bool = False,
    lost_to: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[tuple[int, RttAnswer]]:
    """Answer questions, as (index, answer), in any order.

    A question with a context is answered from its context, the others from `data`. An answer of the stack
    has a note where a simple method was better in the run's report (`lost_to`, by test).
    """
    _check_conditions(model, questions, method)
    asked_for = questions
    if data is not None:
        questions = _each_at_its_time(questions, data)
    uneven = [index for index, question in enumerate(questions) if question.is_uneven]
    even = [index for index in range(len(questions)) if index not in set(uneven)]
    with_own = [index for index in even if questions[index].context is not None]
    others = [index for index in even if questions[index].context is None]
    for group in (with_own, others):
        for start in range(0, len(group), CHUNK):
            chosen = group[start : start + CHUNK]
            asked = [questions[index] for index in chosen]
            for index, answer in zip(
                chosen, _answer(model, asked, stack, method, data, all_orders), strict=True
            ):
                notes = filter(None, [_implausible(answer), _loss(answer, lost_to or {}, stack)])
                yield index, replace(answer, question=asked_for[index], notes=(*answer.notes, *notes))
    for index in uneven:
        if model is None:
            raise UsageError(
                "a prefix must end at a byte (/8, /16, /24 …) where a simple method answers without a run"
            )
        yield index, _uneven(model, questions[index], stack, method, data, all_orders)


def _check_conditions(model: "RttModel | None", questions: Sequence[Question], method: str) -> None:
    if not any(question.conditions for question in questions):
        return
    if model is None or method not in (STACK, NETWORK, RAW):
        names = unused([question.conditions for question in questions], ())
        raise UsageError(
            f"the method {method} does not use {', '.join(names)}: ask a run that was trained on it, with "
            "the method stack, network or raw"
        )
    model.check_conditions(*(question.conditions for question in questions))


def _each_at_its_time(questions: Sequence[Question], data: Data) -> list[Question]:
    """Give questions about one source prefix at several times a context each.

    A prefix is represented by the source in it that was measured last before the question, which can differ
    from one time to the next.
    """
    times: dict[Any, set[int | None]] = {}
    for question in questions:
        if not question.src.is_whole and not question.is_uneven and question.context is None:
            times.setdefault(question.src, set()).add(question.time)
    return [
        replace(question, context=data.past(question))
        if question.context is None and not question.is_uneven and len(times.get(question.src, ())) > 1
        else question
        for question in questions
    ]


#: RTT and expected share of replies above it from which an answer is marked as implausible. Such replies are
#: so rare in any real network (one in 100,000) that a model which expects them is not trained.
_LATE_MS, _LATE_SHARE = 10_000.0, 0.01


def _implausible(answer: RttAnswer) -> str | None:
    late = 1 - float(answer.distribution.cdf(_LATE_MS))
    if late < _LATE_SHARE:
        return None
    return (
        f"{late:.0%} of the replies are expected after more than {_LATE_MS / 1000:.0f} s, which no real "
        "network does: do not use this answer. The model is untrained, or its data have no similar question"
    )


#: The test of a report for each kind of question.
_TESTS = {"known pair": "later", "new pair": "pairs", "new destination": "destinations"}


def _loss(answer: RttAnswer, lost_to: Mapping[str, Mapping[str, Any]], stack: Stack | None) -> str | None:
    """Note on a method that was better on the report's questions of this kind, or None.

    A report compares with methods that the stack may not hold; `method` cannot select these.
    """
    if answer.method != STACK or not answer.rests_on:
        return None
    kind = answer.rests_on["kind"]
    tests = [_TESTS[kind]] if kind in _TESTS else []
    if kind in ("new source", "unseen network"):
        tests = [
            f"sources, {count} known" for count in (30, 10, 5, 2, 1, 0) if count <= answer.context_given
        ][:1]
    for test in tests:
        if test in lost_to:
            loss = lost_to[test]
            unit = "CRPS in ms" if loss["metric"] == "crps_ms" else "bits per result"
            is_held = stack is not None and loss["method"] in (NETWORK, *stack.methods)
            return (
                f"in this run's report `{loss['method']}` was better for this kind of question "
                f"({unit}: {loss['theirs']:.3g} against {loss['ours']:.3g})"
                + ("; --method selects it" if is_held else "")
            )
    return None


def _answer(
    model: "RttModel | None",
    questions: Sequence[Question],
    stack: Stack | None,
    method: str,
    data: Data | None,
    all_orders: bool,
) -> list[RttAnswer]:
    if method == RAW or stack is None:
        if model is None:
            raise UsageError("a run or a method must be given")
        if data is not None:
            most = max(model.config.max_length // 11, 4)  # the shortest measurement takes eleven tokens
            questions = [
                q if q.context is not None else replace(q, context=data.context(q, most)) for q in questions
            ]
        return _raw(model, questions, all_orders)
    queries, history = as_queries(questions), history_of(questions, data)
    if method == STACK:
        made = stack.answer(model, queries, history)
    elif method == NETWORK:
        if model is None:
            raise UsageError("the method network needs a run")
        made = by_network(model, queries, history, stack)
    else:
        made = by_method(_method_of(stack, method), queries, history, stack)
    to_destination = stack.training_counts(queries)
    return [
        RttAnswer(
            question,
            made.distributions[index],
            method,
            method != NETWORK,
            _rests_on(made.evidence, index)
            | {"destination_measurements": int(to_destination[index]), "pair_observed": observed},
            int(made.evidence.source[index]),
            int(made.used[index]),
            _share_of_network(stack, made.evidence, index) if question.conditions and method == STACK else (),
        )
        for index, (question, observed) in enumerate(zip(questions, _observed(queries, history), strict=True))
    ]


def _share_of_network(stack: Stack, known: Evidence, index: int) -> tuple[str]:
    """Note with the network's weight: the simple methods of a stack do not use conditions."""
    share = 0.0
    if NETWORK in stack.components:
        share = float(stack.weights[known.cell[index], stack.components.index(NETWORK)])
    return (
        f"only the network uses the conditions; its weight in answers of this kind is {share:.0%}, and "
        "--method network selects it alone",
    )


def _observed(queries: Queries, history: History) -> list[dict[str, float] | None]:
    """Median and range of the earlier replies of each question's pair, in ms; None if there are none."""
    past = history.replies_of_pair(queries)
    out: list[dict[str, float] | None] = []
    for low, high in zip(past.low.tolist(), past.high.tolist(), strict=True):
        rtt = past.columns.rtt[low:high]
        out.append(
            {"median": float(np.median(rtt)), "min": float(rtt.min()), "max": float(rtt.max())}
            if len(rtt)
            else None
        )
    return out


def by_network(model: "RttModel", queries: Queries, history: History, stack: Stack) -> Answers:
    """Answer with the network alone, using the prompts of a stack, not calibrated."""
    own = network.curves(model, queries, history, stack.network_trained)
    return Answers(own.distributions(), evidence(queries, history, stack.trained), own.used)


def by_method(method: Method, queries: Queries, history: History, stack: Stack) -> Answers:
    made = method.predict(queries, history)
    return Answers(made, evidence(queries, history, stack.trained), np.zeros(len(queries), np.int64))


def _method_of(stack: Stack, name: str) -> Method:
    name = name if name in stack.methods else full_name(name)
    if name not in stack.methods:
        raise UsageError(
            f"the run has no method {name!r}: its stack has {', '.join(stack.methods) or 'none'}; without a "
            "run, any method can be fitted to --data"
        )
    return stack.methods[name]


def as_queries(questions: Sequence[Question]) -> Queries:
    """Questions as columns; a question with its own context has its index as owner."""
    src, dst = np.zeros((len(questions), 16), np.uint8), np.zeros((len(questions), 16), np.uint8)
    bits = np.zeros((2, len(questions)), np.int64)
    for index, question in enumerate(questions):
        if question.dst is None:
            raise UsageError("an rtt question must have a destination")
        for row, (packed, end) in enumerate(((src, question.src), (dst, question.dst))):
            packed[index] = np.frombuffer(end.packed, np.uint8)
            bits[row, index] = 0 if end.is_whole else end.bits
    time = np.array([NO_TIME if q.time is None else q.time for q in questions], np.int64)
    owned = bool(questions) and questions[0].context is not None
    conditions = {
        column: array_of(column, [q.conditions.stated.get(name) for q in questions])
        for name, column in COLUMNS.items()
        if any(name in q.conditions.stated for q in questions)
    }
    owner = np.arange(len(questions)) if owned else None
    return Queries(time, src, dst, bits[0], bits[1], owner, **conditions)


def history_of(questions: Sequence[Question], data: Data | None) -> History:
    """Earlier measurements of the questions: from their own contexts, or else from the data."""
    if questions and questions[0].context is not None:
        return History.of_contexts([q.context.columns() for q in questions if q.context is not None])
    return History(Columns.empty()) if data is None else data.history(questions)


def _rests_on(known: Evidence, index: int) -> dict[str, Any]:
    return {
        "kind": NAMES[known.kind[index]],
        "pair_measurements": int(known.pair[index]),
        "source_measurements": int(known.source[index]),
        "pair_trained": bool(known.pair_trained[index]),
        "source_trained": bool(known.source_trained[index]),
        "destination_trained": bool(known.destination_trained[index]),
        "source_network_trained": bool(known.source_network_trained[index]),
        "destination_network_trained": bool(known.destination_network_trained[index]),
    }


def _raw(model: "RttModel", questions: Sequence[Question], all_orders: bool) -> list[RttAnswer]:
    """Answer with the network alone, exact on the codes of its RTT encoding."""
    out: list[RttAnswer | None] = [None] * len(questions)
    if not all_orders:
        prompts = model.prompts(questions)
        for index, distribution in model.distributions(prompts):
            out[index] = _raw_answer(questions[index], prompts[index], [distribution])
        return [answer for answer in out if answer is not None]
    for index, question in enumerate(questions):
        prompts = [p for order in orders_of(question) for p in model.prompts([question], order=order)]
        parts = [distribution for _, distribution in sorted(model.distributions(prompts), key=lambda x: x[0])]
        out[index] = _raw_answer(question, prompts[0], parts)
    return [answer for answer in out if answer is not None]


def _raw_answer(question: Question, prompt: Prompt, parts: Sequence[RttDistribution]) -> RttAnswer:
    notes = list(prompt.notes)
    distribution = parts[0] if len(parts) == 1 else mix(parts)
    if distribution.unresolved > 1e-3:
        notes.append(f"probabilities of single milliseconds are exact to {distribution.unresolved:.2g} only")
    return RttAnswer(
        question,
        distribution,
        context_given=prompt.given,
        context_used=prompt.used,
        notes=tuple(notes),
    )


def _uneven(
    model: "RttModel",
    question: Question,
    stack: Stack | None,
    method: str,
    data: Data | None,
    all_orders: bool,
) -> RttAnswer:
    """Answer for a prefix that ends inside a byte: the mixture over its parts that end at the next byte."""
    from ping_llm.answer.complete import destination_tree, source_tree

    whole = cast("Model", model)  # completing addresses needs more than an RttModel
    if question.src.bits % 8:
        if question.context is not None:
            raise UsageError(
                f"the source {question.src} must end at a byte where there is a context: /8, /16, /24 …"
            )
        known = question.dst if question.dst is not None and not question.dst.bits % 8 else None
        depth = question.src.bits // 8 + 1
        tree = source_tree(whole, known, question.seconds, question.src, depth, question.conditions)
        parts = tree.top(256).best
        asked = [replace(question, src=part.address) for part in parts]
    else:
        assert question.dst is not None
        tree = destination_tree(whole, question, question.dst, question.dst.bits // 8 + 1)
        parts = tree.top(256).best
        asked = [replace(question, dst=part.address) for part in parts]
    found = dict(answers(model, asked, stack=stack, method=method, data=data, all_orders=all_orders))
    mixture = mix(
        [found[number].distribution for number in range(len(asked))], [part.probability for part in parts]
    )
    return replace(found[0], question=question, distribution=mixture)


class SimpleModel:
    """One simple method, fitted to given measurements, with the interface of a run.

    Args:
      data: probe rows, or files that `ingest` reads.
      src: the address where ping, fping or mtr was run, for the output of one of them.
    """

    optional_fields: tuple[str, ...] = ()

    def __init__(self, method: str, data: Path, src: str | None = None):
        self.method = full_name(method)  # before the data are read: a wrong name is cheaper to find
        is_rows = (data / MANIFEST_FILE).exists()
        self.data = Data(data) if is_rows else Data.of(read_columns(data, src=src))
        train = self.data.columns()
        trained = Novelty.of(train)
        # A stack of one component.
        self._stack = Stack(
            (self.method,),
            {self.method: make(self.method).fit(train)},
            np.ones((CELLS, 1)),
            np.zeros(KINDS),
            np.zeros(KINDS),
            np.ones(KINDS),
            np.zeros(KINDS),
            0.0,
            FailureRates(train),
            trained,
            trained,
        )

    def rtt_stream(self, questions: Sequence[Question]) -> Iterator[tuple[int, RttAnswer]]:
        """Answer questions, as (index, answer), in any order."""
        return answers(None, questions, stack=self._stack, method=self.method, data=self.data)
