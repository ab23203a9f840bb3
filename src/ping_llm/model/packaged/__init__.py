"""Names and folders of the packaged model and of other models with a recipe."""

from importlib import resources
from pathlib import Path

#: Name of the packaged model wherever a run can be named, and its folder below this one.
NAME = "base"

#: File with the mixture of network and simple methods. An export that has it answers about any data.
RECIPE = "recipe.json"

#: File next to the recipe with the errors that simple methods make on other data.
ERRORS = "errors.safetensors"

#: File with the weights of the method `relations`.
RELATIONS = "relations.safetensors"

#: File of a tuned run with the weights of `relations tuned`, trained on the run's data.
TUNED_RELATIONS = "relations-tuned.safetensors"

#: Files and folders by which a run or an export is recognised.
_RUN = "run.json"
_OF_A_MODEL = (_RUN, "checkpoints", "export", "config.json")


def packaged() -> Path:
    return Path(str(resources.files(__name__) / NAME))


def base_folder(source: str | Path) -> Path | None:
    """The folder of a model with a recipe, if `source` names one.

    `base` is the packaged model, unless a folder of that name holds a run or an export.
    """
    path = Path(source)
    if str(source) == NAME and not any((path / part).exists() for part in _OF_A_MODEL):
        return packaged()
    return path if (path / RECIPE).is_file() else None


def answers_from_nothing(source: str | Path) -> bool:
    """Whether `source` names a model with a recipe but without its own data, which a tuned model has."""
    folder = base_folder(source)
    return folder is not None and not (folder / _RUN).is_file()
