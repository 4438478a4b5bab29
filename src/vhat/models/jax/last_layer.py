"""The last linear layer of a JAX function as a problem of its own; the rest of the function runs once for each row.

The traced program (:mod:`vhat.models.jax.affine`) shows all leaves in which the predictions are affine. These must be
the weights and the bias of one linear layer. The inputs z of the layer are computed from the gradient of one output o
in the weights of one unit j, ``df_o / dW_j = M_oj z``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from vhat.errors import FixedParameterWarning, ModelError
from vhat.models.affine import Dependence
from vhat.models.jax import compiled as kernels
from vhat.models.jax import pytrees
from vhat.models.jax.affine import dependence
from vhat.models.jax.autodiff import JaxAutodiff
from vhat.models.jax.chunks import first_rows, pad
from vhat.models.leaves import leaf_slices
from vhat.models.linear_head import Head, HeadAutodiff
from vhat.models.problem import Problem
from vhat.models.protocols import ModelFacts, slices
from vhat.models.selection import listed

__all__ = ["JaxHead", "affine_paths", "last_layer_problem"]

_TOLERANCE = 1e-9
"""Largest relative difference between a prediction and that of the last layer, in float64."""
_FLOAT32_TOLERANCE = 1e-4
"""The same for a model that computes in float32."""
_BLOCK_BYTES = 2**25
"""Memory for the gradients of one block of rows, in bytes."""
_SEARCH_ROWS = 64
"""Number of rows on which the layer is identified."""
_TRACED_ROWS = 8
"""Number of rows in the example with which a function is traced."""


@dataclass(frozen=True, eq=False)
class JaxHead(HeadAutodiff):
    """The last layer of a JAX function: see :class:`vhat.models.linear_head.HeadAutodiff`.

    Attributes:
        base: The function, with the layer's leaves as its parameters.
        sample: The training inputs, in the user's structure.
        theta: The parameters of the layer, at which it is verified.
        output: The output o whose gradient gives the inputs of the layer.
        unit: The unit j of the layer in whose weights the gradient is taken.
        probed: Properties of the function, found when it was probed.
    """

    base: JaxAutodiff
    theta: Any
    output: int
    unit: int
    probed: ModelFacts

    def features(self, inputs: Any, /) -> np.ndarray:
        """Evaluate the function and return the inputs of its last layer, (m, q).

        Raises:
            ModelError: If a prediction is not that of the layer.
        """
        head = self.head
        base = self.base
        weight = leaf_slices(head.leaves)[head.weight]
        z = np.empty((base.count(inputs), head.inputs))
        for block in slices(len(z), _block_rows(base, len(head.mixing))):
            part = base.take(inputs, block)
            J = _gradients(base, self.theta, part)[:, self.output, weight]
            in_unit = J.reshape(len(J), head.inputs, head.units)[:, :, self.unit]
            z[block] = in_unit / head.mixing[self.output, self.unit]
            self._verify(z[block], base.predict(self.theta, part))
        return z

    def _verify(self, z: np.ndarray, f: np.ndarray) -> None:
        """Raise unless the predictions f are those of the layer with inputs z."""
        if not (np.isfinite(f).all() and np.isfinite(z).all()):
            return  # a later check raises, and names the rows
        of_layer = self.head.predict(self.arrays.numpy(self.theta), z)
        size = max(np.abs(f).max(), np.abs(self.head.offset).max(), np.abs(of_layer).max())
        tolerance = _FLOAT32_TOLERANCE if self.probed.narrow_casts else _TOLERANCE
        if np.any(np.abs(f - of_layer) > tolerance * size):
            raise ModelError(
                "the prediction is not always that of the last linear layer: something else is added to it or "
                "multiplies it, in some rows. " + _remedy(_names(self.base))
            )

    def facts(self) -> ModelFacts:
        """Return the properties of the function."""
        return self.probed


def affine_paths(predict: Callable[[Any, Any], Any], params: Any, X: Any) -> tuple[str, ...]:
    """Return the names of the leaves in which the predictions are affine.

    Args:
        predict: The function.
        params: All of its parameters.
        X: Training inputs.

    Raises:
        ModelError: If there are none, or the predictions are not jointly affine in them.
    """
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", FixedParameterWarning)  # given when the problem is created
        theta, layout, fixed, _ = pytrees.flatten(params)
        rows = first_rows(pytrees.as_inputs(X, "X"), _TRACED_ROWS)
        leaves = layout.split(theta)

        def dependence_on(numbers: tuple[int, ...]) -> Dependence:
            """Return how the predictions depend on these leaves, the others held fixed."""

            def f(others: Any, varied: Any, X: Any) -> Any:
                filled = list(others)
                for number, value in zip(numbers, varied, strict=True):
                    filled[number] = value
                return predict(layout.fill(filled, fixed), X)

            return dependence(f, leaves, [leaves[number] for number in numbers], rows)

        with pytrees.wrap_errors("tracing predict(params, X)"):
            found = tuple(number for number in range(len(leaves)) if dependence_on((number,)) == Dependence.AFFINE)
            # Affine in each is not enough: a product of two leaves is affine in each of them.
            joint = dependence_on(found) if found else Dependence.OTHER
    names = pytrees.trainable_paths(params)
    if joint != Dependence.AFFINE:
        affine = listed([names[number] for number in found]) or "none"
        raise ModelError(
            f"no last linear layer was found: the predictions are affine in these leaves, one at a time: {affine}. "
            + _remedy(names)
        )
    return tuple(names[number] for number in found)


def last_layer_problem(base: Problem) -> Problem:
    """Return the problem of the last layer.

    Args:
        base: The problem with the leaves of the layer as its parameters.

    Raises:
        ModelError: If they are not the weights, and the bias, of one linear layer.
    """
    with base.scope():
        autodiff = _head(base)
        features = autodiff.features(base.X)
        return replace(base, autodiff=autodiff, X=(features,), reuse=None)


def _head(base: Problem) -> JaxHead:
    """Identify the layer, its inputs and the affine map after it from the gradients at a few rows.

    The gradient of output o in a bias is row o of M, the same for all rows; that in the weights is ``M_oj z``.
    """
    autodiff = base.autodiff
    assert isinstance(autodiff, JaxAutodiff)
    few = autodiff.take(base.X, slice(0, _SEARCH_ROWS))
    J = _gradients(autodiff, base.theta, few)
    leaves = base.leaves
    parts = [J[:, :, where] for where in leaf_slices(leaves)]
    constant = [bool(np.ptp(part, axis=0).max() <= _TOLERANCE * np.abs(part).max()) for part in parts]
    weight = max(range(len(leaves)), key=lambda number: (not constant[number], parts[number].shape[2]))
    biased = len(leaves) == 2
    shape = leaves[weight]
    if len(leaves) > 2 or len(shape) not in (1, 2) or (biased and not constant[1 - weight]):
        raise _no_layer(autodiff)
    inputs = shape[0]
    units = shape[1] if len(shape) == 2 else 1
    if biased and parts[1 - weight].shape[2] != units:
        raise _no_layer(autodiff)
    gradients = parts[weight].reshape(len(J), base.outputs, inputs, units)
    mixing = parts[1 - weight][0] if biased else _mixing(gradients)
    # The largest entry of M gives the most accurate z.
    output, unit = (int(each) for each in np.unravel_index(np.argmax(np.abs(mixing)), mixing.shape))
    z = gradients[:, output, :, unit] / mixing[output, unit]
    expected = np.einsum("ok,mq->moqk", mixing, z)
    if not np.allclose(gradients, expected, rtol=_TOLERANCE, atol=_TOLERANCE * np.abs(gradients).max()):
        raise _no_layer(autodiff)
    offset = autodiff.predict(0 * base.theta, few)  # c, the prediction with zero weights and bias
    head = Head(mixing, offset[0].copy(), inputs, leaves, weight, transposed=True)
    return JaxHead(autodiff, head, base.X, base.theta, output, unit, base.facts())


def _mixing(gradients: np.ndarray) -> np.ndarray:
    """Return M of a layer without a bias, (K, k), up to a factor by which z is then divided.

    Args:
        gradients: ``M_oj z``, (m, K, q, k).
    """
    size = np.einsum("moqk->ok", gradients**2)
    output, unit = np.unravel_index(np.argmax(size), size.shape)
    largest = gradients[:, output, :, unit]
    # Least squares: the factor of z in each entry, relative to that in the largest one.
    return np.einsum("moqk,mq->ok", gradients, largest) / np.sum(largest**2)


def _gradients(autodiff: JaxAutodiff, theta: Any, inputs: Any) -> np.ndarray:
    """Return the gradients of every output, (m, K, p)."""
    m = autodiff.count(inputs)
    width = autodiff.arrays.width(m)
    group = min(256, autodiff.model.chunk_rows)
    with autodiff.arrays.scope():
        padded = jax.tree.map(lambda leaf: pad(leaf, width), inputs)
        found = kernels.jacobian_rows(autodiff.model, group, autodiff.fixed, theta, padded)
    rows = np.asarray(found)
    return rows.reshape(width, -1, rows.shape[1])[:m]


def _block_rows(autodiff: JaxAutodiff, outputs: int) -> int:
    """Return the number of rows whose gradients fit ``_BLOCK_BYTES``, a power of two from 8 to 4096."""
    numbers = outputs * sum(int(np.prod(shape)) for shape in autodiff.leaves)
    rows = max(8, min(4096, _BLOCK_BYTES // (8 * numbers)))
    return int(2 ** max(3, int(np.log2(rows))))


def _names(autodiff: JaxAutodiff) -> list[str]:
    """Return the names of all leaves."""
    layout = autodiff.model.layout
    return pytrees.leaf_paths(jax.tree.unflatten(layout.treedef, range(len(layout.shapes))))


def _no_layer(autodiff: JaxAutodiff) -> ModelError:
    return ModelError(
        f"the leaves in which the predictions are affine ({listed(autodiff.selected or ())}) are not the weights "
        "(inputs, units) and the bias of one linear layer. " + _remedy(_names(autodiff))
    )


def _remedy(names: list[str]) -> str:
    return (
        "Name the leaves that count as trained, parameters=[paths], and the function is run as a whole. It has "
        f"{listed(names)}."
    )
