"""Compiled derivatives of a JAX model over chunks of training rows.

Every function is compiled once per model and shape. The model is a static argument; parameters and data are ordinary
arguments (data in a closure would become constants of the program). Inside each chunk, ``lax.map`` applies the
linearisation to one right-hand side at a time, so that the linearisation of the chunk stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vhat.errors import ModelError
from vhat.models.jax.affine import is_affine
from vhat.models.jax.fingerprint import fingerprint, python_function
from vhat.models.jax.float32 import narrowed
from vhat.models.jax.kinks import kinked_operations
from vhat.models.jax.outer_products import Factors, find_outer, row_factors
from vhat.models.jax.programs import written_bytes
from vhat.models.jax.pytrees import Layout, Static
from vhat.models.kinks import KinkedOperations

__all__ = [
    "Data",
    "Model",
    "diagonal",
    "factors",
    "gradient",
    "jacobian_rows",
    "jvp",
    "loss_parts",
    "predictions",
    "product",
    "residual_product",
    "vjp",
]

_CHUNK_BYTES = 2**26
"""Memory that the operations on one chunk of rows may write, in bytes. A compiled product takes up to twice that."""
_MAX_CHUNK_ROWS = 512
"""Upper limit on the rows of a chunk, for models that write little per row. Larger chunks would not fit the cache."""


@dataclass(frozen=True)
class Model:
    """A user's functions: the static argument of compiled functions, which does not depend on parameters and data.

    Attributes:
        predict: The user's ``predict(params, X)``.
        layout: Positions of the user's arrays in the flat parameter vector.
        loss: ``None`` for the half squared error summed over outputs, or the user's loss of one row.
        squeeze: Whether predict returns (n,).
        example: Shapes and dtypes of ``fixed``, of the parameters (p,) and of a few rows of X, for tracing.
        fingerprints: Of predict and of the loss when the model was created. Models with equal fingerprints share
            compilations.
    """

    predict: Static
    layout: Layout
    loss: Static | None
    squeeze: bool
    example: tuple[Any, Any, Any] = field(repr=False, compare=False)
    fingerprints: tuple[str, str] = field(repr=False)

    @staticmethod
    def create(
        predict: Static, layout: Layout, loss: Static | None, squeeze: bool, example: tuple[Any, Any, Any]
    ) -> Model:
        """Return the model with the fingerprints of its functions.

        Raises:
            ModelError: When a function changes from one call to the next.
        """
        model = Model(predict, layout, loss, squeeze, example, ("", ""))
        fingerprints = (model._fingerprint_predict(), model._fingerprint_loss())
        again = (model._fingerprint_predict(), model._fingerprint_loss())
        if fingerprints != again:
            raise ModelError(
                "two evaluations of the model on the same rows differ. Fix its random state or switch dropout off: "
                "the interval of a random function is not defined."
            )
        return replace(model, fingerprints=fingerprints)

    def __reduce__(self) -> Any:
        # Fingerprints are computed again: another version of JAX may print the same program differently.
        return Model.create, (self.predict, self.layout, self.loss, self.squeeze, self.example)

    def _fingerprint_predict(self) -> str:
        return fingerprint(self.predict_unchecked, *self.example)

    def _fingerprint_loss(self) -> str:
        if self.loss is None:
            return ""
        with jax.enable_x64(True):
            outputs = jax.eval_shape(self.predict_unchecked, *self.example).shape[1]
        row = jax.ShapeDtypeStruct(() if self.squeeze else (outputs,), self.example[1].dtype)
        return fingerprint(python_function(self.loss.value), row, row)

    def predict_unchecked(self, fixed: tuple[Any, ...], theta: Any, X: Any) -> Any:
        """Return predictions, (m, K), without the check that predict is unchanged."""
        return self._predict(fixed, self.layout.split(theta), X, theta.dtype)

    def _predict(self, fixed: tuple[Any, ...], leaves: Sequence[Any], X: Any, dtype: Any) -> Any:
        """Return predictions, (m, K), as a function of the trained leaves."""
        output = python_function(self.predict.value)(self.layout.fill(leaves, fixed), X)
        return output.reshape(output.shape[0], -1).astype(dtype)

    def row(self, leaves: Sequence[Any], fixed_and_row: tuple[Any, Any]) -> Any:
        """Return the outputs at one row, (K,), as a function of the trained leaves."""
        fixed, x = fixed_and_row
        return self._predict(fixed, leaves, jax.tree.map(lambda leaf: leaf[None], x), leaves[0].dtype)[0]

    @cached_property
    def outer(self) -> dict[int, Any]:
        """The leaves whose gradients are outer products: see :func:`vhat.models.jax.outer_products.find_outer`."""
        fixed, theta, X = self.example
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), X)
        leaves = [jax.ShapeDtypeStruct(shape, theta.dtype) for shape in self.layout.trained]
        with jax.enable_x64(True):
            return find_outer(self.row, leaves, (fixed, one))

    @cached_property
    def affine(self) -> bool:
        """Whether the traced program proves predictions affine in the parameters."""
        with jax.enable_x64(True):
            return is_affine(self.predict_unchecked, *self.example)

    @cached_property
    def kinks(self) -> KinkedOperations:
        """The kinked operations of the traced program on parameter-dependent values."""
        with jax.enable_x64(True):
            return kinked_operations(self.predict_unchecked, *self.example)

    @cached_property
    def row_bytes(self) -> int:
        """Memory that one more row of a chunk writes, in bytes."""
        fixed, theta, X = self.example

        def written(rows: int) -> int:
            some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), X)
            return written_bytes(jax.make_jaxpr(self.predict_unchecked)(fixed, theta, some).jaxpr)

        with jax.enable_x64(True):
            # The difference leaves out what does not depend on the number of rows.
            return max(1, (written(8) - written(4)) // 4)

    @property
    def chunk_rows(self) -> int:
        """Number of rows in a chunk, a power of two."""
        rows = max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES // self.row_bytes))
        return int(2 ** (rows.bit_length() - 1))

    def __call__(self, fixed: tuple[Any, ...], theta: Any, X: Any) -> Any:
        """Return predictions, (m, K), in the dtype of theta. The check runs when a caller is traced.

        Raises:
            ModelError: When predict has changed since the model was created.
        """
        if self._fingerprint_predict() != self.fingerprints[0]:
            raise _changed("predict")
        return self.predict_unchecked(fixed, theta, X)

    def row_loss(self, f: Any, y: Any) -> Any:
        """Return ``l(f_i, y_i)`` of one row, f and y (K,)."""
        if self.loss is None:
            return 0.5 * jnp.sum((f - y) ** 2)
        if self._fingerprint_loss() != self.fingerprints[1]:
            raise _changed("loss")
        if self.squeeze:
            f, y = f[0], y[0]
        return jnp.sum(python_function(self.loss.value)(f, y))

    def row_curvature(self, f: Any, y: Any) -> Any:
        """Return ``d2l/df df`` of one row, (K, K)."""
        if self.loss is None:
            return jnp.eye(f.shape[0], dtype=f.dtype)
        return jax.hessian(self.row_loss)(f, y)

    def total(self, fixed: tuple[Any, ...], theta: Any, X: Any, y: Any, w: Any) -> Any:
        """Return ``sum_i w_i l_i`` over a chunk."""
        return jnp.sum(w * jax.vmap(self.row_loss)(self(fixed, theta, X), y))


def _changed(name: str) -> ModelError:
    return ModelError(
        f"{name} has changed since this model was created: a value that it reads is different (a setting, statistics "
        f"that training updates). Keep a copy of what {name} closes over, or create the model again to use the new "
        "values."
    )


class Data(NamedTuple):
    """Training rows in chunks: arrays of shape (chunks, rows, ...). Padding rows have weight zero."""

    X: Any
    y: Any
    w: Any


def _accumulate(body: Any, data: Data, start: Any) -> Any:
    """Sum ``body(chunk)`` over the chunks."""
    return jax.lax.scan(lambda total, part: (total + body(part), None), start, data)[0]


@partial(jax.jit, static_argnums=0)
def predictions(model: Model, fixed: Any, theta: Any, X: Any) -> Any:
    """Return predictions for chunked inputs, (chunks, rows, K)."""
    return jax.lax.map(lambda part: model(fixed, theta, part), X)


@partial(jax.jit, static_argnums=0)
def gradient(model: Model, fixed: Any, theta: Any, data: Data) -> tuple[Any, Any]:
    """Return ``sum_i w_i l_i`` and its gradient."""

    def body(total: Any, part: Data) -> tuple[Any, None]:
        value, slope = jax.value_and_grad(model.total, argnums=1)(fixed, theta, *part)
        return (total[0] + value, total[1] + slope), None

    return jax.lax.scan(body, (jnp.zeros((), theta.dtype), jnp.zeros_like(theta)), data)[0]


@partial(jax.jit, static_argnums=(0, 1))
def product(model: Model, curvature: str, fixed: Any, theta: Any, data: Data, v: Any) -> Any:
    """Return ``n H v`` or ``J'CJ v`` for each row of v, (k, p)."""

    def hessian(part: Data) -> Any:
        # Forward over reverse mode: the linearised gradient multiplies by the Hessian.
        _, linear = jax.linearize(lambda t: jax.grad(model.total, argnums=1)(fixed, t, *part), theta)
        return jax.lax.map(linear, v)

    def gauss_newton(part: Data) -> Any:
        # `forward` multiplies by J and `backward` by J', both from one linearisation.
        f, forward = jax.linearize(lambda t: model(fixed, t, part.X), theta)
        backward = jax.linear_transpose(forward, theta)
        weights = part.w[:, None, None] * jax.vmap(model.row_curvature)(f, part.y)  # C, sample weights included
        return jax.lax.map(lambda u: backward(jnp.einsum("iab,ib->ia", weights, forward(u)))[0], v)

    return _accumulate(hessian if curvature == "hessian" else gauss_newton, data, jnp.zeros_like(v))


