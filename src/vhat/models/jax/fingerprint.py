"""Fingerprints of functions, to detect that a function has changed since its model was created.

A compiled program keeps the values that the function closed over when it was traced. If these values change
afterwards, shapes that are compiled already use the old values and new shapes use the new ones, so that the result
depends on the number of rows. Therefore a function is traced again on a small example whenever it is compiled, and an
error is raised if the program or a constant in it has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from vhat.models.jax.programs import inner_programs

__all__ = ["fingerprint", "python_function"]

_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""Memory addresses in printed programs, which differ between runs."""


def fingerprint(function: Callable[..., Any], *example: Any) -> str:
    """Return a digest of the traced program of ``function``, including its constants.

    Args:
        function: A function that JAX can trace.
        example: Arguments, or their shapes and types.
    """
    with jax.enable_x64(True):
        # JAX caches traces by function. The new partial object forces a new trace.
        traced = jax.make_jaxpr(partial(function))(*example)
    digest = hashlib.blake2b(_ADDRESS.sub("", str(traced.jaxpr)).encode(), digest_size=16)
    for constant in _constants(traced):
        array = np.asarray(constant)
        digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def python_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function inside ``jax.jit``, whose own cache would hide a change; else the function itself."""
    wrapped = getattr(function, "__wrapped__", None)
    if callable(wrapped) and hasattr(function, "lower"):
        return wrapped
    return function


def _constants(program: Any) -> Iterator[Any]:
    """Yield the constants of a program and of the programs inside it, in order."""
    yield from getattr(program, "consts", ())
    for equation in getattr(program, "jaxpr", program).eqns:
        yield from (entry.val for entry in equation.invars if hasattr(entry, "val"))
        for inner in inner_programs(equation):
            yield from _constants(inner)
