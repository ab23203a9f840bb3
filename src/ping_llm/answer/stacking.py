"""Fitting of a stack: the weights of its components, from questions that were held out of the training.

Stacking of predictive distributions (Yao, Vehtari, Simpson, Gelman, "Using stacking to average Bayesian
predictive distributions", Bayesian Analysis 2018). The weights of a kind of question minimise the bits of its
held-out results plus three times log2 of their mean CRPS. Bits alone give weight to a wide component that
costs CRPS: on the demo's known pairs 2.6 ms, where the best method has 1.8. The weights of a kind are shrunk
to those of all questions about something new, and the weights of an amount of context to those of its kind.
The strength of this prior is a number of held-out ends (sources, destinations, pairs), so a few ends cannot
mislead the weights, however often they were measured.

The mixture is then recalibrated, so that held-out results are uniform under it. A mixture of calibrated
distributions is too wide (Ranjan and Gneiting, "Combining probability forecasts", JRSS B 2010).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.answer import network, own_past
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import GRID, capped
from ping_llm.answer.methods.base import FailureRates, Method
from ping_llm.answer.methods.registry import make
from ping_llm.answer.questions import AMOUNTS, CELLS, KINDS, NAMES, Evidence, evidence
from ping_llm.answer.stack import CHUNK, NETWORK, Stack, recalibrated
from ping_llm.answer.weights import COARSE, Held, bin_ends, fit_past_power, fit_weights, products_of
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Filter, Ids, pairs_of
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.progress import Progress
from ping_llm.splits.holdout import inner_splits_kept
from ping_llm.splits.novelty import Novelty
from ping_llm.splits.questions import Test

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Candidate shifts and scales of the recalibration, and standard deviations of their priors.
_SHIFT_GRID = np.linspace(-0.6, 0.6, 25)
_SCALE_GRID = np.exp(np.linspace(np.log(0.6), np.log(1.8), 29))
_PRIOR_SHIFT, _PRIOR_LOG_SCALE = 0.2, 0.25

#: Candidate point estimates: the median (0), or the middle of the densest interval with this share.
_SHARES = (0.0, 0.3)
#: A component's own point estimate is used with at least this many held-out ends, if its error relative to
#: the mixture's is below this in both halves of them. A mixture's median lies between those of its
#: components, and one of them may be closer.
_POINT_ENDS, _POINT_GAIN = 8, 0.95


@dataclass(frozen=True)
class Part:
    """Some of the held-out questions, with the measurements that they may look back on."""

    queries: Queries
    context: History
    rtt: np.ndarray


def parts_of(tests: Sequence[Test], most_without: int = 150, seed: int = 0) -> list[Part]:
    """Divide the questions of tests into chunks; some of each kind are added again without a history.

    Args:
      most_without: largest number of questions per kind that are added again.
    """
    random = np.random.default_rng(seed)
    nothing = History(Columns.empty())
    parts, without = [], set()
    for test in tests:
        queries = test.queries()
        for start in range(0, len(queries), CHUNK):
            rows = slice(start, start + CHUNK)
            parts.append(Part(queries.take(rows), test.context.for_some(rows), test.asked.rtt[rows]))
        if test.kind not in without and len(queries):
            without.add(test.kind)
            some = np.sort(random.permutation(len(queries))[:most_without])
            parts.append(Part(queries.take(some), nothing, test.asked.rtt[some]))
    return parts


def fit_stack(
    model: "Model | None",
    network_train: Columns,
    tests: Sequence[Test],
    train: Columns,
    names: Sequence[str],
    about: dict[str, Any] | None = None,
    further: Iterable[tuple[Columns, list[Test]]] = (),
) -> Stack:
    """Fit weights and calibration on held-out questions, then the methods on all of the training data.

    Args:
      model: the network; None for a stack of simple methods.
      network_train: measurements that the network was trained on. While weights are fitted, the methods are
        fitted to these too.
      tests: held-out questions, whose measurements are not in `network_train`.
      train: measurements that the methods are finally fitted to.
      names: the simple methods.
      about: information for readers, stored with the stack.
      further: other divisions of the training data, for the simple methods alone: measurements to learn from,
        and questions about the rest.
    """
    parts = parts_of(tests)
    fitted = _fitted(names, network_train)
    trained = Novelty.of(network_train)
    replied = network_train.rtt[network_train.replied]
    most_ms = 2 * float(replied.max()) if len(replied) else 1000.0
    held = ask(model, fitted, trained, parts, most_ms)
    components = ((NETWORK,) if model is not None else ()) + tuple(names)
    more = [_ask_methods(names, learned, parts_of(asked), most_ms) for learned, asked in further]
    spread, weights = fit_weights(held, components, Held.concatenate(more) if more else None)
    power = fit_past_power(held, weights, components)
    draft = Stack(
        components, fitted, weights, spread, np.zeros(KINDS), np.ones(KINDS), np.zeros(KINDS), most_ms,
        FailureRates(network_train), trained, trained, past_power=power,
    )  # fmt: skip
    shift, scale = recalibration(held, draft.weights, components, power)
    draft = replace(draft, shift=shift, scale=scale)
    share, own, figures = single_numbers([(draft, part) for part in parts], held)
    used = [i for i, name in enumerate(components) if name == NETWORK or (weights[:, i] > 0).any()]
    draft = replace(
        draft,
        components=tuple(components[i] for i in used),
        weights=weights[:, used],
        typical_share=share,
        point_methods=own,
        network_trained=Novelty.of(network_train, Filter),
    )
    return _with_methods(draft, train, (about or {}) | {"held_out": figures})


def refitted(stack: Stack, everything: Columns, about: dict[str, Any]) -> Stack:
    """Return a stack with the same weights and calibration, for a network trained further on all data."""
    return _with_methods(replace(stack, network_trained=Novelty.of(everything, Filter)), everything, about)


def _with_methods(stack: Stack, train: Columns, about: dict[str, Any]) -> Stack:
    """Fit the simple methods of the stack to all measurements that they may learn from."""
    return replace(
        stack,
        methods=_fitted([name for name in stack.components if name != NETWORK], train),
        rates=FailureRates(train),
        trained=Novelty.of(train, Filter),
        about=about,
    )


def _ask_methods(names: Sequence[str], train: Columns, parts: Sequence[Part], most_ms: float) -> Held:
    """Answer the questions of a further split by the simple methods."""
    return ask(None, _fitted(names, train), Novelty.of(train), parts, most_ms)


def _fitted(names: Sequence[str], train: Columns) -> dict[str, Method]:
    with inner_splits_kept():
        return {name: make(name).fit(train) for name in names}


def ask(
    model: "Model | None",
    fitted: dict[str, Method],
    trained: Novelty,
    parts: Sequence[Part],
    most_ms: float,
    quiet: bool = False,
) -> Held:
    """Answer every held-out question by every component."""
    known, failure, below, curves, products, points = [], [], [], [], [], []
    results, past = [], []
    progress = None if quiet else Progress("held-out questions", sum(len(part.rtt) for part in parts))
    with progress or nullcontext():
        for part in parts:
            known.append(evidence(part.queries, part.context, trained))
            at = bin_ends(part.rtt)
            results.append(own_past.newest(part.queries, part.context))
            lost, levels, on_grid, point, seen = [], [], [], [], []
            if model is not None:
                own = network.curves(model, part.queries, part.context, trained)
                own = replace(own, levels=capped(own.levels, most_ms).astype(np.float32))
                curves.append(own)
                lost.append(own.failure)
                levels.append(_interpolated(own.levels, at))
                on_grid.append(own.levels[:, ::COARSE])
                seen.append(own_past.log_likelihood(own.distributions(), results[-1]))
                point.append(own.distributions().median)
            for method in fitted.values():
                answers = method.predict(part.queries, part.context)
                lost.append(answers.failure)
                levels.append(np.stack([answers.cdf(column) for column in at.T], axis=1))
                on_grid.append(answers.on(GRID[::COARSE]).astype(np.float32))
                seen.append(own_past.log_likelihood(answers, results[-1]))
                point.append(answers.point)
            failure.append(np.stack(lost, axis=1))
            points.append(np.stack(point, axis=1))
            past.append(np.stack(seen, axis=1))
            below.append(np.stack(levels, axis=1))
            products.append(products_of(np.stack(on_grid, axis=1), part.rtt))
            if progress is not None:
                progress.advance(len(part.rtt))
    evidences = Evidence.concatenate(known)
    queries = [part.queries for part in parts]
    src, dst = (np.concatenate([getattr(q, name) for q in queries]) for name in ("src", "dst"))
    pair = Ids(pairs_of(src, dst)).of_rows
    ends = np.where(
        ~evidences.source_trained,
        Ids(src).of_rows,
        np.where(evidences.destination_trained, pair, Ids(dst).of_rows),
    )
    return Held(
        np.concatenate([part.rtt for part in parts]),
        evidences,
        ends,
        np.concatenate(failure),
        np.concatenate(below),
        np.concatenate(products),
        network.Curves.concatenate(curves) if curves else None,
        np.concatenate(points),
        np.concatenate(results),
        np.concatenate(past),
    )


def _interpolated(levels: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(x, GRID, row) for x, row in zip(at, levels, strict=True)])


def recalibration(
    held: Held,
    by_cell: np.ndarray,
    components: Sequence[str],
    past_power: float,
    usual: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit shift and scale of each kind, for a mixture with weights adjusted by the pairs' own results.

    Args:
      by_cell: float64 [CELLS, components], weights.
      past_power: power of the adjustment by the pairs' own results (`own_past`).
      usual: means of the priors on shifts and scales, which kinds without a question keep.
    """
    assert held.past is not None
    weights = own_past.tempered(by_cell[held.known.cell], held.past, components, past_power)
    weights = weights * (1 - held.failure)
    replies = np.maximum(weights.sum(axis=1), 1e-300)
    mixture = np.einsum("nc,ncp->np", weights, held.below) / replies[:, None]
    shift, scale = (np.zeros(KINDS), np.ones(KINDS)) if usual is None else (each.copy() for each in usual)
    for kind in range(KINDS):
        rows = np.flatnonzero((held.known.kind == kind) & (held.rtt != NO_REPLY))
        if not len(rows):
            continue
        size = len(np.unique(held.ends[rows]))
        best, usual_shift, usual_scale = (np.inf, 0.0, 1.0), shift[kind], scale[kind]
        for a in _SHIFT_GRID.tolist():
            for b in _SCALE_GRID.tolist():
                low, high = recalibrated(mixture[rows, 0], a, b), recalibrated(mixture[rows, 1], a, b)
                nats = -np.log(np.maximum(high - low, 1e-12)).mean() * size
                cost = nats + 0.5 * ((a - usual_shift) / _PRIOR_SHIFT) ** 2
                cost += 0.5 * (np.log(b / usual_scale) / _PRIOR_LOG_SCALE) ** 2
                best = min(best, (float(cost), float(a), float(b)))
        shift[kind], scale[kind] = best[1:]
    return shift, scale


