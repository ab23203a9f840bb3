"""How the packaged model's answers are put together about data that it has never seen.

A recipe is a stack without its methods: which components, with which weights for each kind of question, how
the mixture is calibrated. It was fitted on held-out questions of other studies. The methods are fitted to the
data that are asked about, which takes seconds.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.methods.base import FailureRates, Method
from ping_llm.answer.methods.pretrained import Pretrained
from ping_llm.answer.methods.registry import make
from ping_llm.answer.questions import AMOUNTS, CELLS, KINDS, NAMES
from ping_llm.answer.stack import Stack
from ping_llm.answer.stacking import ask, parts_of, recalibration, single_numbers
from ping_llm.answer.weights import Held, fit_past_power, fit_weights
from ping_llm.errors import PingError
from ping_llm.files import write_json
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.model.packaged import NAME, RECIPE
from ping_llm.splits.novelty import Novelty
from ping_llm.splits.questions import Test

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

FORMAT = 1

#: Components beside the network: what is fitted in seconds, one of each family.
COMPONENTS = (
    "global",
    "by source",
    "by destination",
    "prefixes",
    "vivaldi",
    "neighbours",
    "pair weighted",
    "pair recent",
    "pair last",
)

#: The network is asked about everything.
_LEAST_SHARE = 0.001

#: With so many measurements, simple methods have half the weight that they have with many.
_FEW = 300

#: The methods are fitted to the newest of the data, at most so many.
MOST_MEASUREMENTS = 300_000


@dataclass(frozen=True)
class Recipe:
    """The attributes are those of `Stack`."""

    components: tuple[str, ...]
    weights: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    typical_share: np.ndarray
    point_methods: tuple[str, ...]
    past_power: float
    about: dict[str, Any] = field(default_factory=dict)

    def stack(self, data: Columns, model: "Model") -> Stack:
        """The stack for these data."""
        data = data.sorted_by_time().take(slice(-MOST_MEASUREMENTS, None))
        methods = {name: _made(name, model).fit(data) for name in self.components}
        return self.with_methods(methods, data)

    def with_methods(self, methods: dict[str, Method], data: Columns) -> Stack:
        """The stack of methods that were fitted to the data."""
        trained = Novelty.of(data)
        # Of few measurements a fitted method learns too little about its own errors.
        fitted = len(data) / (len(data) + _FEW)
        weights = np.where(np.array(self.components) == NAME, 1 - fitted, 0.0) + fitted * self.weights
        return Stack(
            self.components, methods, weights, np.zeros(KINDS), self.shift, self.scale,
            self.typical_share, 0.0, FailureRates(data), trained, trained, self.about, self.point_methods,
            self.past_power,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Weights by kind and amount of context, for reading."""
        return {
            name: [
                {c: round(float(w), 3) for c, w in zip(self.components, row, strict=True) if w > 0}
                for row in self.weights[kind * AMOUNTS : (kind + 1) * AMOUNTS]
            ]
            for kind, name in enumerate(NAMES)
        }

    def save(self, folder: Path) -> None:
        values = {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in asdict(self).items()}
        write_json(folder / RECIPE, {"format": FORMAT, "recipe": values})

    @classmethod
    def load(cls, folder: Path) -> "Recipe":
        path = folder / RECIPE
        try:
            stored = json.loads(path.read_text())
            if stored["format"] != FORMAT:
                raise PingError(f"{path} has format {stored['format']}, this version reads {FORMAT}")
            values = {f.name: stored["recipe"][f.name] for f in fields(cls)}
            for name in ("weights", "shift", "scale", "typical_share"):
                values[name] = np.array(values[name], np.float64)
            for name in ("components", "point_methods"):
                values[name] = tuple(values[name])
            if values["weights"].shape != (CELLS, len(values["components"])):
                raise ValueError("the weights are not those of the components")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PingError(f"{path} is not a recipe ({error})") from None
        return cls(**values)


def _made(name: str, model: "Model") -> Method:
    return Pretrained(model) if name == NAME else make(name)


def fit_recipe(
    model: "Model",
    studies: Sequence[tuple[str, Columns, Sequence[Test]]],
    names: Sequence[str] = (NAME, *COMPONENTS),
) -> Recipe:
    """Weights and calibration that serve all studies.

    Args:
      studies: of each its name, what the methods learn from, and questions about the rest.
    """
    several, asked = [], []
    for _, train, tests in studies:
        parts = parts_of(tests)
        network = _Noted(_made(NAME, model).fit(train))
        methods = {name: network if name == NAME else make(name).fit(train) for name in names}
        several.append(ask(None, methods, Novelty.of(train), parts, 0.0))
        asked.append((train, methods, network.answers, parts))
    held = Held.concatenate(several)
    _, weights = fit_weights(held, names)
    weights = (1 - _LEAST_SHARE) * weights + _LEAST_SHARE * (np.array(names) == NAME)
    power = fit_past_power(held, weights, names)
    shift, scale = recalibration(held, weights, names, power)
    draft = Recipe(tuple(names), weights, shift, scale, np.zeros(KINDS), (), power)
    again = [
        (draft.with_methods(methods | {NAME: Answered(known)}, train), part)
        for train, methods, answers, parts in asked
        for known, part in zip(answers, parts, strict=True)
    ]
    share, own, figures = single_numbers(again, held)
    used = [i for i, _ in enumerate(names) if (weights[:, i] > 0).any()]
    return Recipe(
        tuple(names[i] for i in used),
        weights[:, used],
        shift,
        scale,
        share,
        own,
        power,
        {"studies": [name for name, _, _ in studies], "held_out": figures},
    )


class _Noted(Method):
    """A method that keeps its answers."""

    name = NAME

    def __init__(self, method: Method):
        self._method = method
        self.answers: list[RttDistributions] = []

    def fit(self, train: Columns) -> Self:
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        self.answers.append(self._method.predict(queries, context))
        return self.answers[-1]


class Answered(Method):
    """Answers that are there already, to the questions that are asked next."""

    name = NAME

    def __init__(self, answers: RttDistributions):
        self._answers = answers

    def fit(self, train: Columns) -> Self:
        return self

    def predict(self, queries: Queries, context: History) -> RttDistributions:
        # The network has a weight in every cell of a recipe, so all of a chunk are asked at once.
        assert len(queries) == len(self._answers)
        return self._answers
