"""Files of weights, and checks of their names, shapes, types and values.

JAX would not report wrong weights: it clamps an index into a short embedding, broadcasts a norm of one value,
and ignores a layer that is not in the configuration. In all these cases, answers would look plausible.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm import __version__
from ping_llm.errors import PingError
from ping_llm.model.checkpoint import Tensors
from ping_llm.model.config import ModelConfig

#: Largest magnitude of a weight. Trained ones are below 100; from 10¹⁹ on a norm's square overflows float32.
MAX_WEIGHT = 1e6

#: Key of the checksum in the file's metadata. A tool that rewrites the weights drops it; then nothing is
#: compared.
_CHECKSUM = "ping_llm.crc32"

_FLOATS = ("F32", "F16", "BF16")
_TYPES = {"float32": "F32", "float16": "F16"}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a network by their Hugging Face names."""
    width, inner, kv = config.width, config.heads * config.head_dim, config.kv_heads * config.head_dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config.vocabulary, width),
    }
    for index in range(config.layers):
        at = f"model.layers.{index}"
        found |= {
            f"{at}.input_layernorm.weight": (width,),
            f"{at}.self_attn.q_proj.weight": (inner, width),
            f"{at}.self_attn.k_proj.weight": (kv, width),
            f"{at}.self_attn.v_proj.weight": (kv, width),
            f"{at}.self_attn.o_proj.weight": (width, inner),
            f"{at}.post_attention_layernorm.weight": (width,),
            f"{at}.mlp.gate_proj.weight": (config.mlp_width, width),
            f"{at}.mlp.up_proj.weight": (config.mlp_width, width),
            f"{at}.mlp.down_proj.weight": (width, config.mlp_width),
        }
    return found


def write(path: Path, config: ModelConfig, tensors: Tensors) -> None:
    """Write a safetensors file with the checksum of its weights and their configuration.

    The library is not used: it writes the metadata in random order, so that the same weights give different
    bytes, makes files that only their owner can read, and has a separate error class for a full disk.
    """
    about = {"format": "pt", "ping_llm": __version__, _CHECKSUM: checksum(config, tensors)}
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name in sorted(tensors):
        start, end = end, end + tensors[name].nbytes
        kind = _TYPES[tensors[name].dtype.name]
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name]).data)


def checksum(config: ModelConfig, tensors: Tensors) -> str:
    """Checksum of a network, which differs for other weights or another configuration."""
    llama = config.to_llama() | {"rope_theta": float(config.rope_theta)}
    value = zlib.crc32(json.dumps(llama, sort_keys=True).encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(np.ascontiguousarray(tensors[name]).view(np.uint8), value)
    return f"{value:08x}"


def read(path: Path, config: ModelConfig) -> Tensors:
    """Read the tensors of a safetensors file as float32, and check that they match `config`.

    Names, types and shapes are compared in the file's header, before weights are read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            names = file.keys()
            _check_names(names, config, path)
            for name, wanted in shapes(config).items():
                header = file.get_slice(name)
                kind = header.get_dtype()
                if kind not in _FLOATS:
                    allowed = ", ".join(_FLOATS)
                    raise PingError(f"{path}: {name} has the type {kind}; it must be one of {allowed}")
                _check_shape(name, tuple(header.get_shape()), wanted, path)
            stored = {name: file.get_tensor(name) for name in names}
            written = (file.metadata() or {}).get(_CHECKSUM)
    except (SafetensorError, OSError) as error:
        raise PingError(f"cannot read {path}: {error}; export the run again") from error
    if written is not None and written != checksum(config, stored):
        raise PingError(
            f"{path} is damaged, or was written with another config.json (the checksum differs); "
            "export the run again"
        )
    tensors = {name: np.asarray(array, np.float32) for name, array in stored.items()}
    _check_values(tensors, path)
    return tensors


def check(config: ModelConfig, tensors: Tensors, origin: Path) -> None:
    """Raise a PingError if tensors do not match `config`, or have implausible values."""
    _check_names(tensors, config, origin)
    for name, wanted in shapes(config).items():
        _check_shape(name, tensors[name].shape, wanted, origin)
    _check_values(tensors, origin)


def _check_names(names: Iterable[str], config: ModelConfig, origin: Path) -> None:
    there, wanted = set(names), set(shapes(config))
    layers = f"a network of {config.layers} layers"
    if missing := sorted(wanted - there):
        raise PingError(f"{origin} has no {missing[0]}, which {layers} has; export the run again")
    if left := sorted(there - wanted):
        raise PingError(f"{origin} holds {left[0]}, which {layers} does not have; export the run again")


def _check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...], origin: Path) -> None:
    if shape != wanted:
        raise PingError(f"{origin}: {name} has the shape {shape}; by the configuration it must be {wanted}")


def _check_values(tensors: Tensors, origin: Path) -> None:
    for name, tensor in tensors.items():
        # A comparison with NaN is false, so this finds NaN as well.
        bad = ~(np.abs(tensor) <= MAX_WEIGHT)
        if bad.any():
            raise PingError(
                f"{origin}: {name} holds the weight {tensor[bad][0]}; weights must be numbers of at most "
                f"{MAX_WEIGHT:g}: the file is damaged, or its training failed"
            )
