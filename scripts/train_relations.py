"""Train the network of the method `relations` on studies, and write its weights.

    python scripts/train_relations.py STUDY… --out relations.safetensors

STUDY is measurements (a folder of `ping-llm ingest` or `ping-llm simulate`), or a folder of many such folders
(`ping-llm simulate --worlds`). docs/base.md has the commands.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from ping_llm.answer.methods import relation_network as network
from ping_llm.answer.methods.relation_training import batches, pool
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids, pairs_of
from ping_llm.measurements.parquet import read_measurements

#: A study has the share (pairs / MOST_PAIRS) ** 0.5, at most 1, since few pairs are soon memorised.
#: A folder of worlds has SHARE_OF_WORLDS.
MOST_PAIRS, SHARE_OF_WORLDS = 20_000, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", type=Path, nargs="+", help="Folders of measurements.")
    parser.add_argument("--out", type=Path, required=True, help="File of the weights to write.")
    parser.add_argument("--steps", type=int, default=20_000, help="Training steps.")
    parser.add_argument("--questions", type=int, default=80_000, help="Distinct questions per study.")
    parser.add_argument("--weights", type=Path, help="Weights to start from.")
    parser.add_argument("--rate", type=float, default=2e-3, help="Learning rate.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    pools, shares = [], []
    for path in options.studies:
        several = read_studies(path)
        pairs = len(Ids(pairs_of(several[0].src, several[0].dst)))
        shares.append(SHARE_OF_WORLDS if len(several) > 1 else min(1.0, (pairs / MOST_PAIRS) ** 0.5))
        pools.append(pool(several, int(options.questions * shares[-1]), random))
        print(f"{path.name}: {len(pools[-1][1]):,} questions, share {shares[-1]:.2f}", flush=True)
    weights = load_file(options.weights) if options.weights else network.initial(random)
    told = Told(options.steps)
    made = network.train(weights, batches(pools, shares, random), options.steps, options.rate, told)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(made, options.out)


class Told:
    """Callback that prints the mean bits every 500 steps."""

    def __init__(self, steps: int):
        self.steps, self.bits, self.began = steps, [], time.monotonic()

    def __call__(self, number: int, bits: float) -> None:
        self.bits.append(bits)
        if len(self.bits) == 500:
            seconds = time.monotonic() - self.began
            print(
                f"step {number + 1} of {self.steps}, {seconds:.0f} s, {np.mean(self.bits):.4f} bits",
                flush=True,
            )
            self.bits = []


def read_studies(path: Path) -> list[Columns]:
    worlds = sorted(path.glob("*/world.json"))
    return [read_measurements(world.parent) for world in worlds] or [read_measurements(path)]


if __name__ == "__main__":
    sys.exit(main())
