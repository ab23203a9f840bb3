"""The model in the package, and others of its kind: what they are called, and where they are."""

from importlib import resources
from pathlib import Path

#: Its folder below this one, and its name wherever a run can be named.
NAME = "base"

#: What makes an export a model that answers about any data: how its network and simple methods are mixed.
RECIPE = "recipe.json"

#: Beside the recipe: the errors that simple methods make about other data.
ERRORS = "errors.safetensors"

#: The weights of the method `relations`.
RELATIONS = "relations.safetensors"

#: What a run or an export has.
_RUN = "run.json"
_OF_A_MODEL = (_RUN, "checkpoints", "export", "config.json")


def packaged() -> Path:
    return Path(str(resources.files(__name__) / NAME))


def base_folder(source: str | Path) -> Path | None:
    """The folder of a model of this kind, if that is what a run's name means.

    `base` is the packaged one, unless a folder of that name holds a run or an export.
    """
    path = Path(source)
    if str(source) == NAME and not any((path / part).exists() for part in _OF_A_MODEL):
        return packaged()
    return path if (path / RECIPE).is_file() else None


def answers_from_nothing(source: str | Path) -> bool:
    """Whether a run's name means a model of this kind that brings no data of its own, as a tuned one does."""
    folder = base_folder(source)
    return folder is not None and not (folder / _RUN).is_file()