@partial(jax.jit, static_argnums=0)
def residual_product(model: Model, fixed: Any, theta: Any, X: Any, first: Any, v: Any) -> Any:
    """Return ``sum_i sum_a first_ia hess f_ia v`` for each row of v, (k, p) in float32.

    Raises:
        CannotNarrowError: If the model contains an operation that cannot be converted to float32.
    """

    def body(part: tuple[Any, Any]) -> Any:
        gradient = jax.grad(lambda t: jnp.sum(part[1] * model(fixed, t, part[0])))
        _, linear = jax.linearize(gradient, theta)  # in float64; only the products below are float32
        return jax.lax.map(narrowed(linear, theta), v)

    return jax.lax.scan(lambda total, part: (total + body(part), None), jnp.zeros_like(v), (X, first))[0]


@partial(jax.jit, static_argnums=0)
def jvp(model: Model, fixed: Any, theta: Any, X: Any, v: Any) -> Any:
    """Return ``J v`` for each row of v: (chunks, k, rows, K)."""

    def body(part: Any) -> Any:
        _, forward = jax.linearize(lambda t: model(fixed, t, part), theta)
        return jax.lax.map(forward, v)

    return jax.lax.map(body, X)


@partial(jax.jit, static_argnums=0)
def vjp(model: Model, fixed: Any, theta: Any, X: Any, t: Any) -> Any:
    """Return ``J' t`` for blocks t of shape (chunks, k, rows, K): (k, p)."""

    def body(total: Any, part: tuple[Any, Any]) -> tuple[Any, None]:
        _, backward = jax.vjp(lambda u: model(fixed, u, part[0]), theta)
        return total + jax.lax.map(lambda s: backward(s)[0], part[1]), None

    start = jnp.zeros((t.shape[1], theta.shape[0]), theta.dtype)
    return jax.lax.scan(body, start, (X, t))[0]


