"""Recipe of the packaged model: how its answers are combined for data that it was not trained on.

A recipe is a stack without its methods: the components, their weights for each kind of question, and the
calibration of the mixture. It was fitted on held-out questions of other studies. The methods are fitted to
the user's data, which takes seconds.

From few measurements a method learns little about its own errors. So a recipe has two mixtures, one for many
measurements and one for few, and the errors that the methods make with few.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.answer.methods.base import LEVELS, Errors, FailureRates, Method, PointMethod
from ping_llm.answer.methods.pretrained import Pretrained
from ping_llm.answer.methods.registry import make, usable
from ping_llm.answer.methods.relation_network import Weights
from ping_llm.answer.methods.relation_network import check as check_relations
from ping_llm.answer.methods.relations import RELATED, Relations
from ping_llm.answer.methods.relations_tuned import TUNED, RelationsTuned
from ping_llm.answer.questions import AMOUNTS, CELLS, KINDS, NAMES
from ping_llm.answer.stack import Stack
from ping_llm.errors import PingError
from ping_llm.files import write_bytes, write_json
from ping_llm.measurements.columns import Columns
from ping_llm.model.packaged import ERRORS, NAME, RECIPE, RELATIONS, TUNED_RELATIONS
from ping_llm.splits.holdout import inner_splits_kept
from ping_llm.splits.novelty import Novelty

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

#: Format that is written, and formats that can be read. Format 2 had no weights of `relations`.
FORMAT, _READ = 3, (2, 3)

#: Least weight of a component; components with less are not used.
LEAST_WEIGHT = 0.01

#: Number of measurements at which both mixtures have the same weight. Bits on 200 excerpts of four studies
#: with 300, with 1,000, and with the mixture for few alone: excerpts of 60 to 300 measurements 5.46, 5.49,
#: 5.52; of 300 to 1,000 measurements 4.33, 4.27, 4.23; of more 4.49, 4.45, 4.50.
FEW = 1000

#: Component that tuning adds. Training takes a minute, so an untuned `base`, which starts in seconds, does
#: not use it. A tuned recipe holds its weights.
LEARNED = TUNED

#: Largest number of measurements that the methods are fitted to; the newest are used.
MOST_MEASUREMENTS = 300_000


@dataclass(frozen=True)
class Mixture:
    """Weights and calibration; the attributes are those of `Stack`."""

    weights: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    typical_share: np.ndarray
    point_methods: tuple[str, ...]
    past_power: float

    def towards(self, other: "Mixture", share: float) -> "Mixture":
        """Mix this mixture with a share of the other."""
        moved = {
            name: (1 - share) * getattr(self, name) + share * getattr(other, name)
            for name in ("weights", "shift", "scale", "past_power")
        }
        return replace(self if share < 0.5 else other, **moved)

    def as_dict(self) -> dict[str, Any]:
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in asdict(self).items()}

    @classmethod
    def of(cls, stored: dict[str, Any], components: int) -> "Mixture":
        values = {f.name: stored[f.name] for f in fields(cls)}
        for name in ("weights", "shift", "scale", "typical_share"):
            values[name] = np.array(values[name], np.float64)
        if values["weights"].shape != (CELLS, components):
            raise ValueError("the weights are not those of the components")
        return cls(**values | {"point_methods": tuple(values["point_methods"])})


@dataclass(frozen=True)
class Recipe:
    """Components, their mixtures for many and for few measurements, and their errors with few."""

    components: tuple[str, ...]
    many: Mixture
    few: Mixture
    errors: dict[str, Errors]
    about: dict[str, Any] = field(default_factory=dict)
    relations: Weights | None = None
    tuned_relations: Weights | None = None

    @property
    def network(self) -> str:
        """Name of the component that is a network trained on other data."""
        return RELATED if RELATED in self.components else NAME

    def stack(self, data: Columns, model: "Model", kept: Stack | None = None, *, learn: bool = True) -> Stack:
        """Make the stack for these data; without measurements, the model's own network alone.

        Args:
          kept: stack of the same recipe for the same data, without the network.
          learn: whether to include the component that has learned from all of the data.
        """
        if not len(data):
            # No measurement is related to the question. The model's own network knows which RTTs are usual.
            none = np.zeros(KINDS)
            alone = Mixture(np.ones((CELLS, 1)), none, np.ones(KINDS), none, (), 0.0)
            usual = replace(self, components=(NAME,), many=alone, few=alone)
            return usual.with_methods({NAME: Pretrained(model).fit(data)}, data)
        data = data.sorted_by_time().take(slice(-MOST_MEASUREMENTS, None))
        if kept is not None:
            methods, known = kept.methods, Novelty.of(data)
            if NAME in self.components:
                methods = methods | {NAME: Pretrained(model).fit(data)}
            return replace(kept, methods=methods, trained=known, network_trained=known)
        used = self._mixture(len(data)).weights.max(axis=0) > 0
        can_learn = self.tuned_relations is not None or LEARNED in usable()
        used &= (learn and can_learn) | (np.array(self.components) != LEARNED)
        with inner_splits_kept():
            methods = {
                name: made(name, model, self.errors, self.relations, self.tuned_relations).fit(data)
                for name, is_used in zip(self.components, used, strict=True)
                if is_used
            }
        return self.with_methods(methods, data)

    def _mixture(self, measurements: int) -> Mixture:
        """Mixture for a number of measurements, without small weights, which cost time and change nothing."""
        made = self.few.towards(self.many, measurements / (measurements + FEW))
        weights = np.where(made.weights < LEAST_WEIGHT, 0.0, made.weights)
        return replace(made, weights=weights / weights.sum(axis=1, keepdims=True))

    def with_methods(self, methods: dict[str, Method], data: Columns) -> Stack:
        """Make a stack from methods that were fitted to the data."""
        trained = Novelty.of(data)
        mixture = self._mixture(len(data))
        kept = [i for i, name in enumerate(self.components) if name in methods]
        weights = mixture.weights[:, kept]
        weights[weights.sum(axis=1) == 0] = 1.0  # no available method has a weight in these cells
        return Stack(
            tuple(self.components[i] for i in kept), methods,
            weights / weights.sum(axis=1, keepdims=True), np.zeros(KINDS),
            mixture.shift, mixture.scale, mixture.typical_share, 0.0, FailureRates(data), trained, trained,
            self.about, mixture.point_methods, mixture.past_power,
        )  # fmt: skip

    @property
    def is_tuned(self) -> bool:
        return "tuned_to" in self.about

    def as_dict(self) -> dict[str, Any]:
        """Weights by kind and amount of context, in readable form."""
        return {name: self._weights(getattr(self, name).weights) for name in ("many", "few")}

    def _weights(self, weights: np.ndarray) -> dict[str, Any]:
        return {
            name: [
                {c: round(float(w), 3) for c, w in zip(self.components, row, strict=True) if w > 0}
                for row in weights[kind * AMOUNTS : (kind + 1) * AMOUNTS]
            ]
            for kind, name in enumerate(NAMES)
        }

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save

        arrays = {f"{name}/residuals": e.residuals.astype(np.float32) for name, e in self.errors.items()}
        arrays |= {f"{name}/shares": e.shares.astype(np.float32) for name, e in self.errors.items()}
        write_bytes(folder / ERRORS, save(arrays))
        if self.relations is not None:
            write_bytes(folder / RELATIONS, save(self.relations))
        if self.tuned_relations is not None:
            write_bytes(folder / TUNED_RELATIONS, save(self.tuned_relations))
        values = {
            "components": self.components,
            "many": self.many.as_dict(),
            "few": self.few.as_dict(),
            "about": self.about,
        }
        # Written last: a folder with recipe.json is complete.
        write_json(folder / RECIPE, {"format": FORMAT, "recipe": values})

    @classmethod
    def load(cls, folder: Path) -> "Recipe":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = folder / RECIPE
        try:
            stored = json.loads(path.read_text())
            if stored["format"] not in _READ:
                raise PingError(f"{path} has format {stored['format']}, this version reads {FORMAT}")
            values = stored["recipe"]
            components = tuple(values["components"])
            many, few = (Mixture.of(values[name], len(components)) for name in ("many", "few"))
            errors = _errors(load_file(folder / ERRORS), components)
            relations = load_file(folder / RELATIONS) if RELATED in components else None
            own = folder / TUNED_RELATIONS
            tuned = load_file(own) if LEARNED in components and own.exists() else None
            for weights in (relations, tuned):
                if weights is not None:
                    check_relations(weights)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise PingError(f"{path} is not a recipe ({error})") from None
        return cls(components, many, few, errors, values["about"], relations, tuned)


def _errors(arrays: dict[str, np.ndarray], components: Sequence[str]) -> dict[str, Errors]:
    """Stored errors of the components that are point methods."""
    out = {}
    for name in components:
        method = None if name == NAME else make(name)
        if not isinstance(method, PointMethod):
            continue
        residuals, shares = arrays[f"{name}/residuals"], arrays[f"{name}/shares"]
        shape = (method.groups * Novelty.COUNT, len(LEVELS))
        if residuals.shape != shape or shares.shape != (Novelty.COUNT,):
            raise ValueError(f"the errors of {name!r} must have one row per group and kind of question")
        if not (np.isfinite(residuals).all() and ((shares >= 0) & (shares <= 1)).all()):
            raise ValueError(f"the errors of {name!r} must be finite, and their shares from 0 to 1")
        out[name] = Errors(residuals.astype(np.float64), shares.astype(np.float64))
    return out


def made(
    name: str, model: "Model | None", errors: dict[str, Errors], relations: Weights | None,
    tuned: Weights | None = None,
) -> Method:  # fmt: skip
    """Make a method that is not fitted yet; `tuned` weights are used as they are."""
    if name == NAME:
        assert model is not None
        return Pretrained(model)
    if name == RELATED:
        return Relations(relations)
    if name == TUNED:
        return RelationsTuned(relations) if tuned is None else RelationsTuned(tuned, steps=0)
    method = make(name)
    if isinstance(method, PointMethod):
        method.elsewhere = errors.get(name)
    return method
