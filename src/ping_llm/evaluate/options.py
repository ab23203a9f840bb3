"""What an evaluation can be told, with every default."""

from dataclasses import dataclass, field

from ping_llm.evaluate.baselines.every import BASELINES
from ping_llm.evaluate.bootstrap import REPLICATES
from ping_llm.evaluate.splits import SplitOptions


@dataclass(frozen=True)
class EvaluateOptions:
    """Options.

    Attributes:
      splits: what is held out, where the data are not split already.
      queries: of each test, at most this many measurements are asked about, drawn at random; 0 is all.
      source_context: how many measurements of a new source may be looked back on, one test each.
      context_sizes: how many measurements of context the model is given, one by one.
      context_queries: of how many questions, since every size costs a pass of the model.
      address_questions: addresses of each end and IP version that are completed, by best-first search, which
        takes about a fifth of a second for each number of known bytes.
      replicates: of the bootstrap.
      baselines: names from `baselines.every`.
    """

    splits: SplitOptions = field(default_factory=SplitOptions)
    queries: int = 2000
    source_context: tuple[int, ...] = (0, 1, 2, 5, 10, 30)
    context_sizes: tuple[int, ...] = (0, 1, 2, 5, 10, 30, 1000)
    context_queries: int = 200
    address_questions: int = 20
    replicates: int = REPLICATES
    baselines: tuple[str, ...] = tuple(BASELINES)
    seed: int = 0
