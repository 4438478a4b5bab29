"""Derivatives of a JAX function over its training rows, which stay on the device in chunks.

All programs are compiled at module level (:mod:`vhat.models.jax.compiled`) with the model as a static argument, so that
other parameters, data or decay need no new compilation. The loss is differentiated inside these programs.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.models.jax import compiled as kernels
from vhat.models.jax.chunks import chunk, chunk_sizes, first_rows, joined, pad
from vhat.models.jax.float32 import CannotNarrowError
from vhat.models.jax.outer_products import Factors
from vhat.models.jax.programs import narrow_casts
from vhat.models.protocols import Curvature, Lazy, Linearised, ModelFacts, Point

if TYPE_CHECKING:
    from vhat.models.jax.autodiff import JaxAutodiff

__all__ = ["JaxLinearised"]

_PROBE_ROWS = 8
"""Number of rows on which a model is probed."""
_GROUP_BYTES = 2**26
"""Memory for the per-row gradients of one group of rows whose squares are summed, in bytes."""


class JaxLinearised(Linearised):
    """Derivatives of a JAX function: see :class:`vhat.models.protocols.Linearised`."""

    _autodiff: JaxAutodiff
    _X: Lazy[Any]
    _y: Lazy[Any]
    _w: Lazy[Any]
    _first_order: Lazy[tuple[float, jax.Array]]
    """The loss and its gradient, which one program computes together."""

    def __init__(self, autodiff: JaxAutodiff, point: Point, before: Linearised | None) -> None:
        earlier = before if isinstance(before, JaxLinearised) else None
        same_X = point.shared(earlier, "X")
        same_y = point.shared(earlier, "y")
        same_w = point.shared(earlier, "weights")
        self._X = same_X._X if same_X else Lazy(partial(_chunks_on_device, autodiff, point, point.X))
        self._y = same_y._y if same_y else Lazy(partial(_chunks_on_device, autodiff, point, point.y))
        self._w = same_w._w if same_w else Lazy(partial(_chunks_on_device, autodiff, point, point.weights, fill="zero"))
        super().__init__(autodiff, point, partial(_predict_training_rows, autodiff, point, self._X))
        same_loss = point.shared(earlier, "theta", "X", "y", "weights")
        parts = (autodiff, point, self._X, self._y, self._w)
        self._first_order = same_loss._first_order if same_loss else Lazy(partial(_first_order, *parts))

    @property
    def data(self) -> kernels.Data:
        """The training rows in chunks, on the device."""
        return kernels.Data(self._X.result, self._y.result, self._w.result)

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts."""
        autodiff = self._autodiff
        theta = self.point.theta
        model = autodiff.model
        fixed = autodiff.fixed
        # JAX arrays, because a model may use methods that NumPy's arrays do not have.
        X = jax.tree.map(jnp.asarray, first_rows(self.point.X, _PROBE_ROWS))
        first = np.asarray(model.predict_unchecked(fixed, theta, X))
        second = np.asarray(model.predict_unchecked(fixed, theta, X))
        compiled = autodiff.predict(theta, X)  # of the same rows, in one chunk
        near = np.allclose(first, compiled, rtol=1e-6, atol=1e-9 * max(np.abs(compiled).max(), 1e-300))
        traced = jax.make_jaxpr(lambda t: model.predict.value(model.layout.unflatten(t, fixed), X))(theta)
        casts = tuple(dict.fromkeys(narrow_casts(traced.jaxpr)))
        # With casts to float32, rounding explains a difference between compiled and direct evaluation.
        deterministic = np.array_equal(first, second) and (near or bool(casts))
        accuracy = 1e-7 if casts else 1e-14
        return ModelFacts("jax", autodiff.dtype, deterministic, casts, accuracy, accuracy)

    # -- gradients of single predictions ---------------------------------------------------------
    def row_gradients(self, inputs: Any, /) -> jax.Array:
        """Return per-row gradients of every output, (m * K, p)."""
        return self._rows(kernels.jacobian_rows, inputs)

    def row_factors(self, inputs: Any, /) -> Factors:
        """Return these gradients split by leaf, for dense layers the two factors of each outer product."""
        factors: Factors = self._rows(kernels.factors, inputs)
        return factors

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Indices of the leaves whose gradients are outer products according to the traced program."""
        return frozenset(self._autodiff.model.outer)

    def _rows(self, program: Any, inputs: Any) -> Any:
        """Run a program for per-row gradients on a padded number of rows, and remove the padding."""
        autodiff = self._autodiff
        m = autodiff.count(inputs)
        padded = jax.tree.map(lambda leaf: pad(leaf, autodiff.arrays.width(m)), inputs)
        found = program(autodiff.model, self._group_rows, autodiff.fixed, self.point.theta, padded)
        return jax.tree.map(lambda part: part[: m * self._outputs], found)

    @property
    def _outputs(self) -> int:
        return int(self.point.y.shape[1])

    @property
    def _group_rows(self) -> int:
        """Number of rows whose gradients are computed together, a power of two; every row has one per output."""
        return max(1, self._autodiff.model.chunk_rows // int(2 ** (self._outputs - 1).bit_length()))

    # -- sums over the training rows -----------------------------------------------------------
    def objective(self) -> float:
        """Return the loss."""
        return self._first_order.result[0]

    def gradient(self) -> jax.Array:
        """Return the gradient of the loss, (p,)."""
        return self._first_order.result[1]

    def product(self, v: jax.Array, curvature: Curvature, /) -> jax.Array:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        autodiff = self._autodiff
        image = kernels.product(autodiff.model, curvature, autodiff.fixed, self.point.theta, self.data, self._padded(v))
        return image[: len(v)] / self.point.n

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return ``(H - J'CJ/n) v``, computed in float32; None if the model cannot be converted to float32."""
        autodiff = self._autodiff
        point = self.point
        # Rows of v and the loss's derivatives are scaled to one, so that nothing overflows or underflows in float32.
        size = np.maximum(np.abs(v).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        scaled = np.zeros((autodiff.arrays.width(len(v)), v.shape[1]), np.float32)
        scaled[: len(v)] = v / size
        first, unit = self._scaled_loss_gradient
        try:
            image = kernels.residual_product(
                autodiff.model, autodiff.fixed, point.theta, self._X.result, first, jnp.asarray(scaled)
            )
        except CannotNarrowError:
            return None
        return np.asarray(image, dtype=np.float64)[: len(v)] * (size * unit / point.n)

    @cached_property
    def _scaled_loss_gradient(self) -> tuple[jax.Array, float]:
        """The first derivatives of the loss in chunks, divided by the largest of them, and that largest one."""
        first = self.loss.result.first
        unit = float(np.abs(first).max()) or 1.0
        return jnp.asarray(chunk(first / unit, *self._w.result.shape, fill="zero")), unit

    def diagonal(self) -> jax.Array:
        """Return the diagonal of the Gauss-Newton part, (p,)."""
        autodiff = self._autodiff
        data = self.data
        rows = data.w.shape[1]
        most = max(1, min(_GROUP_BYTES // (8 * self.factor_numbers * self._outputs), self._group_rows))
        # The largest group that divides a chunk; 1 always does.
        group = max(size for size in range(1, min(rows, most) + 1) if rows % size == 0)
        return kernels.diagonal(autodiff.model, group, autodiff.fixed, self.point.theta, data) / self.point.n

    def jvp(self, v: jax.Array, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        autodiff = self._autodiff
        n, outputs = self.point.y.shape
        chunks = kernels.jvp(autodiff.model, autodiff.fixed, self.point.theta, self._X.result, self._padded(v))
        rows = np.asarray(chunks).transpose(1, 0, 2, 3)[: len(v)]  # from (chunks, k, rows, K)
        return rows.reshape(len(v), -1, outputs)[:, :n]

    def vjp(self, t: np.ndarray, /) -> jax.Array:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        autodiff = self._autodiff
        n, outputs = self.point.y.shape
        chunks, rows = self._w.result.shape
        padded = np.zeros((autodiff.arrays.width(len(t)), chunks * rows, outputs))
        padded[: len(t), :n] = t
        parts = padded.reshape(-1, chunks, rows, outputs).transpose(1, 0, 2, 3)  # to (chunks, k, rows, K)
        return kernels.vjp(autodiff.model, autodiff.fixed, self.point.theta, self._X.result, parts)[: len(t)]

    def _padded(self, v: jax.Array) -> jax.Array:
        """Return v with rows of zeros added up to a number of rows for which programs are compiled."""
        missing = self._autodiff.arrays.width(len(v)) - len(v)
        if missing == 0:
            return v
        return jnp.concatenate([v, jnp.zeros((missing, v.shape[1]), v.dtype)])


def _chunks_on_device(autodiff: JaxAutodiff, point: Point, rows: Any, fill: str = "repeat") -> Any:
    """Copy rows to the device in chunks."""
    sizes = chunk_sizes(point.n, autodiff.model.chunk_rows)
    with autodiff.arrays.scope():
        return jax.tree.map(lambda leaf: jnp.asarray(chunk(leaf, *sizes, fill=fill)), rows)


def _predict_training_rows(autodiff: JaxAutodiff, point: Point, X: Lazy[Any]) -> np.ndarray:
    """Return the predictions on the training rows, (n, K)."""
    # The result is kept, so it must be float64 even if the first read happens outside of the scope.
    with autodiff.arrays.scope():
        return joined(kernels.predictions(autodiff.model, autodiff.fixed, point.theta, X.result), point.n)


def _first_order(
    autodiff: JaxAutodiff, point: Point, X: Lazy[Any], y: Lazy[Any], w: Lazy[Any]
) -> tuple[float, jax.Array]:
    """Return the loss and its gradient, (p,)."""
    data = kernels.Data(X.result, y.result, w.result)
    with autodiff.arrays.scope():
        value, gradient = kernels.gradient(autodiff.model, autodiff.fixed, point.theta, data)
        return float(value) / point.n, gradient / point.n
