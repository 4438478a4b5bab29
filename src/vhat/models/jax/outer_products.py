"""Gradients of dense layers as outer products, read off the program that JAX traces.

Where a matrix of parameters ``W`` enters the program of one row once, in a product ``z = h W`` with a vector, the
gradient of an output in W is ``h (x) d`` with d the gradient in z. Both come out of one pass over many rows for the
price of a gradient of the loss; the gradients themselves, a matrix a row, are never formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

__all__ = ["Factors", "find_outer", "row_factors"]

Factors = tuple[tuple[Any, ...], ...]
"""A leaf each: the pair (K, a), (K, b) of an outer product, or the gradients (K, size) themselves."""

_CALLS = ("jit", "pjit")
_UNCHANGED = ("convert_element_type", "copy", "copy_p")


@dataclass(frozen=True)
class _Weight:
    """A leaf on its way to the product that it enters: its number, its value, and whether that is its transpose."""

    leaf: int
    value: Any
    flipped: bool = False


class _NotOuter(Exception):  # noqa: N818  (a finding, caught in this module)
    """A leaf is used in another way than in one product with a vector."""

    def __init__(self, leaf: int) -> None:
        self.leaf = leaf


_Tap = Callable[[_Weight, int, Any, Any], Any]
"""From a weight, the axis of the leaf that is summed over, the vector and the product to the product to go on with."""


def find_outer(f: Callable[[Sequence[Any], Any], Any], leaves: Sequence[Any], x: Any) -> dict[int, Any]:
    """Find the matrices among the leaves whose gradients are outer products, whatever their values.

    Args:
        f: From leaves and one row to the outputs, (K,).
        leaves: Arrays or their shapes and types.
        x: One row, or its shape and type.

    Returns:
        The shape and type of the product that each of them enters, by the number of the leaf.
    """
    sought = {number for number, leaf in enumerate(leaves) if len(leaf.shape) == 2 and min(leaf.shape) > 1}
    while sought:
        products: dict[int, Any] = {}

        def note(weight: _Weight, axis: int, vector: Any, product: Any, products: Any = products) -> Any:
            del axis, vector
            if weight.leaf in products:
                raise _NotOuter(weight.leaf)
            products[weight.leaf] = jax.ShapeDtypeStruct(product.shape, product.dtype)
            return product

        try:
            jax.eval_shape(lambda leaves, x: _tapped(f, leaves, x, sought, note), leaves, x)  # noqa: B023
        except _NotOuter as found:
            sought = sought - {found.leaf}
            continue
        return products  # a leaf that is not used at all is in none
    return {}


def row_factors(
    f: Callable[[Sequence[Any], Any], Any], leaves: Sequence[Any], x: Any, outer: Mapping[int, Any]
) -> Factors:
    """Return the gradients of every output at one row, leaf by leaf.

    Args:
        f: From leaves and one row to the outputs, (K,).
        leaves: Parameters.
        x: One row.
        outer: What :func:`find_outer` found.
    """
    axes: dict[int, int] = {}

    def run(probes: Mapping[int, Any], others: Mapping[int, Any]) -> tuple[Any, dict[int, Any]]:
        vectors: dict[int, Any] = {}

        def tap(weight: _Weight, axis: int, vector: Any, product: Any) -> Any:
            vectors[weight.leaf], axes[weight.leaf] = vector.reshape(-1), axis
            return product + probes[weight.leaf]

        every = [others.get(number, leaf) for number, leaf in enumerate(leaves)]
        return _tapped(f, every, x, set(outer), tap), vectors

    probes = {number: jnp.zeros(product.shape, product.dtype) for number, product in outer.items()}
    others = {number: leaf for number, leaf in enumerate(leaves) if number not in outer}
    outputs, back, vectors = jax.vjp(run, probes, others, has_aux=True)
    slopes, plain = jax.vmap(back)(jnp.eye(len(outputs), dtype=outputs.dtype))

    def factors(number: int) -> tuple[Any, ...]:
        if number not in outer:
            return (plain[number].reshape(len(outputs), -1),)
        slope = slopes[number].reshape(len(outputs), -1)
        vector = jnp.broadcast_to(vectors[number], (len(outputs), *vectors[number].shape))
        return (vector, slope) if axes[number] == 0 else (slope, vector)

    return tuple(factors(number) for number in range(len(leaves)))


def _tapped(f: Callable[..., Any], leaves: Sequence[Any], x: Any, sought: set[int], tap: _Tap) -> Any:
    """Evaluate f, calling ``tap`` at the product that a sought leaf enters.

    Raises:
        _NotOuter: When a sought leaf meets anything but its transpose, or a product with one vector.
    """
    flat, structure = jax.tree.flatten(x)
    closed = jax.make_jaxpr(lambda leaves, *rows: f(leaves, jax.tree.unflatten(structure, rows)))(list(leaves), *flat)
    arguments = [_Weight(number, leaf) if number in sought else leaf for number, leaf in enumerate(leaves)]
    output = _run(closed.jaxpr, closed.consts, [*arguments, *flat], tap)[0]
    if isinstance(output, _Weight):
        raise _NotOuter(output.leaf)
    return output


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], tap: _Tap) -> list[Any]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        found = _with_weight(equation, inputs, tap) if _weights(inputs) else _bind(equation, inputs)
        values.update(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _weights(inputs: Sequence[Any]) -> list[_Weight]:
    return [value for value in inputs if isinstance(value, _Weight)]


def _bind(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # before JAX 0.10 a pair
    found = equation.primitive.bind(*functions, *inputs, **params)
    return list(found) if equation.primitive.multiple_results else [found]


def _with_weight(equation: Any, inputs: list[Any], tap: _Tap) -> list[Any]:
    name, params, weight = equation.primitive.name, equation.params, _weights(inputs)[0]
    if name in _CALLS:
        inner = params["jaxpr"]
        return _run(inner.jaxpr, inner.consts, inputs, tap)
    if name == "transpose":
        return [replace(weight, value=_bind(equation, [weight.value])[0], flipped=not weight.flipped)]
    if name in _UNCHANGED and equation.outvars[0].aval.dtype == weight.value.dtype:
        return [weight]
    if name == "dot_general" and len(_weights(inputs)) == 1:
        return [_product(equation, inputs, weight, tap)]
    raise _NotOuter(weight.leaf)


def _product(equation: Any, inputs: list[Any], weight: _Weight, tap: _Tap) -> Any:
    (left, right), batches = equation.params["dimension_numbers"]
    first = inputs[0] is weight
    own, other = (left, right) if first else (right, left)
    vector = inputs[1] if first else inputs[0]
    if any(batches) or len(own) != 1 or vector.size != vector.shape[other[0]]:
        raise _NotOuter(weight.leaf)
    product = _bind(equation, [weight.value if value is weight else value for value in inputs])[0]
    return tap(weight, 1 - own[0] if weight.flipped else own[0], vector, product)
