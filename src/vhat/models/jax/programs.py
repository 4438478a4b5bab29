"""Traced programs (jaxprs): the programs inside of operations, casts to narrower floats, and the memory written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["inner_programs", "narrow_casts", "written_bytes"]

_CALLS = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
"""Operations that contain a program and return its results, which are not counted twice."""


def inner_programs(equation: Any) -> Iterator[Any]:
    """Yield the programs in the parameters of an operation, with or without constants (``ClosedJaxpr``, ``Jaxpr``)."""
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
        if _is_program(value):
            yield value


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def narrow_casts(jaxpr: Any) -> list[str]:
    """Return the operations of a traced model that convert float64 to a narrower float, as descriptions."""
    found: list[str] = []
    for equation in jaxpr.eqns:
        argument_bits = [jnp.finfo(v.aval.dtype).bits for v in equation.invars if _is_float(v)]
        results = [v.aval.dtype for v in equation.outvars if _is_float(v)]
        narrow = [str(dtype) for dtype in results if jnp.finfo(dtype).bits < 64]
        if narrow and 64 in argument_bits:
            found.append(f"{equation.primitive.name} to {narrow[0]}")
        for program in inner_programs(equation):
            found.extend(narrow_casts(getattr(program, "jaxpr", program)))
    return found


def _is_float(variable: Any) -> bool:
    return hasattr(variable.aval, "dtype") and jnp.issubdtype(variable.aval.dtype, jnp.floating)


def written_bytes(jaxpr: Any) -> int:
    """Return the size of the results of all operations in a program, which its derivative may have to keep, in bytes.

    An operation that contains a program adds the size of that program, times the number of iterations of a loop if it
    is known. This is an upper bound: fused operations do not write their results.
    """
    total = 0
    for equation in jaxpr.eqns:
        iterations = equation.params.get("length", 1)
        inner = [getattr(program, "jaxpr", program) for program in inner_programs(equation)]
        total += iterations * sum(map(written_bytes, inner))
        if equation.primitive.name not in _CALLS:
            total += sum(_bytes(variable.aval) for variable in equation.outvars)
    return total


def _bytes(aval: Any) -> int:
    """Return the size of an array, 0 for values that are no arrays (tokens)."""
    if not (hasattr(aval, "dtype") and hasattr(aval, "size")):
        return 0
    return int(aval.size) * int(aval.dtype.itemsize)
