"""A linear layer at the end of a model, on inputs that were computed once: all derivatives are matrix products.

The predictions are ``f = M (W z + b) + c``: ``z`` the input of the layer, (q,), which everything before it gives and
which does not depend on ``W`` (k, q) and ``b`` (k,), the only parameters that count as trained; ``M`` (K, k) and ``c``
(K,) what a fixed affine map after the layer makes of its output, the identity and zero where there is none. So the
model before the layer is run once for each row, and its size does not matter afterwards.
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
"""The inputs of the layer, (m, q): what takes the place of the model's own inputs."""

_BLOCK_BYTES = 2**25
"""What a block of rows may take while sums over all rows are made."""


@dataclass(frozen=True, eq=False)
class Head:
    """A linear layer and the fixed affine map after it.

    Attributes:
        mixing: M, (K, k).
        offset: c, (K,).
        inputs: q.
        leaves: The shapes of the layer's own arrays, in the order of the flat parameters.
        weight: Which of them is W.
        transposed: Whether W is stored as (q, k); of one dimension, (q,), it counts as such.
    """

    mixing: np.ndarray
    offset: np.ndarray
    inputs: int
    leaves: tuple[tuple[int, ...], ...]
    weight: int = 0
    transposed: bool = False

    @property
    def units(self) -> int:
        """How many numbers leave the layer, k."""
        return int(self.mixing.shape[1])

    @property
    def biased(self) -> bool:
        """Whether the layer has a bias that is trained."""
        return len(self.leaves) == 2

    @property
    def width(self) -> int:
        """How many parameters one unit of the layer has: q, and one for the bias."""
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
        """Return inputs of the layer with a one for the bias, (m, width)."""
        return np.concatenate([z, np.ones((len(z), 1))], axis=1) if self.biased else z

    def predict(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return ``M (W z + b) + c``, (m, K)."""
        rows = self.split(theta[None])[0]
        found: np.ndarray = z @ (self.mixing @ rows[:, : self.inputs]).T + self.offset
        return found + self.mixing @ rows[:, -1] if self.biased else found


@dataclass(frozen=True, eq=False)
class HeadAutodiff(ABC):
    """A model of which the last layer counts as trained: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        base: The model with the parameters of the layer as its flat vector. Its derivatives are not used.
        head: The layer.
        sample: A few rows of the model's own inputs, on which it is probed.
    """

    base: Any
    head: Head
    sample: Any = field(repr=False)

    linear = True
    kinks = NO_KINKS
    held_fixed = True

    @property
    def input_structure(self) -> tuple[str, tuple[str, ...]]:
        """How rows are given to the whole model; the layer's own inputs are features."""
        known: tuple[str, tuple[str, ...]] | None = getattr(self.base, "input_structure", None)
        return structure_of(self.sample) if known is None else known

    @property
    def target_key(self) -> str | None:
        """The key of the responses in batches that are dicts; None where none was named."""
        found: str | None = getattr(self.base, "target_key", None)
        return found

    @abstractmethod
    def features(self, inputs: Any, /) -> np.ndarray:
        """Run the model on checked inputs of its own and return the inputs of the layer, (m, q)."""

    @abstractmethod
    def facts(self) -> ModelFacts:
        """Probe the model."""

    @property
    def framework(self) -> str:
        """The name of the model's framework."""
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
        """The shapes of the layer's arrays."""
        return self.head.leaves

    @property
    def columns(self) -> None:
        """None: the inputs of the layer have no names."""
        return None

    def check(self, x: Any, _: Features, /) -> Features:
        """Check test inputs as the model does, and bring them to the layer."""
        return (self.features(self.base.check(x, self.sample)),)

    def count(self, inputs: Features, /) -> int:
        """Return how many rows there are."""
        return len(inputs[0])

    def take(self, inputs: Features, index: Any, /) -> Features:
        """Return some of the rows."""
        return (inputs[0][index],)

    def predict(self, theta: Array, inputs: Features, /) -> np.ndarray:
        """Return predictions, (m, K)."""
        return self.head.predict(self.arrays.numpy(theta), inputs[0])

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives."""
        found: LossDerivatives = self.base.loss(f, y, weights)
        return found

    def params(self, theta: Array, /) -> Any:
        """Return all parameters in the user's own structure."""
        return self.base.params(theta)

    def functional(self, theta: Array, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``."""
        found: Functional = self.base.functional(theta, q)
        return found

    def linearise(self, point: Point, before: Linearised | None, /) -> HeadLinearised:
        """Return the derivatives, which are the same at all parameters."""
        return HeadLinearised(self, point, before)


class HeadLinearised(Linearised):
    """Derivatives of a linear layer over its training rows: see :class:`vhat.models.protocols.Linearised`."""

    _autodiff: HeadAutodiff
    _moments: Lazy[np.ndarray | None]
    """``1/n sum_i C_io (z_i, 1)(z_i, 1)'``: one matrix (1, width, width) where all outputs have the same weights, else
    one an output, (K, width, width). None where the loss mixes outputs, or the matrices do not fit."""

    def __init__(self, autodiff: HeadAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        earlier = point.shared(before if isinstance(before, HeadLinearised) else None, "X", "weights")
        same = point.shared(earlier, "y", "theta")
        # The curvature weights of the square loss depend on neither parameters nor responses.
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
        """Return ``M (x) (z, 1)`` of every row, (m * K, p)."""
        head = self._head
        rows = head.mixing[None, :, :, None] * head.extended(inputs[0])[:, None, None, :]
        return self._autodiff.arrays.native(head.join(rows.reshape(-1, head.units, head.width)))

    def row_factors(self, inputs: Features, /) -> Sequence[tuple[Array, ...]]:
        """Return the same leaf by leaf: of a matrix of weights its two factors."""
        head, native = self._head, self._autodiff.arrays.native
        outputs = len(head.mixing)
        mixing = np.tile(head.mixing, (len(inputs[0]), 1))
        z = np.repeat(inputs[0], outputs, axis=0)
        pair = (z, mixing) if head.transposed else (mixing, z)
        leaves: list[tuple[Array, ...]] = [tuple(map(native, pair)) if self.outer_leaves else (native(mixing * z),)]
        if head.biased:
            leaves.insert(1 - head.weight, (native(mixing),))
        return leaves

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The number of the matrix of weights; nothing where it is one vector."""
        head = self._head
        return frozenset({head.weight} if len(head.leaves[head.weight]) == 2 else ())

    # -- sums over the training rows -----------------------------------------------------------
    def jvp(self, v: Array, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        head = self._head
        mixed = head.mixing @ head.split(self._autodiff.arrays.numpy(v))  # (r, K, width)
        weights, bias = mixed[:, :, : head.inputs], mixed[:, :, head.inputs :].sum(axis=2)
        flat = weights.reshape(-1, head.inputs).T
        found = np.empty((len(mixed), self.point.n, len(head.mixing)))
        for block in self._blocks(flat.shape[1]):
            product = (self._z[block] @ flat).reshape(-1, *mixed.shape[:2])
            found[:, block] = product.transpose(1, 0, 2) + bias[:, None, :]
        return found

    def vjp(self, t: np.ndarray, /) -> Array:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        head = self._head
        total = np.zeros((len(t), head.units, head.width))
        for block in self._blocks(len(t) * head.units):
            s = np.asarray(t)[:, block] @ head.mixing
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
        head, arrays = self._head, self._autodiff.arrays
        mixed = head.mixing @ head.split(arrays.numpy(v))  # (r, K, width)
        turned = np.einsum("row,owx->rox", mixed, np.broadcast_to(moments, (len(head.mixing), *moments.shape[1:])))
        return arrays.native(head.join(head.mixing.T @ turned))

    def _product_by_rows(self, v: Array) -> Array:
        """Return the products by way of the training rows, a few right-hand sides at a time."""
        arrays = self._autodiff.arrays
        together = max(1, _BLOCK_BYTES // (8 * self.point.y.size))
        rows = arrays.numpy(v)
        parts = [arrays.numpy(self.gauss_newton(arrays.native(rows[at]))) for at in slices(len(rows), together)]
        return arrays.native(np.concatenate(parts))

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return zero: the residuals have no share in the curvature of a linear model."""
        return np.zeros_like(v)

    def diagonal(self) -> Array:
        """Return the diagonal of the Gauss-Newton part, negative curvature weights as zero, (p,)."""
        moments = self._moments.result
        if moments is None or np.any(self.loss.result.own_curvature < 0):
            return super().diagonal()
        head = self._head
        own = np.broadcast_to(np.einsum("oww->ow", moments), (len(head.mixing), head.width))
        return self._autodiff.arrays.native(head.join(((head.mixing**2).T @ own)[None])[0])

    def _blocks(self, columns: int) -> list[slice]:
        return slices(self.point.n, max(1, _BLOCK_BYTES // (8 * max(columns, self._head.width))))


def _moments(head: Head, point: Point, loss: Lazy[LossDerivatives]) -> np.ndarray | None:
    """Return the weighted second moments of the layer's inputs: see :class:`HeadLinearised`."""
    curvature = loss.result.curvature
    if curvature.ndim != 2:
        return None
    if np.array_equal(curvature, np.broadcast_to(curvature[:, :1], curvature.shape)):
        curvature = curvature[:, :1]
    outputs = curvature.shape[1]
    if 8 * outputs * head.width**2 > point.memory // 8:
        return None
    total = np.zeros((outputs, head.width, head.width))
    for block in slices(point.n, max(1, _BLOCK_BYTES // (8 * head.width))):
        z = head.extended(point.X[0][block])
        for output in range(outputs):
            total[output] += z.T @ (curvature[block, output, None] * z)
    # Symmetric to the last bit, as the sums are but for rounding.
    symmetric: np.ndarray = 0.5 * (total + total.transpose(0, 2, 1)) / point.n
    return symmetric
