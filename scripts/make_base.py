"""Make the packaged model: export the weights of a run, and fit the recipe on studies.

    python scripts/make_base.py RUN --out FOLDER --relations FILE --without FILE:STUDY,STUDY … STUDY…

STUDY is measurements (a folder of `ping-llm ingest` or `ping-llm simulate`). FILE is what train_relations.py
writes. Each study's questions are answered with weights that were trained without it. docs/base.md has the
commands.
"""

import argparse
import json
from pathlib import Path

from safetensors.numpy import load_file

from ping_llm.answer.model import Model
from ping_llm.answer.recipe_fitting import COMPONENTS, Study, fit_recipe
from ping_llm.fit.held_out import held_out
from ping_llm.measurements.parquet import read_measurements
from ping_llm.model.export import export
from ping_llm.model.packaged import NAME
from ping_llm.splits.holdout import SplitOptions, fitting
from ping_llm.splits.questions import excerpts

#: Largest number of measurements of an excerpt.
LARGEST_EXCERPT = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="Run whose network is packaged.")
    parser.add_argument("studies", type=Path, nargs="+", help="Folders of measurements.")
    parser.add_argument("--out", type=Path, required=True, help="Folder to write.")
    parser.add_argument(
        "--relations", type=Path, required=True, help="Weights of `relations` for the recipe."
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="FILE:STUDY,…",
        help="Weights that were trained without these studies; --relations answers for the others.",
    )  # fmt: skip
    parser.add_argument("--network", action="store_true", help="Use the run's network as a component.")
    parser.add_argument(
        "--most", type=int, default=300, help="Largest number of questions per kind and study."
    )
    parser.add_argument("--excerpts", type=int, default=300, help="Small sets of measurements per study.")
    options = parser.parse_args()
    relations = load_file(options.relations)
    weights = {}
    for each in options.without:
        file, _, names = each.rpartition(":")
        weights |= dict.fromkeys(names.split(","), load_file(file))
    studies = []
    for path in options.studies:
        columns = read_measurements(path)
        splits = fitting(SplitOptions(), columns)
        train, tests = held_out(columns, splits, options.most)
        small = list(excerpts(columns, options.excerpts, LARGEST_EXCERPT))
        studies.append(Study(path.name, train, tests, small, weights.pop(path.name, relations)))
        print(path.name, len(train), {test.name: len(test.asked) for test in tests}, flush=True)
    if weights:
        parser.error(f"--without names no study: {', '.join(weights)}")
    model = Model.load(options.run, data=False)
    recipe = fit_recipe(model, studies, relations, (*COMPONENTS, *([NAME] if options.network else [])))
    export(options.run, options.out)
    recipe.save(options.out)
    print(json.dumps(recipe.as_dict(), indent=1))


if __name__ == "__main__":
    main()
