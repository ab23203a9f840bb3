"""Reading and checking of MaxText's config with the added keys."""

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import omegaconf
import pydantic
import yaml
from flax import nnx
from maxtext.configs import pyconfig, types
from maxtext.utils import maxtext_utils, model_creation_utils, train_utils

from ping_llm.errors import UsageError
from ping_llm.train import settings, wandb

DATASET_TYPE = settings.DatasetType.NETWORK

# MaxText's config class with the added keys. Its own dataset types are unchanged.
NetworkConfig: type[pydantic.BaseModel] = pydantic.create_model(  # type: ignore[call-overload]
    "NetworkConfig",
    __base__=types.MaxTextConfig,
    dataset_type=(types.DatasetType | settings.DatasetType, types.DatasetType.SYNTHETIC),
    **settings.fields(),
)


def read_config(path: Path, overrides: Iterable[str], run: Path) -> Any:
    """Return MaxText's config object for a yml and `key=value` overrides, checked and with all defaults.

    This initialises JAX's devices, so jax.distributed must be initialised before.
    """
    given = settings.split_overrides(overrides)
    try:
        merged: dict[str, Any] = dict(pyconfig._load_config(str(path)))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} is not a config: {error}") from error
    known = settings.known_keys(NetworkConfig)
    settings.check_keys(merged, known, str(path))
    settings.check_keys(given, known, "on the command line")
    fixed = {
        "run_name": run.name,
        "base_output_directory": str(run.resolve().parent),
        "skip_jax_distributed_system": "true",
        "hardware": given.get("hardware", _hardware()),
        "jax_cache_dir": given.get("jax_cache_dir", str(settings.compilation_cache() or "")),
        "log_config": given.get("log_config", "false"),
    }
    if (merged | given).get("wandb_project_name", wandb.THEIR_PROJECT) == wandb.THEIR_PROJECT:
        fixed["wandb_project_name"] = wandb.PROJECT
    fixed |= settings.per_device_batch_size(merged | given, jax.device_count())
    # By default JAX caches programs that took a second to compile. MaxText's setup has many that take less;
    # caching them too made compiling at a second launch three times shorter (42 s to 14 s on two busy cores).
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    words = [f"{key}={value}" for key, value in (given | fixed).items()]
    try:
        # The public initialize() ends the process on an invalid config; this is the same without that.
        return pyconfig.HyperParameters(
            pyconfig._initialize_pydantic(["", str(path), *words], config_class=NetworkConfig)
        )
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or path.name
        raise UsageError(f"{path.name}: {where}: {first['msg']}") from error
    except (ValueError, TypeError, AssertionError, omegaconf.errors.OmegaConfBaseException) as error:
        raise UsageError(f"{path.name}: {error}") from error


def own_keys(path: Path, overrides: Iterable[str]) -> str:
    """Return a yml that reproduces the training: all keys that differ from MaxText's base.yml."""
    ours = pyconfig._load_config(str(path))
    ours = omegaconf.OmegaConf.merge(ours, omegaconf.OmegaConf.from_cli(list(overrides)))
    theirs = pyconfig._load_config(str(Path(pyconfig.__file__).with_name("base.yml")))
    kept = {key: value for key, value in ours.items() if key not in theirs or theirs[key] != value}
    kept["base_config"] = "base.yml"
    return omegaconf.OmegaConf.to_yaml(omegaconf.OmegaConf.create(kept))


def _hardware() -> str:
    return {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}.get(jax.default_backend(), "cpu")


def sizes(config: Any) -> dict[str, float]:
    """Sizes of a model of this config, from abstract shapes, without computing arrays.

    Returns parameters, weight_bytes, optimizer_bytes (over all devices) and FLOPs per step on one device.
    """
    mesh = maxtext_utils.get_mesh_from_config(config)
    create_model, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh)
    _, optimizer = train_utils.create_training_optimizer(config, abstract, mesh=mesh)

    def create() -> tuple[Any, Any]:
        model = create_model()
        return nnx.state(model, nnx.Param), nnx.state(nnx.Optimizer(model, optimizer, wrt=nnx.Param))

    weights, states = nnx.eval_shape(create)
    with contextlib.redirect_stdout(io.StringIO()):
        teraflops, _, _ = maxtext_utils.calculate_tflops_training_per_device(config)
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(weights)),
        "weight_bytes": _bytes(weights),
        "optimizer_bytes": _bytes(states),
        "flops_per_device_step": teraflops * 1e12,
    }


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))
