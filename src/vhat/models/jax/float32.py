"""Evaluation of a linear function in float32 that was linearised in float64.

After training, the kinks of a ReLU network often lie exactly on data points. Rounding parameters and inputs to float32
would move points across the kinks. Here the linearisation is computed in float64; only its stored values, and the
products with them, are rounded to float32.
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
"""Operations that call a program once, with the parameter that holds the program."""


class CannotNarrowError(Exception):
    """The function contains a loop or another construct whose precision cannot be changed from outside."""


def narrowed(linear: Callable[[Any], Any], like: Any) -> Callable[[Any], Any]:
    """Return ``linear`` as a function from float32 to float32.

    Args:
        linear: A linear function of one array, returned by ``jax.linearize``.
        like: An array with the shape and type of its argument.

    Raises:
        CannotNarrowError: When the returned function is called, if the conversion is not possible.
    """
    closed = jax.make_jaxpr(linear)(like)
    return lambda v: _run(closed.jaxpr, closed.consts, [v])[0]


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Evaluate a traced program with all float64 arrays and dtypes replaced by float32."""
    variables = (*jaxpr.constvars, *jaxpr.invars)
    values = dict(zip(variables, map(_narrow_array, (*consts, *arguments)), strict=True))

    def read(variable: Any) -> Any:
        return _narrow_array(jnp.asarray(variable.val)) if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _apply(equation, [read(variable) for variable in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any]) -> list[Any]:
    """Return the results of one operation."""
    primitive = equation.primitive
    params = equation.params
    if primitive.name in _INLINED:
        inner = params[_INLINED[primitive.name]]
        return _run(inner.jaxpr, inner.consts, inputs)
    if any(hasattr(value, "jaxpr") or hasattr(value, "eqns") for value in jax.tree.leaves(list(params.values()))):
        raise CannotNarrowError(primitive.name)  # a program, such as the body of a loop, that is not inlined
    result = primitive.bind(*inputs, **{name: _narrow_dtype(value) for name, value in params.items()})
    return list(result) if primitive.multiple_results else [result]


def _narrow_array(array: Any) -> Any:
    return array.astype(jnp.float32) if array.dtype == jnp.float64 else array


def _narrow_dtype(value: Any) -> Any:
    return np.dtype(np.float32) if isinstance(value, np.dtype) and value == np.float64 else value