def single_numbers(
    asked: Sequence[tuple[Stack, Part]],
    held: Held,
    usual: Sequence[str] = (),
    known: Sequence[Mapping[str, RttDistributions]] = (),
) -> tuple[np.ndarray, tuple[str, ...], dict[str, Any]]:
    """Choose the rules for the point estimate; returns them and the stack's figures on held-out questions.

    Args:
      asked: the parts of the questions, each with the stack that answers it; all have the same weights.
      held: all of the questions.
      usual: as for `point_methods`.
      known: for each part, answers of methods that are known already.

    Returns:
      `typical_share` and `point_methods` of the stack, and the figures by kind.
    """
    errors = {share: [] for share in _SHARES}  # type: dict[float, list[np.ndarray]]
    inside, bits, start = [], [], 0
    stack = asked[0][0]
    for number, (stack, part) in enumerate(asked):
        end = start + len(part.rtt)
        own = None
        if held.curves is not None:
            levels = held.curves.levels[start:end].astype(np.float64)
            own = network.Curves(levels, held.curves.failure[start:end], held.curves.used[start:end])
        before = known[number] if known else None
        answers = stack.answer_with(own, part.queries, part.context, before).distributions
        for share in _SHARES:
            point = answers.typical(share) if share else answers.median
            errors[share].append(np.abs(point - part.rtt))
        low, high = answers.quantile([0.05, 0.95]).T
        inside.append((low <= part.rtt) & (part.rtt <= high))
        bits.append(answers.bits(part.rtt))
        start = end
    error = {share: np.concatenate(parts_) for share, parts_ in errors.items()}
    inside_all, bits_all = np.concatenate(inside), np.concatenate(bits)
    chosen, figures = np.zeros(KINDS), {}
    for kind, name in enumerate(NAMES):
        rows = (held.known.kind == kind) & (held.rtt != NO_REPLY)
        if not rows.any():
            continue
        scores = {}
        for share, values in error.items():
            scores[share] = (np.median(values[rows]), values[rows].mean())
        middle = scores[0.0]
        # The share with the least sum of median and mean error, each relative to those of the median.
        chosen[kind] = min(
            _SHARES,
            key=lambda share: sum(s / max(m, 1e-9) for s, m in zip(scores[share], middle, strict=True)),
        )
        every = held.known.kind == kind
        figures[name] = {
            "questions": int(every.sum()),
            "ends": len(np.unique(held.ends[every])),
            "median_error_ms": float(scores[chosen[kind]][0]),
            "bits": float(bits_all[every].mean()),
            "inside_90": float(inside_all[rows].mean()),
        }
    ours = np.where(chosen[held.known.kind] > 0, error[_SHARES[1]], error[_SHARES[0]])
    return chosen, point_methods(held, ours, stack.components, stack.weights, usual), figures


