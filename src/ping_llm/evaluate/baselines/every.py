"""Every baseline by name."""

from collections.abc import Callable
from functools import partial

from ping_llm.errors import UsageError
from ping_llm.evaluate.baselines.base import Baseline
from ping_llm.evaluate.baselines.boosted import Boosted
from ping_llm.evaluate.baselines.by_end import ByDestination, BySource
from ping_llm.evaluate.baselines.dmfsgd import Dmfsgd
from ping_llm.evaluate.baselines.global_ import Global
from ping_llm.evaluate.baselines.neighbours import Neighbours
from ping_llm.evaluate.baselines.pair_history import PairHistory
from ping_llm.evaluate.baselines.prefixes import Prefixes
from ping_llm.evaluate.baselines.vivaldi import Vivaldi

#: From what knows nothing to what knows most.
BASELINES: dict[str, Callable[[], Baseline]] = {
    "global": Global,
    "by source": BySource,
    "by destination": ByDestination,
    "prefixes": Prefixes,
    "vivaldi": Vivaldi,
    "dmfsgd": Dmfsgd,
    "neighbours": Neighbours,
    "boosted": Boosted,
    "pair trained": partial(PairHistory, "trained"),
    "pair hour": partial(PairHistory, "hour"),
    "pair median": partial(PairHistory, "median"),
    "pair weighted": partial(PairHistory, "weighted"),
    "pair recent": partial(PairHistory, "recent"),
    "pair last": partial(PairHistory, "last"),
}


def make(name: str) -> Baseline:
    if name not in BASELINES:
        raise UsageError(f"there is no method {name!r}; choose from: {', '.join(BASELINES)}")
    return BASELINES[name]()
