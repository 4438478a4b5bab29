"""A fingerprint of test inputs, so that V of the same rows is not computed twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["fingerprint"]


def fingerprint(inputs: Any) -> bytes | None:
    """Return a digest of checked inputs: their structure, shapes and values.

    None for what is not made of arrays alone: a model may read the index or the names of a data frame.
    """
    digest = hashlib.blake2b(digest_size=32)
    try:
        for part in _parts(inputs):
            digest.update(part)
    except (TypeError, ValueError, RuntimeError):
        return None
    return digest.digest()


def _parts(inputs: Any) -> Iterator[bytes]:
    """Yield the bytes that tell inputs apart.

    Raises:
        TypeError: For objects that hold more than numbers.
    """
    if isinstance(inputs, Mapping):
        for key in inputs:
            yield repr(key).encode()
            yield from _parts(inputs[key])
    elif isinstance(inputs, tuple | list):
        yield f"({len(inputs)}".encode()
        for part in inputs:
            yield from _parts(part)
    else:
        array = np.asarray(inputs)
        if array.dtype.hasobject or hasattr(inputs, "iloc"):
            raise TypeError("not an array of numbers")
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
