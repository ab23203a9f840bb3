"""Tuning of the packaged model to data without `train`: weights and calibration of its mixture are adjusted.

Where JAX is installed, `relations tuned` is added to the components. The packaged network was not trained on
the data, so questions from every division of the data can be used. The network of a fitted run was trained on
most of them, so only held-out measurements can be used there.
"""

from dataclasses import replace
from pathlib import Path

from ping_llm.answer.base import BaseModel
from ping_llm.answer.methods.relations_tuned import RelationsTuned
from ping_llm.answer.recipe import LEARNED
from ping_llm.answer.recipe_fitting import tuned_recipe
from ping_llm.answer.stack import FOLDER
from ping_llm.answer.stacking import parts_of
from ping_llm.errors import PingError
from ping_llm.fit.calibrate import about
from ping_llm.fit.held_out import further_splits, held_out
from ping_llm.fit.options import FitOptions
from ping_llm.measurements.columns import Columns
from ping_llm.model import export

#: Largest number of held-out questions of each kind: the network takes 20 to 30 ms per question.
QUESTIONS = 160


def tune(run: Path, start: Path, train: Columns, options: FitOptions) -> None:
    """Write a copy of the model `start` to `run`, with a mixture that is tuned to these data.

    Raises:
      PingError: nothing can be held out.
    """
    model = BaseModel.at(start, data=False)
    most = min(options.stack_questions, QUESTIONS)
    learned, tests = held_out(train, options.held_out, most)
    if not tests:
        raise PingError("no measurement is held out to tune with: give more data")
    further = list(further_splits(train, options.held_out, most // 2, tests))
    divisions = [(known, parts_of(asked, most // 4)) for known, asked in [(learned, tests), *further]]
    recipe = tuned_recipe(model.recipe, model, divisions)
    if LEARNED in recipe.components:
        # Trained once, on all that may be learned from. What the run is asked about later is only indexed.
        recipe = replace(recipe, tuned_relations=RelationsTuned(recipe.relations).fit(train).weights)
    export.export(start, run)
    replace(recipe, about=recipe.about | {"tuned_to": about(train)["trained_on"]}).save(run)


def keep_methods(run: Path, rows: Path) -> None:
    """Fit the simple methods to all rows and save them, so that a query need not wait for fitting."""
    BaseModel.at(run, rows).save_methods(run / FOLDER)
