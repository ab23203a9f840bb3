"""Tune the packaged model to data without training: weights and calibration of its mixture move, no more.

Its network has seen nothing of the data, so every division of them can ask it. A fitted run's network was
trained on most of them, and only what it was not trained on can judge it.
"""

from dataclasses import replace
from pathlib import Path

from ping_llm.answer.base import BaseModel
from ping_llm.answer.stack import FOLDER
from ping_llm.answer.stacking import parts_of
from ping_llm.errors import PingError
from ping_llm.fit.calibrate import about
from ping_llm.fit.held_out import further_splits, held_out
from ping_llm.fit.options import FitOptions
from ping_llm.measurements.columns import Columns
from ping_llm.model import export

#: Held-out questions of each kind, at most: the network takes 20 to 30 ms for one.
QUESTIONS = 160


def tune(run: Path, start: Path, train: Columns, options: FitOptions) -> None:
    """Make `run` a model of the kind of `start`, whose mixture serves these data.

    Raises:
      PingError: nothing can be held out.
    """
    model = BaseModel.at(start, data=False)
    most = min(options.stack_questions, QUESTIONS)
    learned, tests = held_out(train, options.held_out, most)
    if not tests:
        raise PingError("nothing is held out to tune with: bring more data")
    further = list(further_splits(train, options.held_out, most // 2, tests))
    divisions = [(known, parts_of(asked, most // 4)) for known, asked in [(learned, tests), *further]]
    recipe = model.recipe.tuned(model, divisions)
    export.export(start, run)
    replace(recipe, about=recipe.about | {"tuned_to": about(train)["trained_on"]}).save(run)


def keep_methods(run: Path, rows: Path) -> None:
    """Fit the simple methods to all of the rows and keep them, so that a question need not wait for it."""
    BaseModel.at(run, rows).save_methods(run / FOLDER)
