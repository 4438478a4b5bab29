"""Proof that a traced JAX program is affine in its parameters: see :mod:`vhat.models.affine`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from vhat.models.affine import Dependence, Linearity, combine

__all__ = ["dependence", "is_affine"]

_ALL = range(sys.maxsize)
"""All positions of arguments."""
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)
"""Operations that call one program with their arguments. The names differ between versions of JAX."""
_PROGRAM = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameter of a call that holds its program is one of these."""
_FIRST = Linearity(terms=(0,))
_BOTH = Linearity(terms=(0, 1))
_PRODUCT = Linearity(factors=(0, 1))
_OPERAND_AND_UPDATE = Linearity(terms=(0, 2))

_LINEAR = {
    # sums and products
    "add": _BOTH,
    "add_any": _BOTH,
    "sub": _BOTH,
    "neg": _FIRST,
    "mul": _PRODUCT,
    "div": _FIRST,
    "dot_general": _PRODUCT,
    "conv_general_dilated": _PRODUCT,
    "reduce_sum": _FIRST,
    "reduce_window_sum": _FIRST,
    "cumsum": _FIRST,
    "triangular_solve": Linearity(terms=(1,)),  # in the right-hand side, for a fixed matrix
    # rearrangements; positions, predicates and indices must not depend on the parameters
    "reshape": _FIRST,
    "transpose": _FIRST,
    "broadcast_in_dim": _FIRST,
    "squeeze": _FIRST,
    "expand_dims": _FIRST,
    "rev": _FIRST,
    "slice": _FIRST,
    "split": _FIRST,
    "concatenate": Linearity(terms=_ALL),
    "stack": Linearity(terms=_ALL),
    "unstack": _FIRST,
    "pad": _BOTH,
    "select_n": Linearity(terms=_ALL[1:]),
    "gather": _FIRST,
    "dynamic_slice": _FIRST,
    "dynamic_update_slice": _BOTH,
    "scatter": _OPERAND_AND_UPDATE,
    "scatter-add": _OPERAND_AND_UPDATE,
    "scatter_add": _OPERAND_AND_UPDATE,
    "copy": _FIRST,
    "copy_p": _FIRST,
    "convert_element_type": _FIRST,
}
"""Operations with the positions of the arguments in which they are linear."""
_MIN_BITS = 32
"""Width of the narrowest float that counts as real numbers. Narrower ones round so coarsely that a sum of them is a
step function."""


def is_affine(f: Callable[[Any, Any, Any], Any], fixed: Any, theta: Any, X: Any) -> bool:
    """Return whether ``f(fixed, theta, X)`` is proved to be affine in ``theta``, for all values of its arguments.

    Args:
        f: A function that JAX can trace.
        fixed: Arrays, or their shapes and types.
        theta: The parameters, an array or a tree of arrays, or their shapes and types.
        X: Inputs of a few rows, or their shapes and types.
    """
    return dependence(f, fixed, theta, X) <= Dependence.AFFINE


def dependence(f: Callable[[Any, Any, Any], Any], fixed: Any, theta: Any, X: Any) -> Dependence:
    """Return how ``f(fixed, theta, X)`` depends on ``theta``: see :func:`is_affine`."""
    traced = jax.make_jaxpr(f)(fixed, theta, X)
    parts = ((Dependence.CONSTANT, fixed), (Dependence.AFFINE, theta), (Dependence.INPUT, X))
    arguments = [kind for kind, tree in parts for _ in jax.tree.leaves(tree)]
    return max(_results(traced.jaxpr, arguments), default=Dependence.CONSTANT)


def _results(jaxpr: Any, arguments: Sequence[Dependence]) -> list[Dependence]:
    """Return the dependence of each result of a program, given that of its arguments."""
    known = dict.fromkeys(jaxpr.constvars, Dependence.CONSTANT)
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Dependence:
        return Dependence.CONSTANT if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        found = _equation(equation, [read(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _equation(equation: Any, inputs: list[Dependence]) -> list[Dependence]:
    """Return the dependence of each result of one operation."""
    name = equation.primitive.name
    params = equation.params
    strongest = max(inputs, default=Dependence.CONSTANT)
    if strongest < Dependence.AFFINE:
        return [strongest] * len(equation.outvars)
    if name in _CALLS:
        program = next((params[key] for key in _PROGRAM if key in params), None)
        return _call(program, inputs, len(equation.outvars))
    if name == "scan":
        return _scan(params, inputs)
    if name == "cond":
        return _cond(params["branches"], inputs)
    found = combine(dict(enumerate(inputs)), _LINEAR.get(name))
    if name.startswith("scatter") and not _updates_affinely(params["update_jaxpr"]):
        found = Dependence.OTHER
    return [found if _is_wide_float(variable.aval) else Dependence.OTHER for variable in equation.outvars]


def _call(program: Any, inputs: list[Dependence], outputs: int) -> list[Dependence]:
    """Return the dependence of each result of a called program; OTHER if its arguments cannot be matched."""
    inner = getattr(program, "jaxpr", program)
    if inner is None or len(inner.invars) != len(inputs):
        return [Dependence.OTHER] * outputs
    return _results(inner, inputs)


def _scan(params: Any, inputs: list[Dependence]) -> list[Dependence]:
    """Return the dependence of each result of a loop, by a fixed point over its carried values.

    The dependence of a carried value can only grow, at most three times, so the iteration ends. By induction the fixed
    point holds for any number of iterations of the loop.
    """
    consts = params["num_consts"]
    carries = params["num_carry"]
    fixed = inputs[:consts]
    carried = inputs[consts : consts + carries]
    rows = inputs[consts + carries :]
    while True:
        found = _results(params["jaxpr"].jaxpr, [*fixed, *carried, *rows])
        grown = [max(pair) for pair in zip(carried, found[:carries], strict=True)]
        if grown == carried:
            return [*carried, *found[carries:]]
        carried = grown


def _cond(branches: Sequence[Any], inputs: list[Dependence]) -> list[Dependence]:
    """Return the largest dependence over the branches; OTHER where the parameters select the branch."""
    found = [_results(branch.jaxpr, inputs[1:]) for branch in branches]
    joined = [max(each) for each in zip(*found, strict=True)]
    if inputs[0] >= Dependence.AFFINE:
        return [Dependence.OTHER] * len(joined)
    return joined


def _updates_affinely(program: Any) -> bool:
    """Return whether a scatter combines old and new values affinely; ``.at[i].apply(f)`` is a scatter with f."""
    if program is None:
        return True
    inner = getattr(program, "jaxpr", program)
    return max(_results(inner, [Dependence.AFFINE] * len(inner.invars))) <= Dependence.AFFINE


def _is_wide_float(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= _MIN_BITS
