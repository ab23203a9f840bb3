"""Fitting a recipe: on other studies for the packaged model, or from there on the user's data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ping_llm.answer import own_past
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.methods.base import Errors, Method, PointMethod
from ping_llm.answer.methods.registry import make, usable
from ping_llm.answer.methods.relation_network import Weights
from ping_llm.answer.methods.relations import RELATED
from ping_llm.answer.questions import CELLS, KINDS
from ping_llm.answer.recipe import LEARNED, LEAST_WEIGHT, Mixture, Recipe, made
from ping_llm.answer.stacking import Part, ask, parts_of, recalibration, single_numbers
from ping_llm.answer.weights import Held, fit_past_power, fit_weights, moved_weights
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.model.packaged import NAME
from ping_llm.progress import Progress
from ping_llm.splits.holdout import inner_splits_kept
from ping_llm.splits.novelty import Novelty
from ping_llm.splits.questions import Test

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Default components: the network that reads related results, and methods that are fitted in seconds, one of
#: each family.
COMPONENTS = (
    RELATED,
    "global",
    "by source",
    "by destination",
    "prefixes",
    "neighbours",
    "pair weighted",
    "pair recent",
    "pair last",
)

#: Strength of a recipe's weights in tuning, as a number of held-out ends of the data that it is tuned to.
#: Mean bits of all kinds, on further divisions of v6-path-inflation and of menog's training part: 5.031 and
#: 6.518 with 10 (3 for the weights of an amount), 5.015 and 6.512 with 30, 5.007 and 6.511 if nothing is
#: moved; but then the CRPS of known pairs of v6 is 7 % more.
USUAL_ENDS = 30.0

#: Initial share that LEARNED takes in tuning of the weight of `relations`, which it improves on.
_LEARNED_SHARE = 0.7


@dataclass(frozen=True)
class Study:
    """Data that a recipe is fitted on.

    Attributes:
      train: measurements that the methods learn from; `tests`: questions about the rest.
      small: small sets of its measurements, with a test for each (`excerpts`).
      relations: weights of `relations` that were trained without this study. Weights that were trained on it
        would get too much weight in the mixture.
    """

    name: str
    train: Columns
    tests: Sequence[Test]
    small: Sequence[tuple[Columns, Test]]
    relations: Weights


def fit_recipe(
    model: "Model | None", studies: Sequence[Study], relations: Weights, names: Sequence[str] = COMPONENTS
) -> Recipe:
    """Fit weights and calibration on all studies together.

    Errors with few measurements are learned from every other excerpt, the mixture for few from the rest.

    Args:
      relations: weights of `relations` that the recipe is stored with.
    """
    learned = [(train, test.asked, test.context) for study in studies for train, test in study.small[::2]]
    errors = {
        name: method.errors_on(learned)
        for name in names
        if name != NAME and isinstance(method := make(name), PointMethod)
    }
    whole = [(study.train, parts_of(study.tests), study.relations) for study in studies]
    small = [
        (train, [_part(test)], study.relations) for study in studies for train, test in study.small[1::2]
    ]
    many, held_out = _fit_mixture(model, errors, names, whole)
    few, held_out_few = _fit_mixture(model, errors, names, small)
    used = [i for i, _ in enumerate(names) if max(many.weights[:, i].max(), few.weights[:, i].max()) > 0]
    components = tuple(names[i] for i in used)
    return Recipe(
        components,
        replace(many, weights=many.weights[:, used]),
        replace(few, weights=few.weights[:, used]),
        {name: own for name, own in errors.items() if name in components},
        {"studies": [study.name for study in studies], "held_out": held_out, "held_out_few": held_out_few},
        relations,
    )


def tuned_recipe(recipe: Recipe, model: "Model", asked: Sequence[tuple[Columns, Sequence[Part]]]) -> Recipe:
    """Return a copy whose weights and calibration are adjusted by held-out questions about given data.

    Args:
      asked: divisions of the data: measurements for fitting the methods, and questions about the rest.
    """
    can_learn = LEARNED in usable() and RELATED in recipe.components
    start = _with_learned(recipe) if can_learn else recipe
    known = [(learned, parts, recipe.relations) for learned, parts in asked]
    many, figures = _fit_mixture(model, start.errors, start.components, known, start.many)
    return replace(start, many=many, about=recipe.about | {"held_out": figures}, tuned_relations=None)


def _with_learned(recipe: Recipe) -> Recipe:
    """Add LEARNED as the last component; it takes a share of the weight of `relations`."""
    if LEARNED in recipe.components:
        return recipe
    related = recipe.components.index(RELATED)

    def shared(mixture: Mixture) -> Mixture:
        weights = np.concatenate([mixture.weights, np.zeros((CELLS, 1))], axis=1)
        weights[:, -1] = _LEARNED_SHARE * weights[:, related]
        weights[:, related] -= weights[:, -1]
        return replace(mixture, weights=weights)

    components = (*recipe.components, LEARNED)
    return replace(recipe, components=components, many=shared(recipe.many), few=shared(recipe.few))


def _part(test: Test) -> Part:
    return Part(test.queries(), test.context, test.asked.rtt)


def _fit_mixture(
    model: "Model | None",
    errors: dict[str, Errors],
    names: Sequence[str],
    asked: Sequence[tuple[Columns, Sequence[Part], Weights | None]],
    usual: Mixture | None = None,
) -> tuple[Mixture, dict[str, Any]]:
    """Fit a mixture on questions; returns the mixture and its figures on them.

    Args:
      asked: measurements that the methods learn from, questions about the rest, and weights of `relations`.
      usual: mixture of other data to start from.
    """
    several, answered = [], []
    with Progress("groups of held-out questions", sum(len(parts) for _, parts, _ in asked)) as progress:
        for train, parts, relations in asked:
            with inner_splits_kept():
                methods = {name: made(name, model, errors, relations).fit(train) for name in names}
            noted = {name: _Noted(methods[name]) for name in (NAME, LEARNED) if name in methods}
            trained = Novelty.of(train)
            several.append(ask(None, methods | noted, trained, parts, 0.0, quiet=True))
            answered += [
                (train, methods, part, {name: method.answers[number] for name, method in noted.items()})
                for number, part in enumerate(parts)
            ]
            progress.advance(len(parts))
    held = Held.concatenate(several)
    begin = usual or Mixture(
        np.empty(0), np.zeros(KINDS), np.ones(KINDS), np.zeros(KINDS), (), own_past.DEFAULT
    )
    if usual is None:
        _, weights = fit_weights(held, names)
    else:
        weights = moved_weights(held, usual.weights, USUAL_ENDS)
        _let_in(weights, usual.point_methods, names)
    power = fit_past_power(held, weights, names, begin.past_power)
    shift, scale = recalibration(held, weights, names, power, (begin.shift, begin.scale))
    draft = Mixture(weights, shift, scale, np.zeros(KINDS), (), power)
    recipe = Recipe(tuple(names), draft, draft, {})
    again = [(recipe.with_methods(methods, train), part) for train, methods, part, _ in answered]
    known = [before for *_, before in answered]
    share, own, figures = single_numbers(again, held, begin.point_methods, known)
    return replace(draft, typical_share=share, point_methods=own), figures


def _let_in(weights: np.ndarray, point_methods: Sequence[str], names: Sequence[str]) -> None:
    """Give a small weight to each method that provides a point estimate: without a weight it is not used."""
    for cell, name in enumerate(point_methods):
        if name:
            number = list(names).index(name)
            weights[cell, number] = max(weights[cell, number], 2 * LEAST_WEIGHT)
    weights /= weights.sum(axis=1, keepdims=True)


class _Noted(Method):
    """A method that records its answers."""

    name = NAME

    def __init__(self, method: Method):
        self._method = method
        self.answers: list[RttDistributions] = []

    def fit(self, train: Columns) -> Self:
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        self.answers.append(self._method.predict(queries, context))
        return self.answers[-1]
