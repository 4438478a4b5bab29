"""A JAX function and its training data as a :class:`vhat.models.problem.Problem`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.checks import check_finite
from vhat.errors import ModelError
from vhat.models.jax import compiled as kernels
from vhat.models.jax import pytrees
from vhat.models.jax.affine import is_affine
from vhat.models.jax.float32 import CannotNarrowError
from vhat.models.jax.outer_products import Factors
from vhat.models.problem import Curvature, Functional, LossDerivatives, ModelFacts, diagonal_if_separable
from vhat.models.validate import refuse_flat_functional, refuse_functional

__all__ = ["JaxProblem"]

_FEW = 8
_GROUP_BYTES = 2**26
_PASS_BYTES = 2**26
"""What a pass over some rows may write; a compiled product takes up to twice that."""
_MOST_ROWS = 512
"""In one pass, however little a row writes: more would leave the cache."""
_compile = lru_cache(maxsize=None)(jax.jit)


@dataclass(frozen=True, eq=False)
class JaxProblem:
    """A JAX model and its training data at one parameter vector: see :class:`vhat.models.problem.Problem`."""

    model: kernels.Model
    fixed: tuple[Any, ...]
    theta: jax.Array
    decay: jax.Array
    X: Any = field(repr=False)
    targets: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    memory: int
    dtype: str
    columns: tuple[tuple[Any, ...] | None, ...]

    def __getstate__(self) -> dict[str, Any]:
        # fields alone, and as NumPy: read outside the float64 scope, a JAX array would lose half of its digits
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return state | {"theta": np.asarray(self.theta), "decay": np.asarray(self.decay)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with self.scope():
            self.__dict__.update(state | {name: self.native(state[name]) for name in ("theta", "decay")})

    # -- sizes -----------------------------------------------------------------------------
    @property
    def n(self) -> int:
        """How many training rows there are."""
        return len(self.targets)

    @property
    def outputs(self) -> int:
        """How many outputs the model has."""
        return int(self.targets.shape[1])

    @property
    def p(self) -> int:
        """How many parameters were trained."""
        return int(self.theta.shape[0])

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the trained leaves, in the order of the flat vector."""
        return self.model.layout.trained

    @property
    def squeeze(self) -> bool:
        """Whether the model returns (n,)."""
        return self.model.squeeze

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of the parameters, as the traced program shows."""
        return self.model.affine

    @cached_property
    def data(self) -> kernels.Data:
        """The training rows in chunks, on the device."""
        sizes = pytrees.chunk_sizes(self.n, self._rows_together)
        with self.scope():
            return kernels.Data(
                jax.tree.map(lambda leaf: jnp.asarray(pytrees.chunk(leaf, *sizes)), self.X),
                jnp.asarray(pytrees.chunk(self.targets, *sizes)),
                jnp.asarray(pytrees.chunk(self.weights, *sizes, fill="zero")),
            )

    @property
    def _rows_together(self) -> int:
        """How many rows one pass takes, a power of two."""
        fit = max(1, min(_MOST_ROWS, _PASS_BYTES // self.model.row_bytes))
        return int(2 ** (fit.bit_length() - 1))

    @property
    def _gradients_together(self) -> int:
        """The same for gradients, of which a row has one an output; a power of two."""
        return max(1, self._rows_together // int(2 ** (self.outputs - 1).bit_length()))

    # -- the fitted model --------------------------------------------------------------------
    @property
    def params(self) -> Any:
        """The parameters in the user's own pytree, as NumPy float64."""
        return self.model.layout.unflatten(np.asarray(self.theta), self.fixed)

    @cached_property
    def fitted_values(self) -> np.ndarray:
        """Predictions on the training rows, (n, K)."""
        with self.scope():  # what is kept must be double, whoever asks first
            values = kernels.predictions(self.model, self.fixed, self.theta, self.data.X)
        return np.asarray(values).reshape(-1, self.outputs)[: self.n]

    @cached_property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss and its derivatives on the training rows."""
        w, f = self.weights, self.fitted_values
        if self.model.loss is None:
            r, ones = f - self.targets, np.ones_like(f)
            value, weights = w * 0.5 * (r**2).sum(1), w[:, None] * ones
            return LossDerivatives(value, w[:, None] * r, weights, -weights, location=True, square=True)
        with self.scope():
            value, first, second, cross = map(np.asarray, kernels.loss_parts(self.model, f, self.targets))
        return LossDerivatives(
            w * value,
            w[:, None] * first,
            diagonal_if_separable(w[:, None, None] * second),
            diagonal_if_separable(w[:, None, None] * cross),
            bool(np.allclose(cross, -second, rtol=1e-9, atol=1e-12 * np.abs(second).max())),
        )

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts."""
        X = jax.tree.map(jnp.asarray, pytrees.first_rows(self.X, _FEW))  # a model may use what NumPy's arrays lack
        first, second = (np.asarray(self.model.unguarded(self.fixed, self.theta, X)) for _ in range(2))
        compiled = self.predict(X)  # the same rows in the same company
        near = np.allclose(first, compiled, rtol=1e-6, atol=1e-9 * max(np.abs(compiled).max(), 1e-300))
        traced = jax.make_jaxpr(lambda t: self.model.predict.value(self.model.layout.unflatten(t, self.fixed), X))(
            self.theta
        )
        casts = tuple(dict.fromkeys(pytrees.narrow_casts(traced.jaxpr)))
        same = np.array_equal(first, second) and (near or bool(casts))
        accuracy = 1e-7 if casts else 1e-14
        return ModelFacts("jax", self.dtype, same, casts, accuracy, accuracy)

    def at(self, theta: Any) -> JaxProblem:
        """Return the same problem at other parameters, sharing the data."""
        moved = replace(self, theta=jnp.asarray(theta, jnp.float64))
        moved.__dict__["data"] = self.data
        return moved

    def with_targets(self, y: np.ndarray) -> JaxProblem:
        """Return the same problem with other responses."""
        targets = np.asarray(y, dtype=np.float64).reshape(self.targets.shape)
        chunked = jnp.asarray(pytrees.chunk(targets, *self.data.w.shape))
        moved = replace(self, targets=targets)
        moved.__dict__["data"] = self.data._replace(y=chunked)
        return moved

    def with_decay(self, decay: Any) -> JaxProblem:
        """Return the same problem under another decay, (p,)."""
        moved = replace(self, decay=jnp.asarray(decay, jnp.float64))
        moved.__dict__["data"] = self.data
        return moved

    def rows(self, index: np.ndarray) -> JaxProblem:
        """Return the problem of some training rows alone."""
        X = jax.tree.map(lambda leaf: leaf[index], self.X)
        part = replace(self, X=X, targets=self.targets[index], weights=self.weights[index])
        part.__dict__["fitted_values"] = self.fitted_values[index]
        return part

    # -- test points -------------------------------------------------------------------------
    def inputs(self, x: Any) -> Any:
        """Check test inputs against the training inputs."""
        return pytrees.match_inputs(x, self.X, self.columns)

    def count(self, inputs: Any) -> int:
        """Return how many rows checked inputs hold."""
        return len(jax.tree.leaves(inputs)[0])

    def take(self, inputs: Any, start: int, stop: int) -> Any:
        """Return rows of checked inputs."""
        return pytrees.take(inputs, start, stop)

    def predict(self, inputs: Any) -> np.ndarray:
        """Predictions at checked inputs, (m, K)."""
        m = self.count(inputs)
        sizes = pytrees.chunk_sizes(m, self._rows_together)
        parts = jax.tree.map(lambda leaf: pytrees.chunk(leaf, *sizes), inputs)
        values = kernels.predictions(self.model, self.fixed, self.theta, parts)
        found = np.asarray(values).reshape(-1, self.outputs)[:m]
        check_finite("the model's prediction at x", found, ModelError)
        return found

    def gradients(self, inputs: Any) -> jax.Array:
        """Per-row gradients of every output, (m * K, p)."""
        m = self.count(inputs)
        filled = jax.tree.map(lambda leaf: pytrees.pad(leaf, self.padded(m)), inputs)
        found = kernels.jacobian_rows(self.model, self._gradients_together, self.fixed, self.theta, filled)
        return found[: m * self.outputs]

    def factors(self, inputs: Any) -> Factors:
        """The same leaf by leaf, dense layers as the two factors of each outer product."""
        m = self.count(inputs)
        filled = jax.tree.map(lambda leaf: pytrees.pad(leaf, self.padded(m)), inputs)
        found = kernels.factors(self.model, self._gradients_together, self.fixed, self.theta, filled)
        return tuple(tuple(part[: m * self.outputs] for part in leaf) for leaf in found)

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves whose gradients are outer products, as the program shows."""
        return frozenset(self.model.outer)

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``factors`` gives for each output of a row."""
        outer, sizes = self.outer_leaves, enumerate(self.leaves)
        return sum(sum(shape) if number in outer else int(np.prod(shape)) for number, shape in sizes)

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Value and gradient of ``q(params)``."""

        def flat(theta: Any) -> Any:
            return jnp.asarray(q(self.model.layout.unflatten(theta, self.fixed)))

        with pytrees.in_words("differentiating the functional"):
            value, again = (np.asarray(flat(self.theta)) for _ in range(2))
            refuse_functional(value, again)
            gradient = jax.jacrev(flat)(self.theta).reshape(-1, self.p)
        refuse_flat_functional(np.asarray(gradient))
        return Functional(value.astype(np.float64), gradient, self._is_affine(q))

    def _is_affine(self, q: Callable[[Any], Any]) -> bool:
        def flat(fixed: Any, theta: Any, _: Any) -> Any:
            return jnp.asarray(q(self.model.layout.unflatten(theta, fixed)))

        try:
            return is_affine(flat, self.fixed, self.theta, ())
        except Exception:  # a functional that asks for numbers has derivatives, but cannot be traced
            return False

    # -- derivatives over the training rows ------------------------------------------------------
    @cached_property
    def _first_order(self) -> tuple[float, jax.Array]:
        with self.scope():
            value, slope = kernels.gradient(self.model, self.fixed, self.theta, self.data)
            return float(value) / self.n, slope / self.n

    def objective(self) -> float:
        """The loss, without the penalty."""
        return self._first_order[0]

    def gradient(self) -> jax.Array:
        """The gradient of the loss, without the penalty, (p,)."""
        return self._first_order[1]

    def product(self, v: jax.Array, curvature: Curvature) -> jax.Array:
        """``H v`` or its Gauss-Newton part for each row of v, without decay."""
        filled = self._widened(v)
        return kernels.product(self.model, curvature, self.fixed, self.theta, self.data, filled)[: len(v)] / self.n

    def residual_product(self, v: np.ndarray, /) -> np.ndarray | None:
        """``(H - J'CJ/n) v`` for each row of v, products in single precision; None where the model has no such twin."""
        size = np.maximum(np.abs(v).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        filled = np.zeros((self.padded(len(v)), self.p), np.float32)
        filled[: len(v)] = v / size
        first, unit = self._slopes
        try:
            found = kernels.residual_product(
                self.model, self.fixed, self.theta, self.data.X, first, jnp.asarray(filled)
            )
        except CannotNarrowError:
            return None
        return np.asarray(found, dtype=np.float64)[: len(v)] * (size * unit / self.n)

    @cached_property
    def _slopes(self) -> tuple[jax.Array, float]:
        """The loss's slopes in chunks, the largest made one, and what it was."""
        first = self.loss_derivatives.first
        unit = float(np.abs(first).max()) or 1.0
        return jnp.asarray(pytrees.chunk(first / unit, *self.data.w.shape, fill="zero")), unit

    def diagonal(self) -> jax.Array:
        """The diagonal of the Gauss-Newton part, (p,)."""
        rows = self.data.w.shape[1]
        fits = max(1, min(_GROUP_BYTES // (8 * self.factor_numbers * self.outputs), self._gradients_together))
        group = max(size for size in range(1, rows + 1) if rows % size == 0 and (size <= fits or size == 1))
        return kernels.diagonal(self.model, group, self.fixed, self.theta, self.data) / self.n

    def jvp(self, v: jax.Array) -> np.ndarray:
        """``J v`` for each row of v: (k, p) to (k, n, K)."""
        parts = np.asarray(kernels.jvp(self.model, self.fixed, self.theta, self.data.X, self._widened(v)))
        return parts.transpose(1, 0, 2, 3)[: len(v)].reshape(len(v), -1, self.outputs)[:, : self.n]

    def vjp(self, t: np.ndarray) -> jax.Array:
        """``J' t`` for each block of t: (k, n, K) to (k, p)."""
        chunks, rows = self.data.w.shape
        filled = np.zeros((self.padded(len(t)), chunks * rows, self.outputs))
        filled[: len(t), : self.n] = t
        parts = filled.reshape(-1, chunks, rows, self.outputs).transpose(1, 0, 2, 3)
        return kernels.vjp(self.model, self.fixed, self.theta, self.data.X, parts)[: len(t)]

    def _widened(self, v: jax.Array) -> jax.Array:
        short = self.padded(len(v)) - len(v)
        return v if short == 0 else jnp.concatenate([v, jnp.zeros((short, self.p), v.dtype)])

    # -- arrays ------------------------------------------------------------------------------
    def scope(self) -> AbstractContextManager[Any]:
        """Float64 for the duration of one call; the global flag is not touched."""
        return jax.enable_x64(True)

    def native(self, a: np.ndarray) -> jax.Array:
        """Bring a NumPy array to the device."""
        return jnp.asarray(a, jnp.float64)

    def numpy(self, a: Any) -> np.ndarray:
        """Bring a device array to NumPy."""
        return np.asarray(a, dtype=np.float64)

    def padded(self, k: int) -> int:
        """The next power of two: few shapes are compiled."""
        return int(2 ** max(k - 1, 0).bit_length())

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a pure function, once."""
        return _compile(step)
