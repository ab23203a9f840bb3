"""Does the model mean the same by a prefix as by the addresses in it?

A model trained on prefixes and on whole addresses answers for 203.0.113.0/24 in two ways: directly, and as
the mixture of its answers for the addresses. Nothing forces the two to agree; how far they are apart is
worth knowing.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.errors import UsageError
from ping_llm.query.complete import destination_tree
from ping_llm.query.context import Question
from ping_llm.query.distribution import RttDistribution, mix

if TYPE_CHECKING:
    from ping_llm.query.model import Model


@dataclass(frozen=True)
class Consistency:
    """The direct answer for a prefix beside the mixture over its addresses.

    Attributes:
      direct, mixture: the two distributions.
      covered: share of the prefix's probability that the mixed addresses have.
      distance: largest difference of the two distribution functions (Kolmogorov–Smirnov), 0 to 1.
    """

    direct: RttDistribution
    mixture: RttDistribution
    covered: float
    distance: float


def prefix_consistency(model: "Model", question: Question, most: int = 64) -> Consistency:
    """Compare P(rtt | prefix) with the mixture over the `most` most probable addresses of the prefix."""
    if question.dst is None or question.dst.is_whole:
        raise UsageError(f"the destination {question.dst} is not a prefix: there is nothing to mix")
    direct = model.rtt_many([question])[0].distribution
    tree = destination_tree(model, question, question.dst, question.dst.address_bits // 8)
    parts = tree.top(most).best
    answers = model.rtt_many([replace(question, dst=part.address) for part in parts])
    shares = [part.probability for part in parts]
    mixture = mix([answer.distribution for answer in answers], shares)
    edges = np.union1d(direct.edges, mixture.edges)
    distance = float(np.abs(direct.cdf(edges) - mixture.cdf(edges)).max())
    return Consistency(direct, mixture, float(sum(shares)), distance)
