"""The leaves that enter last, and affinely, as a problem of their own: everything before them runs once for each row.

They are found by the traced program (:mod:`vhat.models.jax.affine`): all leaves in which the predictions are affine,
which must be the weights and the bias of one linear layer. The inputs of the layer are read off the gradient of one
prediction in its weights, ``df_o / dW_j = M_oj z``.
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
from vhat.models.leaves import leaf_slices
from vhat.models.linear_head import Head, HeadAutodiff
from vhat.models.problem import Problem
from vhat.models.protocols import ModelFacts, slices
from vhat.models.selection import listed

__all__ = ["JaxHead", "affine_paths", "last_layer_problem"]

_ALIKE = 1e-9
"""Relative difference that rounding may leave between a prediction and that of the last layer."""
_NARROW_ALIKE = 1e-4
"""The same where the model computes in float32 on the way."""
_BLOCK_BYTES = 2**25
"""What the gradients of some rows may take."""
_FEW = 64
"""Rows on which the layer is found."""
_TRACED = 8
"""Rows of a traced program."""


@dataclass(frozen=True, eq=False)
class JaxHead(HeadAutodiff):
    """The last layer of a JAX function: see :class:`vhat.models.linear_head.HeadAutodiff`.

    Attributes:
        base: The function, with the layer's leaves as its parameters.
        sample: The training inputs, as they were given.
        theta: The parameters of the layer, at which it is verified.
        output: The output whose gradient tells the inputs of the layer.
        unit: The unit of the layer whose weights it is taken in.
        seen: What was found out about the function.
    """

    base: JaxAutodiff
    theta: Any
    output: int
    unit: int
    seen: ModelFacts

    def features(self, inputs: Any, /) -> np.ndarray:
        """Run the function and return the inputs of its last layer, (m, q).

        Raises:
            ModelError: Where the prediction is not that of the layer.
        """
        head, base = self.head, self.base
        where = leaf_slices(head.leaves)[head.weight]
        found = np.empty((base.count(inputs), head.inputs))
        for block in slices(len(found), _rows_together(base, len(head.mixing))):
            part = base.take(inputs, block)
            J = _gradients(base, self.theta, part)[:, self.output, where]
            own = J.reshape(len(J), head.inputs, head.units)[:, :, self.unit]
            found[block] = own / head.mixing[self.output, self.unit]
            self._verify(found[block], base.predict(self.theta, part))
        return found

    def _verify(self, z: np.ndarray, f: np.ndarray) -> None:
        if not (np.isfinite(f).all() and np.isfinite(z).all()):
            return  # refused where the rows are named
        own = self.head.predict(self.arrays.numpy(self.theta), z)
        size = max(np.abs(f).max(), np.abs(self.head.offset).max(), np.abs(own).max())
        if np.any(np.abs(f - own) > (_NARROW_ALIKE if self.seen.narrow_casts else _ALIKE) * size):
            raise ModelError(
                "the prediction is not always that of the last linear layer: something else is added to it or "
                "multiplies it, in some rows. " + _other_ways(_names(self.base))
            )

    def facts(self) -> ModelFacts:
        """Return what was found out about the function."""
        return self.seen


def affine_paths(predict: Callable[[Any, Any], Any], params: Any, X: Any) -> tuple[str, ...]:
    """Return the names of the leaves in which the predictions are affine.

    Args:
        predict: The function.
        params: All of its parameters.
        X: Training inputs.

    Raises:
        ModelError: Where there are none, or the predictions are not affine in all of them together.
    """
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", FixedParameterWarning)  # comes where the problem is made
        theta, layout, fixed, _ = pytrees.flatten(params)
        rows = pytrees.first_rows(pytrees.as_inputs(X, "X"), _TRACED)
        leaves = layout.split(theta)

        def kind(chosen: tuple[int, ...]) -> Dependence:
            def f(others: Any, own: Any, X: Any) -> Any:
                filled = list(others)
                for number, value in zip(chosen, own, strict=True):
                    filled[number] = value
                return predict(layout.fill(filled, fixed), X)

            return dependence(f, leaves, [leaves[number] for number in chosen], rows)

        with pytrees.in_words("tracing predict(params, X)"):
            found = tuple(number for number in range(len(leaves)) if kind((number,)) == Dependence.AFFINE)
            together = kind(found) if found else Dependence.OTHER
    names = pytrees.trainable_paths(params)
    if together != Dependence.AFFINE:
        told = listed([names[number] for number in found]) or "none"
        raise ModelError(
            f"no last linear layer was found: the predictions are affine in these leaves, one at a time: {told}. "
            + _other_ways(names)
        )
    return tuple(names[number] for number in found)


def last_layer_problem(base: Problem) -> Problem:
    """Make the problem of the last layer.

    Args:
        base: The problem with the leaves of the layer as its parameters.

    Raises:
        ModelError: Where they are not the weights, and the bias, of one linear layer.
    """
    with base.scope():
        autodiff = _head(base)
        features = autodiff.features(base.X)
        return replace(base, autodiff=autodiff, X=(features,), reuse=None)


def _head(base: Problem) -> JaxHead:
    """Find the layer's inputs, and the affine map after it, by the gradients of a few rows."""
    autodiff = _own(base)
    few = autodiff.take(base.X, slice(0, _FEW))
    J = _gradients(autodiff, base.theta, few)
    leaves = base.leaves
    parts = [J[:, :, where] for where in leaf_slices(leaves)]
    # The bias of a layer has the same gradient in every row.
    constant = [bool(np.ptp(part, axis=0).max() <= _ALIKE * np.abs(part).max()) for part in parts]
    weight = max(range(len(leaves)), key=lambda number: (not constant[number], parts[number].shape[2]))
    biased = len(leaves) == 2
    shape = leaves[weight]
    if len(leaves) > 2 or len(shape) not in (1, 2) or (biased and not constant[1 - weight]):
        raise _no_layer(autodiff)
    units = shape[1] if len(shape) == 2 else 1
    inputs = shape[0]
    slopes = parts[weight].reshape(len(J), base.outputs, inputs, units)
    if biased and parts[1 - weight].shape[2] == units:
        mixing = parts[1 - weight][0]
    elif biased:
        raise _no_layer(autodiff)
    else:
        mixing = _mixing(slopes)
    output, unit = (int(each) for each in np.unravel_index(np.argmax(np.abs(mixing)), mixing.shape))
    z = slopes[:, output, :, unit] / mixing[output, unit]
    if not np.allclose(slopes, np.einsum("ok,mq->moqk", mixing, z), rtol=_ALIKE, atol=_ALIKE * np.abs(slopes).max()):
        raise _no_layer(autodiff)
    offset = autodiff.predict(0 * base.theta, few)
    head = Head(mixing, offset[0].copy(), inputs, leaves, weight, transposed=True)
    return JaxHead(autodiff, head, base.X, base.theta, output, unit, base.facts())


