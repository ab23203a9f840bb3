"""The model in the package: where it is, and what it is called."""

from importlib import resources
from pathlib import Path

#: Its folder below this one, and its name wherever a run can be named.
NAME = "base"


def packaged() -> Path:
    return Path(str(resources.files(__name__) / NAME))


def is_packaged(source: str | Path) -> bool:
    """Whether a run's name means the packaged model: a folder of that name goes before."""
    return str(source) == NAME and not Path(NAME).exists()
