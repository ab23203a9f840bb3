"""Make the packaged model from a trained run: export its weights, and fit its recipe on studies.

    python scripts/make_base.py RUN --out FOLDER STUDY…

STUDY is measurements (a folder of `ping-llm ingest` or `ping-llm simulate`). docs/base.md has the commands.
"""

import argparse
import json
from pathlib import Path

from ping_llm.answer.model import Model
from ping_llm.answer.recipe import fit_recipe
from ping_llm.fit.held_out import held_out
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model.export import export
from ping_llm.splits.holdout import SplitOptions, fitting
from ping_llm.splits.questions import excerpts

#: Measurements of an excerpt, at most.
LARGEST_EXCERPT = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("studies", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=300, help="Questions of each kind and study.")
    parser.add_argument("--excerpts", type=int, default=300, help="Small sets of measurements per study.")
    options = parser.parse_args()
    studies, small = [], []
    for path in options.studies:
        columns = read_measurements(path)
        splits = fitting(SplitOptions(), columns)
        train, tests = held_out(columns, splits, options.most)
        studies.append((path.name, train, tests))
        small += list(excerpts(columns, options.excerpts, LARGEST_EXCERPT))
        print(path.name, len(train), {test.name: len(test.asked) for test in tests}, flush=True)
    model = Model.load(options.run, data=False)
    recipe = fit_recipe(model, studies, small)
    export(options.run, options.out)
    recipe.save(options.out)
    print(json.dumps(recipe.as_dict(), indent=1))


if __name__ == "__main__":
    main()