def _row_by_row(one: Any, X: Any, group: int) -> Any:
    """Map ``one`` over rows, in batches of at most ``group`` rows."""
    rows = len(jax.tree.leaves(X)[0])
    if rows <= group:
        return jax.vmap(one)(X)
    return jax.lax.map(one, X, batch_size=group)


@partial(jax.jit, static_argnums=(0, 1))
def jacobian_rows(model: Model, group: int, fixed: Any, theta: Any, X: Any) -> Any:
    """Return per-row gradients of every output, (m * K, p), ``group`` rows at a time."""

    def one(x: Any) -> Any:
        # predict takes whole rows, so a single row is passed as a block of one.
        return jax.jacrev(lambda t: model(fixed, t, jax.tree.map(lambda leaf: leaf[None], x))[0])(theta)

    return _row_by_row(one, X, group).reshape(-1, theta.shape[0])


@partial(jax.jit, static_argnums=(0, 1))
def factors(model: Model, group: int, fixed: Any, theta: Any, X: Any) -> Factors:
    """Return the gradients at many rows by leaf: a pair (m * K, a), (m * K, b), or a 1-tuple (m * K, size)."""
    factors = _factors(model, group, fixed, theta, X)
    return tuple(tuple(part.reshape(-1, part.shape[-1]) for part in leaf) for leaf in factors)


