"""ping-llm learns the joint distribution of Internet latency measurements and answers questions about it.

model = ping_llm.load("runs/demo")
answer = model.rtt("192.0.2.1", "198.51.100.7", at="2024-05-01T12:00:00Z")
answer.distribution.quantile([0.05, 0.5, 0.95])
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["Measurement", "Model", "__version__", "load"]

if TYPE_CHECKING:
    from pathlib import Path

    from ping_llm.query.model import Model
    from ping_llm.schema import Measurement


def load(run: "str | Path") -> "Model":
    """Load a run, a checkpoint or an export. Needs JAX, not MaxText."""
    from ping_llm.query.model import Model

    return Model.load(run)


def __getattr__(name: str) -> object:
    # Lazy: `import ping_llm` stands at the head of every command and must cost nothing.
    if name == "Measurement":
        from ping_llm.schema import Measurement

        return Measurement
    if name == "Model":
        from ping_llm.query.model import Model

        return Model
    raise AttributeError(f"module 'ping_llm' has no attribute {name!r}")
