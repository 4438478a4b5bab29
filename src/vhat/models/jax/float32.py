"""A linear function in single precision, with everything it was linearised at in double.

Where a kink sits on a data point, as it does on many after training, rounding the parameters and inputs to single
precision moves the point across. Here the linearisation is double: its residuals alone are rounded, and the products
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

__all__ = ["CannotNarrowError", "narrowed"]

_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


class CannotNarrowError(Exception):
    """The function holds a loop or another construct whose precision cannot be changed from outside."""


def narrowed(linear: Callable[[Any], Any], like: Any) -> Callable[[Any], Any]:
    """Return ``linear`` as a function from float32 to float32.

    Args:
        linear: What ``jax.linearize`` gave, of one array.
        like: An array of the shape and type that it takes.

    Raises:
        CannotNarrowError: At the call, where that is not possible.
    """
    closed = jax.make_jaxpr(linear)(like)
    return lambda v: _run(closed.jaxpr, closed.consts, [v])[0]


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Evaluate a traced program with every float64 array and type in it made float32."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), map(_single, (*consts, *arguments)), strict=True))

    def read(variable: Any) -> Any:
        return _single(jnp.asarray(variable.val)) if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        found = _apply(equation, [read(variable) for variable in equation.invars])
        values.update(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any]) -> list[Any]:
    primitive, params = equation.primitive, equation.params
    if primitive.name in _INLINED:
        inner = params[_INLINED[primitive.name]]
        return _run(inner.jaxpr, inner.consts, inputs)
    if any(hasattr(value, "jaxpr") or hasattr(value, "eqns") for value in jax.tree.leaves(list(params.values()))):
        raise CannotNarrowError(primitive.name)
    found = primitive.bind(*inputs, **{name: _narrow_type(value) for name, value in params.items()})
    return list(found) if primitive.multiple_results else [found]


def _single(array: Any) -> Any:
    return array.astype(jnp.float32) if array.dtype == jnp.float64 else array


def _narrow_type(value: Any) -> Any:
    return np.dtype(np.float32) if isinstance(value, np.dtype) and value == np.float64 else value