def point_methods(
    held: Held,
    ours: np.ndarray,
    components: Sequence[str],
    weights: np.ndarray,
    usual: Sequence[str] = (),
) -> tuple[str, ...]:
    """Choose for each cell the component whose point estimate is clearly closer than the mixture's.

    Args:
      ours: float64 [n], errors of the mixture's point estimate.
      weights: float64 [CELLS, components]; only components with a weight are considered.
      usual: choice from other data, which is kept unless the mixture's estimate is clearly closer here.

    Returns:
      Name of the component by cell; empty: none.
    """
    assert held.points is not None
    error = np.abs(held.points - held.rtt[:, None])
    replied = held.rtt != NO_REPLY
    out = []
    for cell in range(CELLS):
        of_kind = replied & (held.known.kind == cell // AMOUNTS)
        rows = np.flatnonzero(of_kind & (held.known.cell == cell))
        if len(np.unique(held.ends[rows])) < _POINT_ENDS:
            rows = np.flatnonzero(of_kind)  # too few ends with this amount of context: use all of the kind
        best, enough = (_POINT_GAIN, ""), len(np.unique(held.ends[rows])) >= _POINT_ENDS
        if usual and usual[cell] and weights[cell, number := components.index(usual[cell])] > 0:
            theirs = error[rows, number]
            if not (enough and _gain(ours[rows], theirs, held.ends[rows]) < _POINT_GAIN):
                out.append(usual[cell])
                continue
        if enough:
            for number in np.flatnonzero(weights[cell] > 0).tolist():
                best = min(
                    best, (_gain(error[rows, number], ours[rows], held.ends[rows]), components[number])
                )
        out.append(best[1])
    return tuple(out)


def _gain(theirs: np.ndarray, ours: np.ndarray, ends: np.ndarray) -> float:
    """Mean of the ratios of median and mean error to ours; the larger value of two halves of the ends."""
    half = ends % 2 == 0
    if not half.any() or half.all():
        return np.inf
    return max(_ratio(theirs[rows], ours[rows]) for rows in (half, ~half))


def _ratio(theirs: np.ndarray, ours: np.ndarray) -> float:
    least = 1e-9
    middle = np.median(theirs) / max(float(np.median(ours)), least)
    return float(middle + theirs.mean() / max(float(ours.mean()), least)) / 2
