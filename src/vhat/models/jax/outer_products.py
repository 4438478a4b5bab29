"""Gradients of dense layers as outer products, found in the program that JAX traces.

If a parameter matrix ``W`` is used once in the program of one row, in a product ``z = h W`` with a vector, then the
gradient of an output in W is the outer product of h and d, the gradient in z. One pass over many rows computes h and d
of all rows for the cost of a gradient of the loss. The gradients themselves, one matrix per row, are never formed.
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
"""One entry per leaf: the pair (K, a), (K, b) of an outer product, or a 1-tuple of the gradients (K, size)."""

_CALLS = ("jit", "pjit")
"""Operations that call a program."""
_UNCHANGED = ("convert_element_type", "copy", "copy_p")
"""Operations that return their argument, if its dtype stays the same."""


@dataclass(frozen=True)
class _Weight:
    """A leaf whose product with a vector is looked for, during the evaluation of a program.

    Attributes:
        leaf: Its index among the leaves.
        value: Its value, or the transpose of it.
        transposed: Whether ``value`` is the transpose.
    """

    leaf: int
    value: Any
    transposed: bool = False


class _NotOuter(Exception):  # noqa: N818  (a result, caught in this module)
    """A leaf has another use than one product with a vector."""

    def __init__(self, leaf: int) -> None:
        self.leaf = leaf


_OnProduct = Callable[[_Weight, int, Any, Any], Any]
"""Callback for a product of a weight with a vector. Its arguments are the weight, the axis of the leaf that is summed
over, the vector and the product. Its result replaces the product in the program."""


def find_outer(f: Callable[[Sequence[Any], Any], Any], leaves: Sequence[Any], x: Any) -> dict[int, Any]:
    """Find the matrices among the leaves whose gradients are outer products for all values of leaves and row.

    Args:
        f: Maps leaves and one row to the outputs, (K,).
        leaves: Arrays or their shapes and types.
        x: One row, or its shape and type.

    Returns:
        For the index of each such leaf, the shape and type of its product with a vector.
    """
    candidates = {number for number, leaf in enumerate(leaves) if len(leaf.shape) == 2 and min(leaf.shape) > 1}
    while candidates:
        products: dict[int, Any] = {}

        def record(weight: _Weight, axis: int, vector: Any, product: Any, products: Any = products) -> Any:
            del axis, vector
            if weight.leaf in products:  # a second product
                raise _NotOuter(weight.leaf)
            products[weight.leaf] = jax.ShapeDtypeStruct(product.shape, product.dtype)
            return product

        try:
            jax.eval_shape(lambda leaves, x: _evaluate(f, leaves, x, candidates, record), leaves, x)  # noqa: B023
        except _NotOuter as found:
            # Start again without this leaf, which is then an ordinary array.
            candidates = candidates - {found.leaf}
            continue
        return products  # does not contain leaves that the program does not use
    return {}


def row_factors(
    f: Callable[[Sequence[Any], Any], Any], leaves: Sequence[Any], x: Any, outer: Mapping[int, Any]
) -> Factors:
    """Return the gradients of every output at one row, by leaf.

    Args:
        f: Maps leaves and one row to the outputs, (K,).
        leaves: Parameters.
        x: One row.
        outer: The result of :func:`find_outer`.
    """
    summed_axes: dict[int, int] = {}

    def run(probes: Mapping[int, Any], others: Mapping[int, Any]) -> tuple[Any, dict[int, Any]]:
        """Evaluate f with a zero added to each product, so that the derivative in it is d; return the vectors h too."""
        vectors: dict[int, Any] = {}

        def add_probe(weight: _Weight, axis: int, vector: Any, product: Any) -> Any:
            vectors[weight.leaf] = vector.reshape(-1)
            summed_axes[weight.leaf] = axis
            return product + probes[weight.leaf]

        every = [others.get(number, leaf) for number, leaf in enumerate(leaves)]
        return _evaluate(f, every, x, set(outer), add_probe), vectors

    probes = {number: jnp.zeros(product.shape, product.dtype) for number, product in outer.items()}
    others = {number: leaf for number, leaf in enumerate(leaves) if number not in outer}
    outputs, pull_back, vectors = jax.vjp(run, probes, others, has_aux=True)
    in_probes, in_others = jax.vmap(pull_back)(jnp.eye(len(outputs), dtype=outputs.dtype))

    def factors(number: int) -> tuple[Any, ...]:
        if number not in outer:
            return (in_others[number].reshape(len(outputs), -1),)
        d = in_probes[number].reshape(len(outputs), -1)
        h = jnp.broadcast_to(vectors[number], (len(outputs), *vectors[number].shape))
        return (h, d) if summed_axes[number] == 0 else (d, h)

    return tuple(factors(number) for number in range(len(leaves)))


def _evaluate(
    f: Callable[..., Any], leaves: Sequence[Any], x: Any, candidates: set[int], on_product: _OnProduct
) -> Any:
    """Evaluate f, with a call of ``on_product`` at the product of a candidate leaf with a vector.

    Raises:
        _NotOuter: When a candidate is used in any other way than in a transposition or a product with one vector.
    """
    flat, structure = jax.tree.flatten(x)
    closed = jax.make_jaxpr(lambda leaves, *rows: f(leaves, jax.tree.unflatten(structure, rows)))(list(leaves), *flat)
    arguments = [_Weight(number, leaf) if number in candidates else leaf for number, leaf in enumerate(leaves)]
    output = _run(closed.jaxpr, closed.consts, [*arguments, *flat], on_product)[0]
    if isinstance(output, _Weight):
        raise _NotOuter(output.leaf)
    return output


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], on_product: _OnProduct) -> list[Any]:
    """Evaluate a program some of whose arguments may be weights."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _results(equation, [read(variable) for variable in equation.invars], on_product)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _weights(inputs: Sequence[Any]) -> list[_Weight]:
    return [value for value in inputs if isinstance(value, _Weight)]


def _apply(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the results of an operation on arrays."""
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair before JAX 0.10
    result = equation.primitive.bind(*functions, *inputs, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def _results(equation: Any, inputs: list[Any], on_product: _OnProduct) -> list[Any]:
    """Return the results of an operation some of whose arguments may be weights."""
    weights = _weights(inputs)
    if not weights:
        return _apply(equation, inputs)
    weight = weights[0]
    name = equation.primitive.name
    if name in _CALLS:
        inner = equation.params["jaxpr"]
        return _run(inner.jaxpr, inner.consts, inputs, on_product)
    if name == "transpose":
        value = _apply(equation, [weight.value])[0]
        return [replace(weight, value=value, transposed=not weight.transposed)]
    if name in _UNCHANGED and equation.outvars[0].aval.dtype == weight.value.dtype:
        return [weight]
    if name == "dot_general" and len(weights) == 1:
        return [_product(equation, inputs, weight, on_product)]
    raise _NotOuter(weight.leaf)


def _product(equation: Any, inputs: list[Any], weight: _Weight, on_product: _OnProduct) -> Any:
    """Return the product of a weight with a vector."""
    (left, right), batches = equation.params["dimension_numbers"]
    first = inputs[0] is weight
    summed = left if first else right  # the axes of the weight that are summed over
    other = right if first else left
    vector = inputs[1] if first else inputs[0]
    if any(batches) or len(summed) != 1 or vector.size != vector.shape[other[0]]:  # not a product with one vector
        raise _NotOuter(weight.leaf)
    product = _apply(equation, [weight.value if value is weight else value for value in inputs])[0]
    axis = 1 - summed[0] if weight.transposed else summed[0]  # of the leaf itself
    return on_product(weight, axis, vector, product)
