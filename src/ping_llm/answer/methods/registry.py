"""Registry of the simple methods by name."""

import importlib.util
from collections.abc import Callable
from functools import partial

from ping_llm.answer.distribution import RttDistributions
from ping_llm.answer.methods.base import FailureRates, Medians, Method
from ping_llm.answer.methods.boosted import Boosted, Trees
from ping_llm.answer.methods.dmfsgd import Dmfsgd
from ping_llm.answer.methods.embeddings import Embeddings
from ping_llm.answer.methods.known_pairs import Ends, Entries
from ping_llm.answer.methods.marginals import ByDestination, BySource, Global
from ping_llm.answer.methods.neighbours import Neighbours
from ping_llm.answer.methods.pair_history import PairHistory
from ping_llm.answer.methods.prefixes import Prefixes
from ping_llm.answer.methods.relation_features import PairMatrix
from ping_llm.answer.methods.relations import Relations
from ping_llm.answer.methods.relations_tuned import RelationsTuned
from ping_llm.answer.methods.vivaldi import Vivaldi
from ping_llm.errors import UsageError
from ping_llm.measurements.ids import Ids
from ping_llm.splits.novelty import Novelty

#: Methods by name, from the one that uses the least information to those that use the most.
BASELINES: dict[str, Callable[[], Method]] = {
    "global": Global,
    "by source": BySource,
    "by destination": ByDestination,
    "prefixes": Prefixes,
    "vivaldi": Vivaldi,
    "dmfsgd": Dmfsgd,
    "neighbours": Neighbours,
    "boosted": Boosted,
    "embeddings": Embeddings,
    "relations": Relations,
    "relations tuned": RelationsTuned,
    "pair trained": partial(PairHistory, "trained"),
    "pair hour": partial(PairHistory, "hour"),
    "pair median": partial(PairHistory, "median"),
    "pair weighted": partial(PairHistory, "weighted"),
    "pair recent": partial(PairHistory, "recent"),
    "pair last": partial(PairHistory, "last"),
}

#: Package that is needed to fit a method or to read its weights, and the extra that installs it. Answers do
#: not need it.
FITTED_BY = {
    "boosted": ("sklearn", "evaluate"),
    "embeddings": ("jax", "query"),
    "relations": ("safetensors", "query"),
    "relations tuned": ("jax", "query"),
}


def make(name: str) -> Method:
    return BASELINES[full_name(name)]()


def full_name(name: str) -> str:
    """Return the full name of a method: `last` is short for `pair last`, `by-source` means `by source`."""
    spaced = name.strip().replace("-", " ")
    for candidate in (spaced, f"pair {spaced}"):
        if candidate in BASELINES:
            return candidate
    raise UsageError(f"there is no method {name!r}; choose from: {', '.join(BASELINES)}")


def usable() -> tuple[str, ...]:
    """Names of the methods whose packages are installed; some are fitted by scikit-learn or JAX."""
    missing = [name for name, (package, _) in FITTED_BY.items() if importlib.util.find_spec(package) is None]
    return tuple(name for name in BASELINES if name not in missing)


def kept_classes() -> list[type]:
    """Classes that fitted methods consist of, for `answer.state`."""
    return [
        Global, BySource, ByDestination, Prefixes, Vivaldi, Dmfsgd, Neighbours, Boosted, Embeddings,
        Relations, RelationsTuned, PairMatrix, PairHistory, Trees, Ends, Entries, FailureRates, Medians,
        Novelty, Ids, RttDistributions,
    ]  # fmt: skip