def _mixing(slopes: np.ndarray) -> np.ndarray:
    """Return M of a layer without a bias up to a factor, which the inputs of the layer take: (K, k)."""
    size = np.einsum("moqk->ok", slopes**2)
    output, unit = np.unravel_index(np.argmax(size), size.shape)
    own = slopes[:, output, :, unit]
    return np.einsum("moqk,mq->ok", slopes, own) / np.sum(own**2)


def _gradients(autodiff: JaxAutodiff, theta: Any, inputs: Any) -> np.ndarray:
    """Return the gradients of every output, (m, K, p)."""
    m = autodiff.count(inputs)
    together = min(256, autodiff.model.rows_together)
    with autodiff.arrays.scope():
        filled = jax.tree.map(lambda leaf: pytrees.pad(leaf, autodiff.arrays.width(m)), inputs)
        found = kernels.jacobian_rows(autodiff.model, together, autodiff.fixed, theta, filled)
    rows = np.asarray(found)
    return rows.reshape(autodiff.arrays.width(m), -1, rows.shape[1])[:m]


def _rows_together(autodiff: JaxAutodiff, outputs: int) -> int:
    """Return a power of two of rows whose gradients fit."""
    numbers = outputs * sum(int(np.prod(shape)) for shape in autodiff.leaves)
    return int(2 ** max(3, int(np.log2(max(8, min(4096, _BLOCK_BYTES // (8 * numbers)))))))


def _own(problem: Problem) -> JaxAutodiff:
    assert isinstance(problem.autodiff, JaxAutodiff)
    return problem.autodiff


def _names(autodiff: JaxAutodiff) -> list[str]:
    """Return the names of all leaves."""
    layout = autodiff.model.layout
    return pytrees.leaf_paths(jax.tree.unflatten(layout.treedef, range(len(layout.shapes))))


def _no_layer(autodiff: JaxAutodiff) -> ModelError:
    return ModelError(
        f"the leaves in which the predictions are affine ({listed(autodiff.selected or ())}) are not the weights "
        "(inputs, units) and the bias of one linear layer. " + _other_ways(_names(autodiff))
    )


def _other_ways(names: list[str]) -> str:
    return (
        "Name the leaves that count as trained, parameters=[paths], and the function is run as a whole. It has "
        f"{listed(names)}."
    )
