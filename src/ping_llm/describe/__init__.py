"""Description of data: figures and samples of a table, of splits or of raw input."""

from ping_llm.describe.run import Description, describe
from ping_llm.describe.sample import sample

__all__ = ["Description", "describe", "sample"]
