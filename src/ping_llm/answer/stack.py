"""The stack: the network and the simple methods, mixed and calibrated into the answer that a user gets.

The weights depend on the kind of question and on its amount of earlier measurements. They were fitted on
held-out questions of that kind (`stacking.py`), and are adjusted by the pair's own results (`own_past.py`).
The mixture is then recalibrated by two numbers of the kind, and its point estimate is chosen by the rule of
the kind. A run and an export hold all of this beside the weights of the network, in stack.json and
stack.safetensors.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from ping_llm.answer import network, own_past, state
from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.grid import GRID, blurred, capped
from ping_llm.answer.methods.base import FailureRates, Method
from ping_llm.answer.methods.pair_history import PairHistory
from ping_llm.answer.methods.registry import kept_classes
from ping_llm.answer.questions import AMOUNTS, CELLS, KINDS, NAMES, Evidence, evidence
from ping_llm.errors import PingError
from ping_llm.files import write_bytes, write_json
from ping_llm.measurements.columns import Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.ids import Filter
from ping_llm.model.packaged import NAME
from ping_llm.splits.novelty import Novelty

if TYPE_CHECKING:
    from ping_llm.answer.rtt_model import RttModel

FOLDER, FILE, ARRAYS = "stack", "stack.json", "stack.safetensors"
#: File of an edge export instead of ARRAYS: it can be read with NumPy alone.
EDGE_ARRAYS = "stack.npz"
FORMAT = 1

#: Name of the network among the components of a stack.
NETWORK = "network"

#: Number of questions that are answered together: a curve takes 34 kB.
CHUNK = 128


@dataclass(frozen=True)
class Answers:
    """Answers to n questions, and what they are based on."""

    distributions: RttDistributions
    evidence: Evidence
    #: int64 [n]: measurements of context that the network was shown.
    used: np.ndarray


@dataclass(frozen=True)
class Stack:
    """Components and how they are combined.

    Attributes:
      components: names; the columns of `weights`.
      methods: the fitted simple methods among them, by name.
      weights: float64 [CELLS, components].
      spread: float64 [KINDS], standard deviation in log RTT by which the network's curves are blurred first.
      shift, scale: float64 [KINDS]; the mixture's F becomes σ(shift + scale · logit F).
      typical_share: float64 [KINDS]; the point estimate is the middle of the densest interval with this share
        of the replies; 0: the median.
      point_methods: by cell, the component whose point estimate is used instead; an empty name: none. Empty
        in stacks that are older than this attribute.
      past_power: how far a pair's own results adjust its weights (`own_past`); 0: not at all, as in stacks
        that are older than this attribute.
      most_ms: RTT above which the network's probability is removed.
      rates: failures and measurements of each source, destination and pair that was trained on.
      trained: ends and pairs that the methods were fitted to; `network_trained`: that the network was trained
        on.
      about: information for readers (JSON).
    """

    components: tuple[str, ...]
    methods: dict[str, Method]
    weights: np.ndarray
    spread: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    typical_share: np.ndarray
    most_ms: float
    rates: FailureRates
    trained: Novelty
    network_trained: Novelty
    about: dict[str, Any] = field(default_factory=dict)
    point_methods: tuple[str, ...] = ()
    past_power: float = 0.0

    def check(self) -> None:
        """Refuse stored values that do not fit together."""
        by_kind = (self.spread, self.shift, self.scale, self.typical_share)
        if self.weights.shape != (CELLS, len(self.components)) or any(len(v) != KINDS for v in by_kind):
            raise ValueError(
                "there must be a weight for each component and kind of question, and a spread for each kind"
            )
        if (self.weights < 0).any() or not np.allclose(self.weights.sum(axis=1), 1.0):
            raise ValueError("the weights of a kind must add up to 1")
        if set(self.components) - {NETWORK, NAME} - set(self.methods):
            raise ValueError("a component with a weight has no fitted method")
        if self.point_methods and (
            len(self.point_methods) != CELLS or set(self.point_methods) - {""} - set(self.components)
        ):
            raise ValueError("a point estimate names a component that does not exist")
        if not (np.isfinite(by_kind).all() and (self.scale > 0).all() and (self.spread >= 0).all()):
            raise ValueError("a scale must be above 0, a spread at least 0")
        if not 0 <= self.past_power <= 1:
            raise ValueError("past_power must be from 0 to 1")

    def without_own_past(self) -> "Stack":
        """Return a copy whose weights are not adjusted by a pair's own results."""
        methods = dict(self.methods)
        for name, method in self.methods.items():
            if isinstance(method, PairHistory):
                methods[name] = other = copy(method)
                other.past_power = 0.0
        return replace(self, methods=methods, past_power=0.0)

    def answer(self, model: "RttModel | None", queries: Queries, history: History) -> Answers:
        """Return the calibrated mixture for each question."""
        chunks = [slice(start, start + CHUNK) for start in range(0, len(queries), CHUNK)]
        parts = [self._answer(model, queries.take(rows), history.for_some(rows)) for rows in chunks]
        return joined(parts) if parts else joined([self._answer(model, queries, history)])

    def _answer(self, model: "RttModel | None", queries: Queries, history: History) -> Answers:
        def ask(part: Queries, back: History, rows: np.ndarray) -> network.Curves:
            assert model is not None
            return self.capped(network.curves(model, part, back, self.network_trained))

        return self._mixed(ask, queries, history, {})

    def capped(self, own: network.Curves) -> network.Curves:
        """Remove the probability above twice the largest trained RTT from the network's curves."""
        return replace(own, levels=capped(own.levels, self.most_ms))

    def answer_with(
        self,
        own: network.Curves | None,
        queries: Queries,
        history: History,
        known: Mapping[str, RttDistributions] | None = None,
    ) -> Answers:
        """Return the calibrated mixture, given the network's capped curves.

        Args:
          known: answers of methods that are known already, by method name.
        """

        def look_up(part: Queries, back: History, rows: np.ndarray) -> network.Curves:
            assert own is not None
            return network.Curves(own.levels[rows], own.failure[rows], own.used[rows])

        return self._mixed(look_up, queries, history, known or {})

    def _mixed(
        self,
        ask: Callable[[Queries, History, np.ndarray], network.Curves],
        queries: Queries,
        history: History,
        answered: Mapping[str, RttDistributions],
    ) -> Answers:
        known = evidence(queries, history, self.trained)
        weights = self.weights[known.cell]
        results = own_past.newest(queries, history)
        used = np.zeros(len(queries), np.int64)
        chosen = np.array(self.point_methods or [""] * CELLS)[known.cell]
        points = np.full(len(queries), np.nan)
        past, asked = np.zeros(weights.shape), []
        for number, name in enumerate(self.components):
            rows = np.flatnonzero(weights[:, number] > 0)
            if not len(rows):
                continue
            part, back = queries.take(rows), history.for_some(rows)
            if name == NETWORK:
                own = ask(part, back, rows)
                curve = blurred(own.levels, self.spread[known.kind[rows]])
                lost, used[rows] = own.failure, own.used
                answers = RttDistributions(np.broadcast_to(GRID, curve.shape), curve, lost)
            else:
                before = answered.get(name)
                answers = self.methods[name].predict(part, back) if before is None else before.take(rows)
                curve, lost = answers.on(GRID), answers.failure
            if (wanted := chosen[rows] == name).any():
                points[rows[wanted]] = answers.point[wanted]
            if self.past_power > 0:
                past[rows, number] = own_past.log_likelihood(answers, results[rows])
            asked.append((number, rows, curve, lost))
        weights = own_past.tempered(weights, past, self.components, self.past_power)
        failure, replies = np.zeros(len(queries)), np.zeros(len(queries))
        levels = np.zeros((len(queries), len(GRID)))
        for number, rows, curve, lost in asked:
            share = weights[rows, number]
            failure[rows] += share * lost
            replies[rows] += share * (1 - lost)
            levels[rows] += (share * (1 - lost))[:, None] * curve
        levels /= np.maximum(replies, 1e-300)[:, None]
        levels = recalibrated(levels, self.shift[known.kind][:, None], self.scale[known.kind][:, None])
        levels[:, 0], levels[:, -1] = 0.0, 1.0
        answers = RttDistributions(np.broadcast_to(GRID, levels.shape), levels, failure)
        point = answers.median
        for share in np.unique(self.typical_share[known.kind]):
            rows = np.flatnonzero(self.typical_share[known.kind] == share)
            if share > 0 and len(rows):
                point[rows] = answers.typical(float(share))[rows]
        own_point = np.flatnonzero(~np.isnan(points))
        if len(own_point):
            # Clipped to the 90 % interval, so that the point estimate does not contradict the distribution.
            low, high = answers.quantile([0.05, 0.95])[own_point].T
            point[own_point] = np.clip(points[own_point], low, high)
        return Answers(RttDistributions(answers.values, levels, failure, point=point), known, used)

    def training_counts(self, queries: Queries) -> np.ndarray:
        """Number of trained measurements to each question's destination, int64 [n]."""
        return self.rates.measurements_to(queries)

    def as_dict(self) -> dict[str, Any]:
        """Weights and calibration by kind, for reports."""
        out = {}
        for kind, name in enumerate(NAMES):
            weights = self.weights[kind * AMOUNTS : (kind + 1) * AMOUNTS]
            out[name] = {
                "weights": [
                    {c: round(float(w), 4) for c, w in zip(self.components, row, strict=True) if w > 0}
                    for row in weights
                ],
                "spread": float(self.spread[kind]),
                "shift": float(self.shift[kind]),
                "scale": float(self.scale[kind]),
                "past_power": self.past_power if kind == Novelty.KNOWN_PAIR else 0.0,
                "point": [
                    method
                    or (f"densest {self.typical_share[kind]:.0%}" if self.typical_share[kind] else "median")
                    for method in (self.point_methods or ("",) * CELLS)[kind * AMOUNTS : (kind + 1) * AMOUNTS]
                ],
            }
        return out

    def save(self, folder: Path) -> None:
        """Write stack.json and stack.safetensors below RUN/stack or EXPORT/stack."""
        from safetensors.numpy import save

        tree, arrays = state.pack(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / ARRAYS, save(arrays))
        # Written last: a folder with stack.json is complete.
        write_json(folder / FILE, {"format": FORMAT, "stack": tree})

    @classmethod
    def load(cls, folder: Path) -> "Stack | None":
        """Load the stack of a run or an export; None if it has none."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text())
            if stored["format"] != FORMAT:
                raise PingError(f"{path} has format {stored['format']}, this version reads {FORMAT}")
            made = state.unpack(stored["stack"], _arrays(folder), _classes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, BadZipFile) as error:
            raise PingError(f"{path} is not a stack ({error}); `ping-llm calibrate` writes one") from None
        if not isinstance(made, Stack):
            raise PingError(f"{path} is not a stack; `ping-llm calibrate` writes one")
        return made


def _arrays(folder: Path) -> state.Arrays:
    if (folder / EDGE_ARRAYS).is_file():
        with np.load(folder / EDGE_ARRAYS, allow_pickle=False) as stored:
            return dict(stored)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(folder / ARRAYS)
    except SafetensorError as error:
        raise ValueError(error) from None


def recalibrated(levels: np.ndarray, shift: np.ndarray | float, scale: np.ndarray | float) -> np.ndarray:
    """σ(shift + scale · logit F). A scale below 1 widens the distribution, above 1 narrows it."""
    inside = np.clip(levels, 1e-12, 1 - 1e-12)
    moved = 1.0 / (1.0 + np.exp(-(shift + scale * (np.log(inside) - np.log1p(-inside)))))
    return np.where((levels <= 0) | (levels >= 1), levels, moved)


def joined(parts: Sequence[Answers]) -> Answers:
    """Concatenate answers."""
    first = parts[0].distributions
    levels = np.concatenate([part.distributions.levels for part in parts])
    joined = RttDistributions(
        np.broadcast_to(first.values[0] if len(first) else GRID, levels.shape),
        levels,
        np.concatenate([part.distributions.failure for part in parts]),
        point=np.concatenate([part.distributions.point for part in parts]),
    )
    known = Evidence.concatenate([part.evidence for part in parts])
    return Answers(joined, known, np.concatenate([part.used for part in parts]))


def _classes() -> list[type]:
    return [Stack, Filter, *kept_classes()]
