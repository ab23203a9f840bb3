"""Checks for optional dependencies, and the command that installs them."""

import importlib.util

from ping_llm.errors import PingError

#: Extra → third-party modules that our code imports from it.
MODULES = {
    "query": ("jax", "orbax", "safetensors"),
    "train": ("maxtext", "flax", "omegaconf", "pydantic", "tensorboardX"),
    "spark": ("pyspark",),
    "wandb": ("wandb",),
    "edge": ("onnxruntime",),
    "onnx": ("onnx", "onnxruntime"),
    "evaluate": ("sklearn", "threadpoolctl"),
    "serve": ("fastapi", "uvicorn"),
    "mcp": ("mcp",),
    "mmdb": ("maxminddb",),
}


def need_for_fit(minutes: float) -> None:
    """Check as `need` does for a fit with this training time; the error says what needs no training."""
    try:
        need("train" if minutes > 0 else "query")
    except PingError as error:
        if minutes == 0:
            raise
        raise PingError(
            f"{error}; or give --minutes 0, which tunes the packaged model and needs no MaxText"
        ) from None


def need(extra: str) -> None:
    """Check that the modules of an extra are installed, before any work begins.

    Raises:
      PingError: a module of the extra is not installed; the text says what to install.
    """
    for module in MODULES[extra]:
        if importlib.util.find_spec(module) is None:
            raise PingError(_sentence(module, extra))


def missing(error: ModuleNotFoundError) -> str:
    """A sentence that says what to install."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in MODULES.items():
        if module in modules:
            return _sentence(module, extra)
    return f"{error}: the installation is not complete; `ping-llm doctor` lists what is there"


def how_to_install(extra: str) -> str:
    """The command that installs an extra, and the one for a clone, since not every index has the package."""
    return f'pip install "ping-llm[{extra}]", or in a clone pip install -c constraints.txt ".[{extra}]"'


def _sentence(module: str, extra: str) -> str:
    return f"this needs {module}, which is not installed: {how_to_install(extra)}"
