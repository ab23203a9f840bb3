"""Checks for optional dependencies, and the extra that installs them: `pip install "ping-llm[query]"`."""

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


def _sentence(module: str, extra: str) -> str:
    return (
        f'this needs {module}, which is not installed: pip install "ping-llm[{extra}]" '
        f"(in a checkout: scripts/bootstrap.sh {extra})"
    )
