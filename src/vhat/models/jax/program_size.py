"""Estimate of the memory that a traced program writes, before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

__all__ = ["written_bytes"]

_CALLS = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
"""Operations that contain a program and return its results, which are not counted twice."""


def written_bytes(jaxpr: Any) -> int:
    """Return the size of the results of all operations in a program, which its derivative may have to keep, in bytes.

    An operation that contains a program adds the size of that program, times the number of iterations of a loop if it
    is known. This is an upper bound: fused operations do not write their results.
    """
    total = 0
    for equation in jaxpr.eqns:
        iterations = equation.params.get("length", 1)
        total += iterations * sum(map(written_bytes, _programs(equation)))
        if equation.primitive.name not in _CALLS:
            total += sum(_bytes(variable.aval) for variable in equation.outvars)
    return total


def _programs(equation: Any) -> Iterator[Any]:
    """Yield the programs that an operation contains."""
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")):
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value


def _bytes(aval: Any) -> int:
    """Return the size of an array, 0 for values that are no arrays (tokens)."""
    if not (hasattr(aval, "dtype") and hasattr(aval, "size")):
        return 0
    return int(aval.size) * int(aval.dtype.itemsize)
