"""A synthetic Internet whose true distribution of results is known."""

from ping_llm.simulate.latency import Truth
from ping_llm.simulate.options import WorldOptions
from ping_llm.simulate.world import World
from ping_llm.simulate.write import simulate

__all__ = ["Truth", "World", "WorldOptions", "simulate"]
