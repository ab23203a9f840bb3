"""Looking at data: what a table, a sharding or raw input holds."""

from ping_llm.describe.run import Description, describe
from ping_llm.describe.sample import sample

__all__ = ["Description", "describe", "sample"]
