"""Settings of a training: a config file, overrides, and the `network_*` keys added to MaxText's.

A config is a MaxText yml (`base_config: base.yml` includes MaxText's defaults) with added keys. Each option
of `ContextOptions` is a key with the prefix `network_`, so that each default is defined once.
"""

import dataclasses
import difflib
import enum
import os
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pydantic

from ping_llm.contexts.options import ContextOptions
from ping_llm.errors import UsageError
from ping_llm.files import cache_folder, say_no_cache

PREFIX = "network_"
PRETOKENIZED = "pretokenized"
_DEFAULT_PER_DEVICE = 12.0  # default of per_device_batch_size in MaxText's base.yml


class DatasetType(enum.StrEnum):
    """Dataset types added to MaxText's."""

    NETWORK = "network"


@dataclasses.dataclass(frozen=True)
class NetworkKeys:
    """Added keys besides the sampling options; docs/training.md describes them."""

    network_data_format: Literal["probe_chunks", "network_parquet", "pretokenized"] = "probe_chunks"
    network_train_files: str = ""
    network_eval_files: str = ""
    # Sequences per step over all devices. Unlike per_device_batch_size it does not depend on the number of
    # hosts, so a run can resume with another number of processes. 0: per_device_batch_size is used.
    network_batch_size: int = 0
    network_epochs: int = 0  # 0: endless; otherwise it is an error if the data end before `steps`
    network_on_bad_row: Literal["stop", "skip"] = "stop"
    # Number of loader threads of the training process, if grain_worker_count is 0. One makes 20 to 46
    # million tokens per second.
    network_threads: int = 1
    network_rtt_loss_weight: float = (
        1.0  # weight of the tokens of a result in the gradient; see train/token_loss.py
    )
    network_samples: int = 6  # number of questions answered during training; see train/samples.py
    network_rtt_smoothing: float = (
        0.0  # label smoothing of the second byte of an RTT: standard deviation in steps
    )
    network_teacher: str = ""  # run whose distributions of RTT bytes are learned; see train/teacher.py
    network_teacher_weight: float = 1.0  # share of the teacher in the target; the rest is the true byte
    grain_debug_mode: bool = False
    grain_visualization_dir: str = ""


def fields() -> dict[str, tuple[Any, Any]]:
    """All keys added to MaxText's config class: name, type and default."""
    keys = _typed(NetworkKeys)
    keys |= {PREFIX + name: value for name, value in _typed(ContextOptions).items()}
    return keys


def _typed(options: type) -> dict[str, tuple[Any, Any]]:
    hints = typing.get_type_hints(options)
    return {field.name: (hints[field.name], _default(field)) for field in dataclasses.fields(options)}


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def context_options(config: Any) -> ContextOptions:
    """The sampling options of a config, as ContextOptions."""
    names = [field.name for field in dataclasses.fields(ContextOptions)]
    return ContextOptions(**{name: getattr(config, PREFIX + name) for name in names})


def loader_options(config: Any, evaluation: bool = False) -> dict[str, Any]:
    """Loader arguments of `Batches`; none of them changes the content of batches."""
    of = "_eval" if evaluation else ""
    options = {
        "workers": getattr(config, f"grain_worker_count{of}"),
        "per_worker_buffer_size": getattr(config, f"grain_per_worker_buffer_size{of}"),
        "ram_budget_mb": config.grain_ram_budget_mb,
        "threads": config.network_threads,
        "on_bad_row": config.network_on_bad_row,
        "data_format": config.network_data_format,
    }
    for name, least in (("workers", -1), ("per_worker_buffer_size", 1), ("ram_budget_mb", 0), ("threads", 0)):
        if options[name] < least:
            key = {"threads": "network_threads", "workers": f"grain_worker_count{of}"}.get(name)
            raise UsageError(f"{key or f'grain_{name}'}={options[name]}: it must be at least {least}")
    if options["data_format"] == PRETOKENIZED and options["workers"] > 0:
        raise UsageError(
            f"grain_worker_count{of}={options['workers']}: stored contexts are packed by threads; give "
            f"grain_worker_count{of}=0 and network_threads"
        )
    return options


def per_device_batch_size(keys: Mapping[str, Any], devices: int) -> dict[str, str]:
    """Convert network_batch_size to MaxText's per_device_batch_size for the given number of devices."""
    total = int(keys.get("network_batch_size") or 0)
    if not total:
        return {}
    if keys.get("per_device_batch_size", _DEFAULT_PER_DEVICE) != _DEFAULT_PER_DEVICE:
        raise UsageError("network_batch_size and per_device_batch_size exclude each other; give one of them")
    accumulated = int(keys.get("gradient_accumulation_steps") or 1)
    shares = devices * accumulated
    if total % shares:
        raise UsageError(
            f"network_batch_size={total} must be divisible by {devices} devices"
            + (f" and {accumulated} accumulation steps" if accumulated > 1 else "")
        )
    return {"per_device_batch_size": str(total // shares)}


def packaged() -> list[str]:
    """Names of the configs that come with the package, smallest first."""
    folder = resources.files("ping_llm.train") / "configs"
    names = [entry.name.removesuffix(".yml") for entry in folder.iterdir() if entry.name.endswith(".yml")]
    return sorted(names, key=lambda name: (name != "tiny", len(name), name))


def find(config: str) -> Path:
    """Find the file of a config, given as a path to a yml or as the name of a packaged one."""
    if config.endswith((".yml", ".yaml")) or os.sep in config:
        path = Path(config)
        if not path.is_file():
            raise UsageError(f"no config at {path}; packaged ones are {', '.join(packaged())}")
        return path
    if config not in packaged():
        raise UsageError(
            f"no packaged config is called {config!r}{_suggestion(config, packaged())}; "
            f"there are {', '.join(packaged())}, or give the path of a .yml"
        )
    return Path(str(resources.files("ping_llm.train") / "configs" / f"{config}.yml"))


def split_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Split `key=value` words, as in MaxText; of words with the same key, the last one counts."""
    keys = {}
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word!r} must be key=value, such as steps=1000")
        keys[key] = value
    return keys


def known_keys(config_class: type[pydantic.BaseModel]) -> list[str]:
    """All keys of the class and of the classes nested in it; base_config names the parent file."""
    keys = ["base_config"]
    for name, field in config_class.model_fields.items():
        keys.append(name)
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, pydantic.BaseModel):
            keys += known_keys(nested)
    return keys


def check_keys(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Reject an unknown key, with a suggestion."""
    known = list(known)
    for key in given:
        if key not in known:
            raise UsageError(f"{where}: no key is called {key!r}{_suggestion(key, known)}")


def _suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def compilation_cache() -> Path | None:
    """Folder of JAX's cache of compiled programs, which saves most of the compiling of a second launch."""
    folder = cache_folder("jax")
    if folder is None:
        say_no_cache()
    return folder
