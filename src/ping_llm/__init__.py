"""ping-llm learns the joint distribution of Internet latency measurements and answers questions about it.

    import ping_llm

    model = ping_llm.load("runs/demo")
    answer = model.rtt("192.0.2.1", "198.51.100.7", at="2024-05-01T12:00:00Z")
    answer.distribution.quantile([0.05, 0.5, 0.95])

What `__all__` lists is public and documented in docs/api.md. Everything else may move.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Batches",
    "Context",
    "Measurement",
    "Measurements",
    "Model",
    "PingError",
    "Question",
    "Remote",
    "RttAnswer",
    "RttDistribution",
    "Splits",
    "UsageError",
    "WatchOptions",
    "Watcher",
    "__version__",
    "addresses",
    "build_rows",
    "connect",
    "evaluate",
    "fit",
    "ingest",
    "load",
    "read",
    "split",
    "train",
]

if TYPE_CHECKING:
    from ping_llm._api import addresses, build_rows, connect, evaluate, fit, ingest, load, read, split, train
    from ping_llm.answer.context import Context, Question
    from ping_llm.answer.distribution import RttDistribution
    from ping_llm.answer.model import Model
    from ping_llm.answer.remote import Remote
    from ping_llm.answer.results import RttAnswer
    from ping_llm.contexts.batches import Batches
    from ping_llm.errors import PingError, UsageError
    from ping_llm.measurements.columns import Columns as Measurements
    from ping_llm.measurements.schema import Measurement
    from ping_llm.splits.holdout import Splits
    from ping_llm.watch.options import WatchOptions
    from ping_llm.watch.watcher import Watcher

#: Public name → where it is: module, and its name there if that is another.
_PLACES = {
    "Batches": "contexts.batches",
    "Context": "answer.context",
    "Measurement": "measurements.schema",
    "Measurements": "measurements.columns:Columns",
    "Model": "answer.model",
    "PingError": "errors",
    "Question": "answer.context",
    "Remote": "answer.remote",
    "RttAnswer": "answer.results",
    "RttDistribution": "answer.distribution",
    "Splits": "splits.holdout",
    "UsageError": "errors",
    "WatchOptions": "watch.options",
    "Watcher": "watch.watcher",
    "addresses": "_api",
    "build_rows": "_api",
    "connect": "_api",
    "evaluate": "_api",
    "fit": "_api",
    "ingest": "_api",
    "load": "_api",
    "read": "_api",
    "split": "_api",
    "train": "_api",
}


def __getattr__(name: str) -> Any:
    # Lazy: `import ping_llm` stands at the head of every command and must cost nothing.
    if name not in _PLACES:
        raise AttributeError(f"module 'ping_llm' has no attribute {name!r}")
    module, _, there = _PLACES[name].partition(":")
    try:
        found = getattr(importlib.import_module(f"ping_llm.{module}"), there or name)
    except ModuleNotFoundError as error:
        from ping_llm.errors import PingError
        from ping_llm.extras import missing

        raise PingError(missing(error)) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`ping_llm.ingest`, `train`, `fit` and `evaluate` are functions, and there are packages of these names.

    Importing a package binds it to its parent's attribute, which would put a module in the function's place.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
