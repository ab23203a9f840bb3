"""Measure the accuracy of `base` with few measurements: excerpts of a study, and one question about each.

    python scripts/judge_excerpts.py STUDY [--count 250] [--model base]

STUDY is measurements (a folder of `ping-llm ingest`). docs/base.md has the figures.
"""

import argparse
from pathlib import Path

import numpy as np

from ping_llm.answer.base import BaseModel
from ping_llm.answer.questions import NAMES
from ping_llm.measurements.parquet import read_measurements
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.model.packaged import NAME, base_folder
from ping_llm.splits.questions import excerpts
from ping_llm.tables import table

#: Edges of the classes by number of known measurements.
EDGES = (1, 10, 50, 301)

#: Least number of questions in a row of the table.
LEAST = 10

#: Random seed of the excerpts; 0 draws those that a recipe is fitted to.
SEED = 99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="Folder of measurements.")
    parser.add_argument("--count", type=int, default=250, help="Largest number of excerpts.")
    parser.add_argument("--model", default=NAME, help="`base`, or an export with a recipe.")
    options = parser.parse_args()
    folder = base_folder(options.model)
    if folder is None:
        parser.error(f"{options.model} is neither `base` nor an export with a recipe")
    model = BaseModel.at(folder)
    asked: dict[tuple[int, int], list[list[float]]] = {}
    for train, test in excerpts(read_measurements(options.study), options.count, EDGES[-1] - 1, seed=SEED):
        stack, queries, rtt = model.recipe.stack(train, model), test.queries(), test.asked.rtt
        made = stack.answer(model, queries, test.context)
        answers = made.distributions
        if rtt[0] == NO_REPLY:
            figures = [np.nan, np.nan, answers.bits(rtt)[0], np.nan]
        else:
            low, high = answers.quantile([0.05, 0.95])[0]
            figures = [
                abs(answers.point[0] - rtt[0]),
                answers.crps(rtt)[0],
                answers.bits(rtt)[0],
                float(low <= rtt[0] <= high),
            ]
        size = int(np.searchsorted(EDGES, len(train), side="right"))
        asked.setdefault((int(made.evidence.kind[0]), size), []).append(figures)
    rows = []
    for (kind, size), several in sorted(asked.items()):
        if len(several) < LEAST:
            continue
        error, crps, bits, inside = np.array(several).T
        known = f"{EDGES[size - 1]} to {EDGES[size] - 1}"
        means = f"{np.nanmean(crps):.1f}", f"{bits.mean():.2f}", f"{np.nanmean(inside):.0%}"
        rows.append((NAMES[kind], known, len(several), f"{np.nanmedian(error):.2f}", *means))
    print(
        table(rows, ("kind of question", "measurements", "asked", "median error", "CRPS", "bits", "in 90 %"))
    )


if __name__ == "__main__":
    main()
