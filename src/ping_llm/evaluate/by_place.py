"""Places in a report: errors by distance and by pair of countries, and the baseline `distance`.

The baseline is boosted like `boosted`, with the places of the two ends as its only features. A model that
knows places must be better than it.
"""

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from ping_llm.answer.methods.base import FLOOR_MS
from ping_llm.answer.methods.boosted import Boosted
from ping_llm.evaluate.scores import Scores, short
from ping_llm.measurements.columns import Columns, Queries
from ping_llm.measurements.history import History
from ping_llm.measurements.places import FIBRE_KM_PER_MS, Places, distance_km, locations

_EDGES_KM = (0, 100, 500, 1000, 2000, 5000, 10000)
#: Largest number of pairs of countries that are listed, the most frequent first.
_PAIRS = 15

#: Typical ratio of the path to the great circle, and RTT that both ends add, ms.
_DETOUR, _ENDS_MS = 1.6, 5.0


class Distance(Boosted):
    """Boosted trees on the great-circle distance and the coordinates of both ends."""

    name = "distance"
    revision = 1

    def __init__(self, places: Places):
        super().__init__()
        self._places = places

    def _features(self, queries: Queries, context: History) -> tuple[np.ndarray, np.ndarray]:
        here, there = (locations(self._places.of_all(packed)) for packed in (queries.src, queries.dst))
        distance = distance_km(here, there)
        guess = np.log(2 * distance / FIBRE_KM_PER_MS * _DETOUR + _ENDS_MS)
        guess = np.where(np.isnan(guess), np.log(self._medians.overall + FLOOR_MS), guess)
        return np.stack([distance, *here.T, *there.T], axis=1), guess


class Located:
    """Places from files, and the strata and the baseline made of them."""

    def __init__(self, files: Sequence[str]):
        self._files = [Path(file) for file in files]
        self._places = Places(self._files)

    @property
    def can_boost(self) -> bool:
        """Whether scikit-learn is installed."""
        return importlib.util.find_spec("sklearn") is not None

    @property
    def folder(self) -> str:
        """Folder of the baseline's parts, named by a digest of the files, on which its answers depend."""
        found = hashlib.sha256()
        for path in self._files:
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return f"distance-{found.hexdigest()[:12]}"

    def method(self) -> Distance:
        return Distance(self._places)

    def add_strata(self, methods: dict[str, dict], asked: Columns, scores: dict[str, Scores]) -> None:
        """Add the figures by distance and by pair of countries to those of each method."""
        groups = _Groups(asked, self._places)
        for name, part in scores.items():
            methods[name]["strata"] |= groups.of(part)


class _Groups:
    """The groups of a test's questions by distance and by pair of countries."""

    def __init__(self, asked: Columns, places: Places):
        sources, destinations = places.of_all(asked.src), places.of_all(asked.dst)
        self._asked = asked
        distance = distance_km(locations(sources), locations(destinations))
        step = np.searchsorted(_EDGES_KM, distance, side="right") - 1
        names = [f"{a:,}–{b:,} km" for a, b in pairwise(_EDGES_KM)] + [f"{_EDGES_KM[-1]:,} km and more"]
        known = ~np.isnan(distance)
        self._groups = {"distance": {name: known & (step == i) for i, name in enumerate(names)}}
        self._groups["distance"]["unknown"] = ~known
        pairs = np.array(
            [f"{a.country or '?'}→{b.country or '?'}" for a, b in zip(sources, destinations, strict=True)]
        )
        frequent = [name for name, _ in Counter(pairs.tolist()).most_common(_PAIRS)]
        self._groups["country_pair"] = {name: pairs == name for name in frequent}

    def of(self, scores: Scores) -> dict[str, dict]:
        return {
            kind: {name: short(scores, self._asked, chosen) for name, chosen in groups.items()}
            for kind, groups in self._groups.items()
        }
