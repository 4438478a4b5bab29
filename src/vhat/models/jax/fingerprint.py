"""The mark of a function: whether it is still what it was when its model was made.

A compiled program keeps the numbers that the function closed over when it was traced. Were they changed afterwards,
the shapes that are compiled already would go on with the old ones and new shapes would take the new: the answer would
depend on how many rows are asked. So a function is traced on a small example again whenever it is compiled, and
refused where the program or a number in it has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

__all__ = ["mark", "python_function"]

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def mark(function: Callable[..., Any], *example: Any) -> str:
    """Return a digest of the program that ``function`` is for arguments like ``example``, its constants included."""
    with jax.enable_x64(True):  # through a new function each time: JAX remembers what it has traced
        traced = jax.make_jaxpr(partial(function))(*example)
    digest = hashlib.blake2b(_ADDRESS.sub("", str(traced.jaxpr)).encode(), digest_size=16)
    for constant in _constants(traced):
        array = np.asarray(constant)
        digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def python_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside ``jax.jit``, which would answer from its own memory."""
    inside = getattr(function, "__wrapped__", None)
    return inside if callable(inside) and hasattr(function, "lower") else function


def _constants(program: Any) -> Iterator[Any]:
    """The numbers in a program and in the programs inside it, in order."""
    yield from getattr(program, "consts", ())
    for equation in getattr(program, "jaxpr", program).eqns:
        yield from (entry.val for entry in equation.invars if hasattr(entry, "val"))
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from _constants(inner)


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