def _factors(model: Model, group: int, fixed: Any, theta: Any, X: Any) -> Factors:
    """Return the gradients by leaf, with axes (rows, outputs, size)."""
    model(fixed, theta, X)  # for its check that predict is unchanged; the result is not used and not computed
    leaves = model.layout.split(theta)
    return _row_by_row(lambda x: row_factors(model.row, leaves, (fixed, x), model.outer), X, group)


@partial(jax.jit, static_argnums=(0, 1))
def diagonal(model: Model, group: int, fixed: Any, theta: Any, data: Data) -> Any:
    """Return ``sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,), ``group`` rows at a time."""
    # From chunks to groups: per-row gradients take more memory than the other derivatives of a chunk.
    data = jax.tree.map(lambda leaf: leaf.reshape(-1, group, *leaf.shape[2:]), data)

    def body(part: Data) -> Any:
        curvature = jax.vmap(model.row_curvature)(model(fixed, theta, part.X), part.y)
        weights = part.w[:, None] * jnp.maximum(jnp.diagonal(curvature, axis1=1, axis2=2), 0.0)
        # The squares of an outer product are the outer product of the squares.
        squares = jax.tree.map(jnp.square, _factors(model, group, fixed, theta, part.X))
        return jnp.concatenate([_weighted_sum(weights, *leaf) for leaf in squares])

    return _accumulate(body, data, jnp.zeros_like(theta))


def _weighted_sum(weights: Any, *parts: Any) -> Any:
    """Return the weighted sum of vectors, or of outer products of two vectors, over rows and outputs, (size,).

    Args:
        weights: (rows, outputs).
        parts: The vectors, (rows, outputs, size); or the factors u and w of outer products ``u w'``.
    """
    if len(parts) == 1:
        return jnp.einsum("ik,ikp->p", weights, parts[0])
    u, w = parts
    return jnp.einsum("ika,ikb->ab", weights[:, :, None] * u, w).ravel()


@partial(jax.jit, static_argnums=0)
def loss_parts(model: Model, f: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Return value, first, second and cross derivative of the loss of each row, unweighted."""
    first = jax.grad(model.row_loss)
    values = jax.vmap(model.row_loss)(f, y)
    cross = jax.vmap(jax.jacfwd(first, argnums=1))(f, y)
    return values, jax.vmap(first)(f, y), jax.vmap(model.row_curvature)(f, y), cross
