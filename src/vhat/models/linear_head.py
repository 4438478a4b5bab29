"""A trained linear layer on fixed features: all derivatives are matrix products.

The predictions are ``f = M (W z + b) + c``:

- ``z`` (q,) is the input of the layer, the feature vector that the rest of the model computes from a row;
- ``W`` (k, q) and ``b`` (k,) are the only parameters that count as trained; ``z`` does not depend on them;
- ``M`` (K, k) and ``c`` (K,) are a fixed affine map after the layer, the identity and zero where there is none.

The rest of the model is evaluated once for each row. Afterwards its size does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from vhat.models.kinks import NO_KINKS
from vhat.models.leaves import leaf_slices
from vhat.models.loaders import structure_of
from vhat.models.loss import LossDerivatives
from vhat.models.protocols import (
    Array,
    Arrays,
    Curvature,
    Functional,
    Lazy,
    Linearised,
    ModelFacts,
    Point,
    slices,
)

__all__ = ["Features", "Head", "HeadAutodiff"]

Features = tuple[np.ndarray]
"""The inputs of the layer, (m, q). They replace the model's own inputs in the problem."""

_BLOCK_BYTES = 2**25
"""Memory for one block of rows in sums over all rows, in bytes."""


@dataclass(frozen=True, eq=False)
class Head:
    """A linear layer and the fixed affine map after it.

    Attributes:
        mixing: M, (K, k).
        offset: c, (K,).
        inputs: Number of inputs of the layer, q.
        leaves: Shapes of the layer's own arrays, in the order of the flat parameters.
        weight: Index of W among the leaves.
        transposed: Whether W is stored as (q, k). True also for a vector (q,).
    """

    mixing: np.ndarray
    offset: np.ndarray
    inputs: int
    leaves: tuple[tuple[int, ...], ...]
    weight: int = 0
    transposed: bool = False

    @property
    def units(self) -> int:
        """Number of outputs of the layer, k."""
        return int(self.mixing.shape[1])

    @property
    def biased(self) -> bool:
        """Whether the layer has a trained bias."""
        return len(self.leaves) == 2

    @property
    def width(self) -> int:
        """Number of parameters of one unit of the layer: q, plus one for a bias."""
        return self.inputs + self.biased

    def split(self, v: np.ndarray) -> np.ndarray:
        """Return flat parameters (r, p) as rows ``[W | b]``, (r, k, q + 1), or (r, k, q) without a bias."""
        parts = [v[:, where] for where in leaf_slices(self.leaves)]
        weight = parts[self.weight]
        if self.transposed:
            weight = weight.reshape(-1, self.inputs, self.units).transpose(0, 2, 1)
        else:
            weight = weight.reshape(-1, self.units, self.inputs)
        if not self.biased:
            return weight
        return np.concatenate([weight, parts[1 - self.weight][:, :, None]], axis=2)

    def join(self, rows: np.ndarray) -> np.ndarray:
        """Return rows ``[W | b]``, (r, k, width), as flat parameters (r, p)."""
        weight = rows[:, :, : self.inputs]
        if self.transposed:
            weight = weight.transpose(0, 2, 1)
        parts = [weight.reshape(len(rows), -1)]
        if self.biased:
            parts.insert(1 - self.weight, rows[:, :, -1])
        return np.concatenate(parts, axis=1)

    def extended(self, z: np.ndarray) -> np.ndarray:
        """Return inputs of the layer, with a column of ones if it has a bias, (m, width)."""
        if not self.biased:
            return z
        return np.concatenate([z, np.ones((len(z), 1))], axis=1)

    def predict(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return ``M (W z + b) + c``, (m, K)."""
        rows = self.split(theta[None])[0]
        # (M W) z costs less than M (W z): M W has K rows, and there are many z.
        predictions: np.ndarray = z @ (self.mixing @ rows[:, : self.inputs]).T + self.offset
        if self.biased:
            predictions = predictions + self.mixing @ rows[:, -1]
        return predictions


@dataclass(frozen=True, eq=False)
class HeadAutodiff(ABC):
    """A model with a trained last layer and all other parameters fixed: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        base: The model with the parameters of the layer as its flat vector. Its derivatives are not used.
        head: The layer.
        sample: A few rows of the model's own inputs, for probing the model and checking test inputs.
    """

    base: Any
    head: Head
    sample: Any = field(repr=False)

    linear = True
    kinks = NO_KINKS
    held_fixed = True

    @property
    def input_structure(self) -> tuple[str, tuple[str, ...]]:
        """Structure of the inputs of the whole model (one array, tuple or dict), not of the layer's features."""
        known: tuple[str, tuple[str, ...]] | None = getattr(self.base, "input_structure", None)
        return structure_of(self.sample) if known is None else known

    @property
    def target_key(self) -> str | None:
        """Key of the responses in dict batches; None where none was given."""
        key: str | None = getattr(self.base, "target_key", None)
        return key

    @abstractmethod
    def features(self, inputs: Any, /) -> np.ndarray:
        """Evaluate the model on checked inputs of its own and return the inputs of the layer, (m, q)."""

    @abstractmethod
    def facts(self) -> ModelFacts:
        """Probe the model."""

    @property
    def framework(self) -> str:
        """Name of the model's framework."""
        return str(self.base.framework)

    @property
    def arrays(self) -> Arrays:
        """The framework's arrays."""
        arrays: Arrays = self.base.arrays
        return arrays

    @property
    def squeeze(self) -> bool:
        """Whether the model returns ``(n,)``."""
        return bool(self.base.squeeze)

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the layer's arrays."""
        return self.head.leaves

    @property
    def columns(self) -> None:
        """None: the inputs of the layer have no names."""
        return None

    def check(self, x: Any, _: Features, /) -> Features:
        """Check test inputs as the model does, and return their features."""
        return (self.features(self.base.check(x, self.sample)),)

    def count(self, inputs: Features, /) -> int:
        """Return the number of rows."""
        return len(inputs[0])

    def take(self, inputs: Features, index: Any, /) -> Features:
        """Return some of the rows."""
        return (inputs[0][index],)

    def predict(self, theta: Array, inputs: Features, /) -> np.ndarray:
        """Return predictions, (m, K)."""
        return self.head.predict(self.arrays.numpy(theta), inputs[0])

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives."""
        derivatives: LossDerivatives = self.base.loss(f, y, weights)
        return derivatives

    def params(self, theta: Array, /) -> Any:
        """Return all parameters in the user's own structure, with ``theta`` in the layer."""
        return self.base.params(theta)

    def functional(self, theta: Array, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``."""
        functional: Functional = self.base.functional(theta, q)
        return functional

    def linearise(self, point: Point, before: Linearised | None, /) -> HeadLinearised:
        """Return the derivatives of the layer. They do not depend on the parameters."""
        return HeadLinearised(self, point, before)


class HeadLinearised(Linearised):
    """Derivatives of a linear layer over its training rows: see :class:`vhat.models.protocols.Linearised`."""

    _autodiff: HeadAutodiff
    _moments: Lazy[np.ndarray | None]
    """``1/n sum_i C_io (z_i, 1)(z_i, 1)'``: one matrix (1, width, width) where all outputs have the same weights, else
    one per output, (K, width, width). None where the loss mixes outputs, or the matrices exceed the memory budget."""

    def __init__(self, autodiff: HeadAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        earlier = point.shared(before if isinstance(before, HeadLinearised) else None, "X", "weights")
        same = point.shared(earlier, "y", "theta")
        # The second derivative of the square loss depends on neither parameters nor responses, so that the moments are
        # unchanged if either differs. `known` avoids computing the loss of the earlier block for this test.
        if same is None and earlier is not None and earlier.loss.known and earlier.loss.result.square:
            same = earlier
        self._moments = same._moments if same else Lazy(partial(_moments, autodiff.head, point, self.loss))

    @property
    def _head(self) -> Head:
        return self._autodiff.head

    @property
    def _z(self) -> np.ndarray:
        z: np.ndarray = self.point.X[0]
        return z

    def facts(self) -> ModelFacts:
        """Probe the model before the layer."""
        return self._autodiff.facts()

    # -- gradients of single predictions ---------------------------------------------------------
    def row_gradients(self, inputs: Features, /) -> Array:
        """Return the gradients ``M[o] (x) (z, 1)`` in ``[W | b]``, one per row and output, as (m * K, p)."""
        head = self._head
        rows = head.mixing[None, :, :, None] * head.extended(inputs[0])[:, None, None, :]
        return self._autodiff.arrays.native(head.join(rows.reshape(-1, head.units, head.width)))

    def row_factors(self, inputs: Features, /) -> Sequence[tuple[Array, ...]]:
        """Return these gradients split by leaf; for a matrix W, the two factors of each outer product."""
        head = self._head
        native = self._autodiff.arrays.native
        outputs = len(head.mixing)
        mixing = np.tile(head.mixing, (len(inputs[0]), 1))
        z = np.repeat(inputs[0], outputs, axis=0)
        leaves: list[tuple[Array, ...]]
        if not self.outer_leaves:
            leaves = [(native(mixing * z),)]
        elif head.transposed:
            leaves = [(native(z), native(mixing))]
        else:
            leaves = [(native(mixing), native(z))]
        if head.biased:
            leaves.insert(1 - head.weight, (native(mixing),))
        return leaves

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Index of W if it is a matrix; empty if it is a vector."""
        head = self._head
        if len(head.leaves[head.weight]) == 2:
            return frozenset({head.weight})
        return frozenset()

    # -- sums over the training rows -----------------------------------------------------------
    def jvp(self, v: Array, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        head = self._head
        mixed = head.mixing @ head.split(self._autodiff.arrays.numpy(v))  # (r, K, width), r right-hand sides
        weights = mixed[:, :, : head.inputs]
        bias = mixed[:, :, head.inputs :].sum(axis=2)  # zero without a bias
        flat = weights.reshape(-1, head.inputs).T
        image = np.empty((len(mixed), self.point.n, len(head.mixing)))
        for block in self._blocks(flat.shape[1]):
            product = (self._z[block] @ flat).reshape(-1, *mixed.shape[:2])
            image[:, block] = product.transpose(1, 0, 2) + bias[:, None, :]
        return image

    def vjp(self, t: np.ndarray, /) -> Array:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        head = self._head
        total = np.zeros((len(t), head.units, head.width))
        for block in self._blocks(len(t) * head.units):
            s = np.asarray(t)[:, block] @ head.mixing  # M't, the cotangent of the layer's outputs
            flat = s.transpose(0, 2, 1).reshape(-1, s.shape[1])
            total[:, :, : head.inputs] += (flat @ self._z[block]).reshape(len(t), head.units, head.inputs)
            if head.biased:
                total[:, :, -1] += s.sum(axis=1)
        return self._autodiff.arrays.native(head.join(total))

    def product(self, v: Array, curvature: Curvature, /) -> Array:
        """Return ``J'CJ v / n``, which is the Hessian of a linear model, for each row of v."""
        del curvature
        moments = self._moments.result
        if moments is None:
            return self._product_by_rows(v)
        head = self._head
        arrays = self._autodiff.arrays
        mixed = head.mixing @ head.split(arrays.numpy(v))  # (r, K, width)
        per_output = np.broadcast_to(moments, (len(head.mixing), *moments.shape[1:]))
        weighted = np.einsum("row,owx->rox", mixed, per_output)
        return arrays.native(head.join(head.mixing.T @ weighted))

    def _product_by_rows(self, v: Array) -> Array:
        """Return the products by sums over the training rows, a few right-hand sides at a time."""
        arrays = self._autodiff.arrays
        together = max(1, _BLOCK_BYTES // (8 * self.point.y.size))
        rows = arrays.numpy(v)
        parts = [arrays.numpy(self.gauss_newton(arrays.native(rows[at]))) for at in slices(len(rows), together)]
        return arrays.native(np.concatenate(parts))

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return zero: the second derivatives of a linear model vanish."""
        return np.zeros_like(v)

    def diagonal(self) -> Array:
        """Return the diagonal of the Gauss-Newton part, with negative curvature weights set to zero, (p,)."""
        moments = self._moments.result
        if moments is None or np.any(self.loss.result.own_curvature < 0):
            return super().diagonal()
        head = self._head
        # A gradient in [W | b] is the outer product of M[o] and (z, 1), so its squares are those of the factors.
        diagonals = np.broadcast_to(np.einsum("oww->ow", moments), (len(head.mixing), head.width))
        return self._autodiff.arrays.native(head.join(((head.mixing**2).T @ diagonals)[None])[0])

    def _blocks(self, columns: int) -> list[slice]:
        """Return blocks of training rows whose arrays of ``columns`` columns fit ``_BLOCK_BYTES``."""
        return slices(self.point.n, max(1, _BLOCK_BYTES // (8 * max(columns, self._head.width))))


def _moments(head: Head, point: Point, loss: Lazy[LossDerivatives]) -> np.ndarray | None:
    """Return the weighted second moments of the layer's inputs: see :class:`HeadLinearised`."""
    curvature = loss.result.curvature
    if curvature.ndim != 2:  # the loss mixes outputs
        return None
    if np.array_equal(curvature, np.broadcast_to(curvature[:, :1], curvature.shape)):
        curvature = curvature[:, :1]  # one matrix serves all outputs
    outputs = curvature.shape[1]
    if 8 * outputs * head.width**2 > point.memory // 8:
        return None
    total = np.zeros((outputs, head.width, head.width))
    for block in slices(point.n, max(1, _BLOCK_BYTES // (8 * head.width))):
        z = head.extended(point.X[0][block])
        for output in range(outputs):
            total[output] += z.T @ (curvature[block, output, None] * z)
    # Make the matrices exactly symmetric; they are symmetric up to rounding.
    symmetric: np.ndarray = 0.5 * (total + total.transpose(0, 2, 1)) / point.n
    return symmetric
