"""Compiled derivatives of a JAX model over chunks of training rows.

Every function is compiled once per model and shape: the model is static, parameters and data are arguments (data
that are closed over would be folded into the program as constants). Right-hand sides go one by one through
``lax.map`` inside each chunk, so that a chunk's linearisation stays in cache.
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
from vhat.models.jax.fingerprint import mark, python_function
from vhat.models.jax.float32 import narrowed
from vhat.models.jax.kinks import kinked_operations
from vhat.models.jax.outer_products import Factors, find_outer, row_factors
from vhat.models.jax.program_size import written_bytes
from vhat.models.jax.pytrees import Held, Layout
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

_PASS_BYTES = 2**26
"""What a pass over some rows may write; a compiled product takes up to twice that."""
_MOST_ROWS = 512
"""In one pass, however little a row writes: more would leave the cache."""


@dataclass(frozen=True)
class Model:
    """What stays the same when parameters and data change.

    Attributes:
        predict: The user's ``predict(params, X)``.
        layout: How a flat vector fills params.
        loss: ``None`` for the half squared error summed over outputs, or the user's loss of one row.
        squeeze: Whether predict returns (n,).
        example: Shapes of ``fixed``, of the parameters (p,) and of a few rows of X, for the marks.
        marks: Of predict and of the loss, when the model was made: models with equal marks share compilations.
    """

    predict: Held
    layout: Layout
    loss: Held | None
    squeeze: bool
    example: tuple[Any, Any, Any] = field(repr=False, compare=False)
    marks: tuple[str, str] = field(repr=False)

    @staticmethod
    def of(predict: Held, layout: Layout, loss: Held | None, squeeze: bool, example: tuple[Any, Any, Any]) -> Model:
        """Mark the functions as they are now.

        Raises:
            ModelError: When a function is another one each time it is called.
        """
        bare = Model(predict, layout, loss, squeeze, example, ("", ""))
        marks = bare._mark_of_predict(), bare._mark_of_loss()
        if marks != (bare._mark_of_predict(), bare._mark_of_loss()):
            raise ModelError(
                "two evaluations of the model on the same rows differ. Fix its random state or switch dropout off: "
                "the interval of a random function is not defined."
            )
        return replace(bare, marks=marks)

    def __reduce__(self) -> Any:  # marks are made anew: another version of JAX may write the same program otherwise
        return Model.of, (self.predict, self.layout, self.loss, self.squeeze, self.example)

    def _mark_of_predict(self) -> str:
        return mark(self.unguarded, *self.example)

    def _mark_of_loss(self) -> str:
        if self.loss is None:
            return ""
        with jax.enable_x64(True):
            outputs = jax.eval_shape(self.unguarded, *self.example).shape[1]
        row = jax.ShapeDtypeStruct(() if self.squeeze else (outputs,), self.example[1].dtype)
        return mark(python_function(self.loss.value), row, row)

    def unguarded(self, fixed: tuple[Any, ...], theta: Any, X: Any) -> Any:
        """Return predictions of the function as it is now, changed or not."""
        return self._filled(fixed, self.layout.split(theta), X, theta.dtype)

    def _filled(self, fixed: tuple[Any, ...], leaves: Sequence[Any], X: Any, dtype: Any) -> Any:
        output = python_function(self.predict.value)(self.layout.fill(leaves, fixed), X)
        return output.reshape(output.shape[0], -1).astype(dtype)

    def row(self, leaves: Sequence[Any], fixed_and_row: tuple[Any, Any]) -> Any:
        """Return the outputs at one row, (K,), as a function of the leaves."""
        fixed, x = fixed_and_row
        return self._filled(fixed, leaves, jax.tree.map(lambda leaf: leaf[None], x), leaves[0].dtype)[0]

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
        """Whether predictions are an affine function of the parameters, as the program shows."""
        with jax.enable_x64(True):
            return is_affine(self.unguarded, *self.example)

    @cached_property
    def kinks(self) -> KinkedOperations:
        """The kinked operations that act on the parameters, as the program shows them."""
        with jax.enable_x64(True):
            return kinked_operations(self.unguarded, *self.example)

    @cached_property
    def row_bytes(self) -> int:
        """What a pass over one row more writes."""
        fixed, theta, X = self.example

        def written(rows: int) -> int:
            some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), X)
            return written_bytes(jax.make_jaxpr(self.unguarded)(fixed, theta, some).jaxpr)

        with jax.enable_x64(True):
            return max(1, (written(8) - written(4)) // 4)

    @property
    def rows_together(self) -> int:
        """How many rows one pass takes, a power of two."""
        fit = max(1, min(_MOST_ROWS, _PASS_BYTES // self.row_bytes))
        return int(2 ** (fit.bit_length() - 1))

    def __call__(self, fixed: tuple[Any, ...], theta: Any, X: Any) -> Any:
        """Return predictions as (m, K) float64.

        Raises:
            ModelError: When predict is not what it was when the model was made.
        """
        if self._mark_of_predict() != self.marks[0]:
            raise _changed("predict")
        return self.unguarded(fixed, theta, X)

    def row_loss(self, f: Any, y: Any) -> Any:
        """Return ``l(f_i, y_i)`` of one row, f and y (K,)."""
        if self.loss is None:
            return 0.5 * jnp.sum((f - y) ** 2)
        if self._mark_of_loss() != self.marks[1]:
            raise _changed("loss")
        if self.squeeze:
            f, y = f[0], y[0]
        return jnp.sum(python_function(self.loss.value)(f, y))

    def row_curvature(self, f: Any, y: Any) -> Any:
        """Return ``d2l/df df`` of one row, (K, K)."""
        return jnp.eye(f.shape[0], dtype=f.dtype) if self.loss is None else jax.hessian(self.row_loss)(f, y)

    def total(self, fixed: tuple[Any, ...], theta: Any, X: Any, y: Any, w: Any) -> Any:
        """Return ``sum_i w_i l_i`` over a chunk."""
        return jnp.sum(w * jax.vmap(self.row_loss)(self(fixed, theta, X), y))


def _changed(name: str) -> ModelError:
    return ModelError(
        f"{name} is not the function that it was when this model was made: something that it reads has changed since "
        f"(a setting, statistics that training updates). Keep a copy of what {name} closes over, and make the model "
        "anew if the new values are meant."
    )


class Data(NamedTuple):
    """Training rows in chunks: leaves (chunks, rows, ...); padding has weight zero."""

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
        _, linear = jax.linearize(lambda t: jax.grad(model.total, argnums=1)(fixed, t, *part), theta)
        return jax.lax.map(linear, v)

    def gauss_newton(part: Data) -> Any:
        f, forward = jax.linearize(lambda t: model(fixed, t, part.X), theta)
        backward = jax.linear_transpose(forward, theta)
        weights = part.w[:, None, None] * jax.vmap(model.row_curvature)(f, part.y)
        return jax.lax.map(lambda u: backward(jnp.einsum("iab,ib->ia", weights, forward(u)))[0], v)

    return _accumulate(hessian if curvature == "hessian" else gauss_newton, data, jnp.zeros_like(v))


@partial(jax.jit, static_argnums=0)
def residual_product(model: Model, fixed: Any, theta: Any, X: Any, first: Any, v: Any) -> Any:
    """Return ``sum_i sum_a first_ia hess f_ia v`` for each row of v, (k, p) in float32.

    Raises:
        CannotNarrowError: Where the model holds what has no single-precision twin.
    """

    def body(part: tuple[Any, Any]) -> Any:
        slope = jax.grad(lambda t: jnp.sum(part[1] * model(fixed, t, part[0])))
        return jax.lax.map(narrowed(jax.linearize(slope, theta)[1], theta), v)

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
    """Map ``one`` over rows, at most ``group`` of them at a time."""
    rows = len(jax.tree.leaves(X)[0])
    return jax.vmap(one)(X) if rows <= group else jax.lax.map(one, X, batch_size=group)


@partial(jax.jit, static_argnums=(0, 1))
def jacobian_rows(model: Model, group: int, fixed: Any, theta: Any, X: Any) -> Any:
    """Return per-row gradients of every output, (m * K, p), ``group`` rows at a time."""

    def one(x: Any) -> Any:
        return jax.jacrev(lambda t: model(fixed, t, jax.tree.map(lambda leaf: leaf[None], x))[0])(theta)

    return _row_by_row(one, X, group).reshape(-1, theta.shape[0])


@partial(jax.jit, static_argnums=(0, 1))
def factors(model: Model, group: int, fixed: Any, theta: Any, X: Any) -> Factors:
    """Return the gradients at many rows, leaf by leaf: a pair (m * K, a), (m * K, b), or (m * K, size)."""
    found = _factors(model, group, fixed, theta, X)
    return tuple(tuple(part.reshape(-1, part.shape[-1]) for part in leaf) for leaf in found)


def _factors(model: Model, group: int, fixed: Any, theta: Any, X: Any) -> Factors:
    model(fixed, theta, X)  # refuses a function that has changed
    leaves = model.layout.split(theta)
    return _row_by_row(lambda x: row_factors(model.row, leaves, (fixed, x), model.outer), X, group)


@partial(jax.jit, static_argnums=(0, 1))
def diagonal(model: Model, group: int, fixed: Any, theta: Any, data: Data) -> Any:
    """Return ``sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,), ``group`` rows at a time."""
    data = jax.tree.map(lambda leaf: leaf.reshape(-1, group, *leaf.shape[2:]), data)

    def body(part: Data) -> Any:
        own = jax.vmap(model.row_curvature)(model(fixed, theta, part.X), part.y)
        weights = part.w[:, None] * jnp.maximum(jnp.diagonal(own, axis1=1, axis2=2), 0.0)
        squares = jax.tree.map(jnp.square, _factors(model, group, fixed, theta, part.X))
        return jnp.concatenate([_weighted_sum(weights, *leaf) for leaf in squares])

    return _accumulate(body, data, jnp.zeros_like(theta))


def _weighted_sum(weights: Any, *parts: Any) -> Any:
    """Sum the rows, or the outer products of two, over rows and outputs, (size,)."""
    if len(parts) == 1:
        return jnp.einsum("ik,ikp->p", weights, parts[0])
    return jnp.einsum("ika,ikb->ab", weights[:, :, None] * parts[0], parts[1]).ravel()


@partial(jax.jit, static_argnums=0)
def loss_parts(model: Model, f: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Return value, first, second and cross derivative of the loss of each row, unweighted."""
    slope = jax.grad(model.row_loss)
    value = jax.vmap(model.row_loss)(f, y)
    cross = jax.vmap(jax.jacfwd(slope, argnums=1))(f, y)
    return value, jax.vmap(slope)(f, y), jax.vmap(model.row_curvature)(f, y), cross
