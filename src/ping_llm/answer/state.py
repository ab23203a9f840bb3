"""Conversion of fitted objects to plain data and back: a JSON tree and named arrays. No pickle.

Only classes that the reader lists can be created, and each may reject inconsistent values (`check`). An array
that occurs in two objects is stored once.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def pack(value: Any) -> tuple[Any, Arrays]:
    """Return the tree and the arrays of a value made of numbers, texts, arrays, containers and plain objects.

    All attributes of an object are stored, except those that its class lists in `NOT_KEPT`.
    """
    arrays: Arrays = {}
    return _pack(value, arrays), arrays


def _pack(value: Any, arrays: Arrays) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        content = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        name = hashlib.sha256(content).hexdigest()[:16]
        arrays[name] = array
        return {"array": name}
    if isinstance(value, (list, tuple)):
        return {"list": [_pack(part, arrays) for part in value]}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _pack(part, arrays) for key, part in value.items()}}
    left_out = getattr(type(value), "NOT_KEPT", ())
    fields = {name: _pack(part, arrays) for name, part in vars(value).items() if name not in left_out}
    return {"object": type(value).__name__, "fields": fields}


def unpack(tree: Any, arrays: Mapping[str, np.ndarray], classes: Sequence[type]) -> Any:
    """Return the value of a tree.

    Args:
      classes: classes that may be created.

    Raises:
      ValueError: the tree names another class, or its values are inconsistent.
    """
    return _unpack(tree, arrays, {cls.__name__: cls for cls in classes})


def _unpack(tree: Any, arrays: Mapping[str, np.ndarray], classes: dict[str, type]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        if tree["array"] not in arrays:
            raise ValueError(f"the array {tree['array']} is missing")
        return arrays[tree["array"]]
    if "list" in tree:
        return tuple(_unpack(part, arrays, classes) for part in tree["list"])
    if "dict" in tree:
        return {key: _unpack(part, arrays, classes) for key, part in tree["dict"].items()}
    name = tree.get("object")
    if name not in classes:
        raise ValueError(f"{name!r} is not a class that can be stored")
    made: Any = object.__new__(classes[name])
    for field, part in tree["fields"].items():
        object.__setattr__(made, field, _unpack(part, arrays, classes))
    check = getattr(made, "check", None)
    if check is not None:
        check()
    return made
