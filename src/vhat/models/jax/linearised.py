"""Derivatives of a JAX function over its training rows, which stay on the device in chunks.

Every program is compiled at module level (:mod:`vhat.models.jax.compiled`) with the model static: other parameters,
data or decay compile nothing. The loss is differentiated inside these programs.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.models.jax import compiled as kernels
from vhat.models.jax import pytrees
from vhat.models.jax.float32 import CannotNarrowError
from vhat.models.jax.outer_products import Factors
from vhat.models.protocols import Curvature, Lazy, Linearised, ModelFacts, Point

if TYPE_CHECKING:
    from vhat.models.jax.autodiff import JaxAutodiff

__all__ = ["JaxLinearised"]

_FEW = 8
"""Rows on which a model is probed."""
_GROUP_BYTES = 2**26
"""What the per-row gradients of one group may take when their squares are summed."""


class JaxLinearised(Linearised):
    """Derivatives of a JAX function: see :class:`vhat.models.protocols.Linearised`."""

    _autodiff: JaxAutodiff
    _X: Lazy[Any]
    _y: Lazy[Any]
    _w: Lazy[Any]
    _first_order: Lazy[tuple[float, jax.Array]]
    """The loss and its gradient."""

    def __init__(self, autodiff: JaxAutodiff, point: Point, before: Linearised | None) -> None:
        earlier = before if isinstance(before, JaxLinearised) else None
        same_X, same_y = point.shared(earlier, "X"), point.shared(earlier, "y")
        same_w = point.shared(earlier, "weights")
        self._X = same_X._X if same_X else Lazy(partial(_resident, autodiff, point, point.X))
        self._y = same_y._y if same_y else Lazy(partial(_resident, autodiff, point, point.y))
        self._w = same_w._w if same_w else Lazy(partial(_resident, autodiff, point, point.weights, fill="zero"))
        super().__init__(autodiff, point, partial(_predicted, autodiff, point, self._X))
        again = point.shared(earlier, "theta", "X", "y", "weights")
        parts = (autodiff, point, self._X, self._y, self._w)
        self._first_order = again._first_order if again else Lazy(partial(_first_order, *parts))

    @property
    def data(self) -> kernels.Data:
        """The training rows in chunks, on the device."""
        return kernels.Data(self._X.result, self._y.result, self._w.result)

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts."""
        autodiff, theta = self._autodiff, self.point.theta
        model, fixed = autodiff.model, autodiff.fixed
        # a model may use what NumPy's arrays lack
        X = jax.tree.map(jnp.asarray, pytrees.first_rows(self.point.X, _FEW))
        first, second = (np.asarray(model.unguarded(fixed, theta, X)) for _ in range(2))
        compiled = autodiff.predict(theta, X)  # the same rows in the same company
        near = np.allclose(first, compiled, rtol=1e-6, atol=1e-9 * max(np.abs(compiled).max(), 1e-300))
        traced = jax.make_jaxpr(lambda t: model.predict.value(model.layout.unflatten(t, fixed), X))(theta)
        casts = tuple(dict.fromkeys(pytrees.narrow_casts(traced.jaxpr)))
        same = np.array_equal(first, second) and (near or bool(casts))
        accuracy = 1e-7 if casts else 1e-14
        return ModelFacts("jax", autodiff.dtype, same, casts, accuracy, accuracy)

    # -- gradients of single predictions ---------------------------------------------------------
    def row_gradients(self, inputs: Any, /) -> jax.Array:
        """Return per-row gradients of every output, (m * K, p)."""
        return self._rows(kernels.jacobian_rows, inputs)

    def row_factors(self, inputs: Any, /) -> Factors:
        """Return the same leaf by leaf, dense layers as the two factors of each outer product."""
        found: Factors = self._rows(kernels.factors, inputs)
        return found

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves whose gradients are outer products, as the program shows."""
        return frozenset(self._autodiff.model.outer)

    def _rows(self, program: Any, inputs: Any) -> Any:
        """Run a program of gradients on a padded number of rows, and leave the padding out."""
        autodiff = self._autodiff
        m = autodiff.count(inputs)
        filled = jax.tree.map(lambda leaf: pytrees.pad(leaf, autodiff.arrays.width(m)), inputs)
        found = program(autodiff.model, self._gradients_together, autodiff.fixed, self.point.theta, filled)
        return jax.tree.map(lambda part: part[: m * self._outputs], found)

    @property
    def _outputs(self) -> int:
        return int(self.point.y.shape[1])

    @property
    def _gradients_together(self) -> int:
        """How many rows one pass of gradients takes, of which a row has one an output; a power of two."""
        return max(1, self._autodiff.model.rows_together // int(2 ** (self._outputs - 1).bit_length()))

    # -- sums over the training rows -----------------------------------------------------------
    def objective(self) -> float:
        """Return the loss."""
        return self._first_order.result[0]

    def gradient(self) -> jax.Array:
        """Return the gradient of the loss, (p,)."""
        return self._first_order.result[1]

    def product(self, v: jax.Array, curvature: Curvature, /) -> jax.Array:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        autodiff, filled = self._autodiff, self._widened(v)
        found = kernels.product(autodiff.model, curvature, autodiff.fixed, self.point.theta, self.data, filled)
        return found[: len(v)] / self.point.n

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return ``(H - J'CJ/n) v``, products in single precision; None where the model has no such twin."""
        autodiff, point = self._autodiff, self.point
        size = np.maximum(np.abs(v).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        filled = np.zeros((autodiff.arrays.width(len(v)), v.shape[1]), np.float32)
        filled[: len(v)] = v / size
        first, unit = self._slopes
        try:
            found = kernels.residual_product(
                autodiff.model, autodiff.fixed, point.theta, self._X.result, first, jnp.asarray(filled)
            )
        except CannotNarrowError:
            return None
        return np.asarray(found, dtype=np.float64)[: len(v)] * (size * unit / point.n)

    @cached_property
    def _slopes(self) -> tuple[jax.Array, float]:
        """The loss's slopes in chunks, the largest made one, and what it was."""
        first = self.loss.result.first
        unit = float(np.abs(first).max()) or 1.0
        return jnp.asarray(pytrees.chunk(first / unit, *self._w.result.shape, fill="zero")), unit

    def diagonal(self) -> jax.Array:
        """Return the diagonal of the Gauss-Newton part, (p,)."""
        autodiff, data = self._autodiff, self.data
        rows = data.w.shape[1]
        fits = max(1, min(_GROUP_BYTES // (8 * self.factor_numbers * self._outputs), self._gradients_together))
        group = max(size for size in range(1, rows + 1) if rows % size == 0 and (size <= fits or size == 1))
        return kernels.diagonal(autodiff.model, group, autodiff.fixed, self.point.theta, data) / self.point.n

    def jvp(self, v: jax.Array, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        autodiff, (n, outputs) = self._autodiff, self.point.y.shape
        parts = kernels.jvp(autodiff.model, autodiff.fixed, self.point.theta, self._X.result, self._widened(v))
        rows = np.asarray(parts).transpose(1, 0, 2, 3)[: len(v)]
        return rows.reshape(len(v), -1, outputs)[:, :n]

    def vjp(self, t: np.ndarray, /) -> jax.Array:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        autodiff, (n, outputs) = self._autodiff, self.point.y.shape
        chunks, rows = self._w.result.shape
        filled = np.zeros((autodiff.arrays.width(len(t)), chunks * rows, outputs))
        filled[: len(t), :n] = t
        parts = filled.reshape(-1, chunks, rows, outputs).transpose(1, 0, 2, 3)
        return kernels.vjp(autodiff.model, autodiff.fixed, self.point.theta, self._X.result, parts)[: len(t)]

    def _widened(self, v: jax.Array) -> jax.Array:
        """Return v with rows of zeros up to a width that is compiled anyway."""
        short = self._autodiff.arrays.width(len(v)) - len(v)
        return v if short == 0 else jnp.concatenate([v, jnp.zeros((short, v.shape[1]), v.dtype)])


def _resident(autodiff: JaxAutodiff, point: Point, rows: Any, fill: str = "repeat") -> Any:
    """Bring rows to the device in chunks."""
    sizes = pytrees.chunk_sizes(point.n, autodiff.model.rows_together)
    with autodiff.arrays.scope():
        return jax.tree.map(lambda leaf: jnp.asarray(pytrees.chunk(leaf, *sizes, fill=fill)), rows)


def _predicted(autodiff: JaxAutodiff, point: Point, X: Lazy[Any]) -> np.ndarray:
    """Return the predictions on the training rows, (n, K)."""
    with autodiff.arrays.scope():  # what is kept must be double, whoever asks first
        return pytrees.joined(kernels.predictions(autodiff.model, autodiff.fixed, point.theta, X.result), point.n)


def _first_order(
    autodiff: JaxAutodiff, point: Point, X: Lazy[Any], y: Lazy[Any], w: Lazy[Any]
) -> tuple[float, jax.Array]:
    """Return the loss and its gradient, (p,)."""
    data = kernels.Data(X.result, y.result, w.result)
    with autodiff.arrays.scope():
        value, slope = kernels.gradient(autodiff.model, autodiff.fixed, point.theta, data)
        return float(value) / point.n, slope / point.n
