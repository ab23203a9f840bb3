"""Relations, trained on: the network goes on learning from the data at hand before it answers.

The packaged network has learned from other studies how results of related pairs bear on each other. How far
they do differs between networks: how much a shared /16 says, how fast a pair's past goes stale, how well
sources agree. A minute of training on questions about the user's own measurements moves it there. It still
knows no address, so it cannot learn any by heart.

Mean bits of held-out questions of each kind, by networks that had not seen the study, before and after 300
steps (campaigns: 1,200): anycast campaigns 5.48 → 5.16, v6-path-inflation 4.96 → 4.77, hops of traceroutes
3.73 → 3.29, Starlink (3,047 measurements) 7.28 → 7.03, the dense series (10 sources, 3 destinations) 4.26 →
3.90. Half of the rate gains less; parts that are not mirrored, warped or thinned out change nothing beyond
noise.
"""

from typing import Self

import numpy as np

from ping_llm.answer.methods import relation_network as network
from ping_llm.answer.methods.relations import RELATED, Relations
from ping_llm.measurements.columns import Columns

#: Its name.
TUNED = f"{RELATED} tuned"

#: Half of the rate that the packaged network was trained with.
_RATE = 1e-3
#: One step per 8 pairs, within these numbers: more than 300 on v6-path-inflation's 900 pairs made new sources
#: worse. 600 take 50 s on two cores; 1,200 brought the campaigns another 0.03 bits.
PAIRS_PER_STEP, FEWEST_STEPS, STEPS = 8, 150, 600
#: Different questions for each step, of the 128 that it asks.
_QUESTIONS_PER_STEP = 24


class RelationsTuned(Relations):
    name = TUNED
    paper = "`relations`, trained on with the data at hand (docs/base.md)"

    def __init__(self, weights: network.Weights | None = None, steps: int = STEPS, seed: int = 0):
        super().__init__(weights)
        self._steps, self._seed = steps, seed

    @property
    def weights(self) -> network.Weights:
        return self._weights

    def fit(self, train: Columns) -> Self:
        from ping_llm.answer.methods.relation_training import FEWEST, batches, pool

        super().fit(train)
        replies = int(train.replied.sum())
        if replies >= FEWEST and self._steps:
            pairs = len(self._matrix.value)
            steps = min(self._steps, max(FEWEST_STEPS, pairs // PAIRS_PER_STEP))
            random = np.random.default_rng(self._seed)
            asked = pool([train], _QUESTIONS_PER_STEP * steps, random)
            self._weights = network.train(self._weights, batches([asked], [1.0], random), steps, _RATE)
        return self
