"""Split a nested document into JSON and arrays, and join them again without changing a bit.

A *document* consists of dicts, lists, tuples, strings, numbers, None and NumPy arrays. `split` returns the part that
JSON can hold, and the arrays by name; `join` is its inverse. A value that JSON cannot express, such as a tuple or an
infinity, is encoded as a dict whose first key begins with ``$``.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vhat.checks import LARGEST
from vhat.errors import StoreError

__all__ = ["Document", "check_array", "digest", "is_plain", "join", "split"]

Document = dict[str, Any]
"""A document whose outermost level is a dict."""

_NATIVE = frozenset(
    {"bool", "float16", "float32", "float64"} | {f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
)
"""The dtypes of safetensors. Arrays of other dtypes are stored as bytes."""
_BYTES = frozenset("fcMmUS")
"""Kinds of dtype that can be stored as bytes, beside integers: no objects and no records."""


def split(document: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Split a document into JSON and arrays.

    Returns:
        The part that JSON can hold, and C-contiguous arrays by their path in the document.

    Raises:
        StoreError: Naming the path of a value that a document cannot hold.

    Examples:
        >>> split({"scaler": {"mean": np.zeros(2)}, "level": float("inf")})
        ({'scaler': {'mean': {'$array': 'scaler/mean'}}, 'level': {'$float': 'inf'}}, {'scaler/mean': array([0., 0.])})
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(document, "", arrays), arrays


def join(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the document whose parts :func:`split` returned."""
    if isinstance(plain, list):
        return [join(value, arrays) for value in plain]
    if not isinstance(plain, dict):
        return plain
    kind = next(iter(plain), "")
    if not kind.startswith("$"):
        return {key: join(value, arrays) for key, value in plain.items()}
    if kind == "$array":
        return _decode_array(plain, arrays)
    if kind == "$float":
        return float(plain[kind])
    parts = join(plain[kind], arrays)
    return tuple(parts) if kind == "$tuple" else dict(parts)


def check_array(name: str, array: Any, shape: tuple[int, ...], *, least: float = -np.inf) -> np.ndarray:
    """Check that a value of a document is a numeric array of this shape, and return it.

    Args:
        name: The name of the value in messages.
        array: The value.
        shape: The required shape.
        least: Lower bound of the numbers. They must also be finite and at most ``LARGEST`` in magnitude.

    Raises:
        StoreError: If it is anything else.
    """
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.kind not in "fiub":
        found = f"shape {array.shape}" if isinstance(array, np.ndarray) else reprlib.repr(array)
        raise StoreError(f"the saved {name} is malformed: it is {found} and not numbers of shape {shape}.")
    if not np.all((np.abs(array) <= LARGEST) & (array >= least)):
        raise StoreError(
            f"the saved {name} is malformed: it has numbers that are not finite, above {LARGEST:g} or below {least:g}."
        )
    return array


def is_plain(value: Any) -> bool:
    """Return whether a document can hold this value without loss."""
    try:
        split(value)
    except StoreError:
        return False
    return True


def digest(document: Any) -> str:
    """Return the SHA-256 of a document: structure, dtypes, shapes and every bit of its arrays."""
    plain, arrays = split(document)
    found = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def _encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return the JSON form of a value, and add its arrays to ``arrays`` under their paths."""
    if isinstance(value, np.generic) and value.dtype.name in _NATIVE:
        value = value.item()
    if isinstance(value, str):
        return str(value)  # np.str_ becomes str
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if type(value) is dict:
        return _encode_dict(value, path, arrays)
    if type(value) in (list, tuple):
        parts = [_encode(part, f"{path}/{index}", arrays) for index, part in enumerate(value)]
        return {"$tuple": parts} if type(value) is tuple else parts
    if type(value) is np.ndarray:
        return _encode_array(value, path, arrays)
    raise StoreError(
        f"{path.lstrip('/') or 'the document'} is a {type(value).__module__}.{type(value).__qualname__}, which a file "
        "without code cannot hold. Only numbers, text, plain containers and arrays can be kept."
    )


def _encode_dict(value: dict[Any, Any], path: str, arrays: dict[str, np.ndarray]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(part, f"{path}/{key}", arrays) for key, part in value.items()}
    # Keys that are not text, such as numbers, and keys that begin with "$" are stored as pairs.
    parts = [[_encode(key, path, {}), _encode(part, f"{path}/{key}", arrays)] for key, part in value.items()]
    return {"$dict": parts}


def _encode_array(array: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> Document:
    """Add an array to ``arrays``, and return its entry in the document.

    The entry also holds what C-contiguous bytes do not tell: the order of the axes in memory, and an unusual dtype.
    """
    name = path.lstrip("/") or "array"
    while name in arrays:  # {"a": {"b": ...}, "a/b": ...} has two arrays at the path a/b
        name += "'"
    entry: Document = {"$array": name}
    # The order of the axes in memory determines in which order BLAS adds, and so the last bit of a product.
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    if not array.flags.c_contiguous and array.transpose(axes).flags.c_contiguous:
        array = array.transpose(axes)
        entry["axes"] = axes
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray turns the shape () into (1,)
    if array.dtype.name not in _NATIVE or not array.dtype.isnative:
        if array.dtype.kind not in _BYTES | {"i", "u"}:
            raise StoreError(f"{name} is an array of dtype {array.dtype}, which cannot be kept. Convert it to numbers.")
        entry |= {"dtype": array.dtype.str, "shape": list(array.shape)}
        array = np.frombuffer(array.tobytes(), np.uint8)
    arrays[name] = array
    return entry


def _decode_array(entry: Document, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the array of an entry, with its dtype and the order of its axes in memory."""
    name = entry["$array"]
    if not isinstance(name, str) or name not in arrays:
        raise StoreError(f"the document names an array {reprlib.repr(name)} that the file of arrays does not hold.")
    array = arrays[name]
    if "dtype" in entry:
        dtype = np.dtype(str(entry["dtype"]))
        if dtype.kind not in _BYTES | {"i", "u"}:
            raise StoreError(f"the array {name} has dtype {dtype}, which a document cannot hold.")
        array = np.frombuffer(array.tobytes(), dtype).reshape(entry["shape"]).copy()
    if "axes" not in entry:
        return array
    if sorted(entry["axes"]) != list(range(array.ndim)):
        raise StoreError(f"the array {name} has {array.ndim} axes, and the document puts {entry['axes']} in order.")
    return array.transpose(np.argsort(entry["axes"]))
