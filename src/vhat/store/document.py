"""A nested document with arrays in it, taken apart for the disk and put together again to the last bit.

A *document* is made of dicts, lists, tuples, strings, numbers, None and NumPy arrays. `split` gives what JSON can hold
and the arrays by name; `join` is its inverse. What JSON has no word for is a dict with one key that begins with ``$``.
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

__all__ = ["Document", "digest", "is_plain", "join", "shaped", "split"]

Document = dict[str, Any]
"""A document whose outermost level is a dict."""

_NATIVE = frozenset(
    {"bool", "float16", "float32", "float64"} | {f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
)
"""The dtypes of safetensors; arrays of others are kept as bytes."""
_BYTES = frozenset("fcMmUS")
"""The kinds of dtype whose bytes are their meaning: no objects, no records."""


def split(document: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Take a document apart.

    Returns:
        What JSON can hold, and C-contiguous arrays by the path at which they stood.

    Raises:
        StoreError: Naming the place of something that a document cannot hold.

    Examples:
        >>> split({"scaler": {"mean": np.zeros(2)}, "level": float("inf")})
        ({'scaler': {'mean': {'$array': 'scaler/mean'}}, 'level': {'$float': 'inf'}}, {'scaler/mean': array([0., 0.])})
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(document, "", arrays), arrays


def join(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Put a document together again: the inverse of :func:`split`."""
    if isinstance(plain, list):
        return [join(value, arrays) for value in plain]
    if not isinstance(plain, dict):
        return plain
    kind = next(iter(plain), "")
    if not kind.startswith("$"):
        return {key: join(value, arrays) for key, value in plain.items()}
    if kind == "$array":
        return _unpacked(plain, arrays)
    if kind == "$float":
        return float(plain[kind])
    parts = join(plain[kind], arrays)
    return tuple(parts) if kind == "$tuple" else {key: value for key, value in parts}  # noqa: C416  (pairs are lists)


def shaped(name: str, array: Any, shape: tuple[int, ...], *, least: float = -np.inf) -> np.ndarray:
    """Return an array of a document that must have this shape, and numbers of usable size, at least ``least``.

    Raises:
        StoreError: For anything else.
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
    """Whether a document can hold this value, so that it comes back as it is."""
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
    if isinstance(value, np.generic) and value.dtype.name in _NATIVE:
        value = value.item()
    if value is None or type(value) in (bool, int) or isinstance(value, str):
        return str(value) if isinstance(value, str) else value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if type(value) is dict:
        return _encode_dict(value, path, arrays)
    if type(value) in (list, tuple):
        parts = [_encode(part, f"{path}/{index}", arrays) for index, part in enumerate(value)]
        return {"$tuple": parts} if type(value) is tuple else parts
    if type(value) is np.ndarray:
        return _packed(value, path, arrays)
    raise StoreError(
        f"{path.lstrip('/') or 'the document'} is a {type(value).__module__}.{type(value).__qualname__}, which a file "
        "without code cannot hold. Only numbers, text, plain containers and arrays can be kept."
    )


def _encode_dict(value: dict[Any, Any], path: str, arrays: dict[str, np.ndarray]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(part, f"{path}/{key}", arrays) for key, part in value.items()}
    parts = [[_encode(key, path, {}), _encode(part, f"{path}/{key}", arrays)] for key, part in value.items()]
    return {"$dict": parts}


def _packed(array: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> Document:
    """Name an array, and note what its C-contiguous bytes leave open: the order of its axes, an unusual dtype."""
    name = path.lstrip("/") or "array"
    while name in arrays:  # {"a": {"b": ...}, "a/b": ...}
        name += "'"
    note: Document = {"$array": name}
    # the order of the axes in memory decides in which order BLAS adds up, and so the last bit of a product
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    if not array.flags.c_contiguous and array.transpose(axes).flags.c_contiguous:
        array, note["axes"] = array.transpose(axes), axes
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes (1,) of ()
    if array.dtype.name not in _NATIVE or not array.dtype.isnative:
        if array.dtype.kind not in _BYTES | {"i", "u"}:
            raise StoreError(f"{name} is an array of dtype {array.dtype}, which cannot be kept. Convert it to numbers.")
        note |= {"dtype": array.dtype.str, "shape": list(array.shape)}
        array = np.frombuffer(array.tobytes(), np.uint8)
    arrays[name] = array
    return note


def _unpacked(note: Document, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    name = note["$array"]
    if not isinstance(name, str) or name not in arrays:
        raise StoreError(f"the document names an array {reprlib.repr(name)} that the file of arrays does not hold.")
    array = arrays[name]
    if "dtype" in note:
        dtype = np.dtype(str(note["dtype"]))
        if dtype.kind not in _BYTES | {"i", "u"}:
            raise StoreError(f"the array {name} has dtype {dtype}, which a document cannot hold.")
        array = np.frombuffer(array.tobytes(), dtype).reshape(note["shape"]).copy()
    if "axes" not in note:
        return array
    if sorted(note["axes"]) != list(range(array.ndim)):
        raise StoreError(f"the array {name} has {array.ndim} axes, and the document puts {note['axes']} in order.")
    return array.transpose(np.argsort(note["axes"]))
