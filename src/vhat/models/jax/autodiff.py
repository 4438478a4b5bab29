"""A JAX function and its loss as functions of a flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.models.jax import compiled as kernels
from vhat.models.jax import pytrees
from vhat.models.jax.affine import is_affine
from vhat.models.jax.arrays import JaxArrays
from vhat.models.jax.chunks import chunk, chunk_sizes, joined
from vhat.models.jax.linearised import JaxLinearised
from vhat.models.kinks import KinkedOperations
from vhat.models.loss import LossDerivatives, diagonal_if_separable, half_square
from vhat.models.protocols import Functional, Linearised, Point
from vhat.models.validate import refuse_flat_functional, refuse_functional

__all__ = ["JaxAutodiff"]


@dataclass(frozen=True, eq=False)
class JaxAutodiff:
    """A JAX function: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        model: The functions and the layout of the parameters, for which programs are compiled.
        fixed: The arrays among the parameters that were not trained.
        dtype: The dtype in which the parameters were given.
        leaf_columns: Column names of each array of inputs that was a data frame, None for other arrays.
        selected: Names of the trained leaves, if ``parameters=`` has selected them.
        output: The user's ``output=``, which selects the prediction in the function's return value.
    """

    model: kernels.Model
    fixed: tuple[Any, ...]
    dtype: str
    leaf_columns: tuple[tuple[Any, ...] | None, ...]
    selected: tuple[str, ...] | None = None
    output: Any = None

    framework = "jax"
    arrays = JaxArrays()

    @property
    def squeeze(self) -> bool:
        """Whether the model returns (n,)."""
        return self.model.squeeze

    @property
    def linear(self) -> bool:
        """Whether the traced program proves the predictions affine in the parameters."""
        return self.model.affine

    @property
    def held_fixed(self) -> bool:
        """Whether ``parameters=`` holds leaves fixed, which may have been trained on the same responses."""
        return self.selected is not None

    @property
    def kinks(self) -> KinkedOperations:
        """The kinked operations of the traced program on parameter-dependent values."""
        return self.model.kinks

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the trained leaves, in the order of the flat vector."""
        return self.model.layout.trained

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Column names, if the inputs were one data frame; else None."""
        return self.leaf_columns[0] if len(self.leaf_columns) == 1 else None

    # -- inputs ------------------------------------------------------------------------------
    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs against the training inputs."""
        return pytrees.match_inputs(x, X, self.leaf_columns)

    def count(self, inputs: Any, /) -> int:
        """Return the number of rows in checked inputs."""
        return len(jax.tree.leaves(inputs)[0])

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return some rows of checked inputs."""
        return jax.tree.map(lambda leaf: leaf[index], inputs)

    # -- values ------------------------------------------------------------------------------
    def predict(self, theta: jax.Array, inputs: Any, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K)."""
        m = self.count(inputs)
        sizes = chunk_sizes(m, self.model.chunk_rows)
        chunks = jax.tree.map(lambda leaf: chunk(leaf, *sizes), inputs)
        return joined(kernels.predictions(self.model, self.fixed, theta, chunks), m)

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives."""
        if self.model.loss is None:
            return half_square(f, y, weights)
        with self.arrays.scope():
            value, first, second, cross = map(np.asarray, kernels.loss_parts(self.model, f, y))
        # A loss of f - y has the cross derivative -second; other losses seldom have, at the fitted values of all rows.
        location = bool(np.allclose(cross, -second, rtol=1e-9, atol=1e-12 * np.abs(second).max()))
        return LossDerivatives(
            weights * value,
            weights[:, None] * first,
            diagonal_if_separable(weights[:, None, None] * second),
            diagonal_if_separable(weights[:, None, None] * cross),
            location,
        )

    def params(self, theta: jax.Array, /) -> Any:
        """Return the parameters in the user's own pytree, as NumPy float64."""
        return self.model.layout.unflatten(np.asarray(theta), self.fixed)

    def functional(self, theta: jax.Array, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``."""

        def flat(theta: Any) -> Any:
            return jnp.asarray(q(self.model.layout.unflatten(theta, self.fixed)))

        with pytrees.wrap_errors("differentiating the functional"):
            value = np.asarray(flat(theta))
            again = np.asarray(flat(theta))
            refuse_functional(value, again)
            gradient = jax.jacrev(flat)(theta).reshape(-1, theta.shape[0])
        refuse_flat_functional(np.asarray(gradient))
        return Functional(value.astype(np.float64), gradient, self._is_affine(theta, q))

    def _is_affine(self, theta: jax.Array, q: Callable[[Any], Any]) -> bool:
        """Return whether the traced program proves ``q`` affine in the parameters."""

        def flat(fixed: Any, theta: Any, _: Any) -> Any:
            return jnp.asarray(q(self.model.layout.unflatten(theta, fixed)))

        try:
            return is_affine(flat, self.fixed, theta, ())
        except Exception:  # a functional that needs concrete values can be differentiated, but not traced
            return False

    # -- derivatives -------------------------------------------------------------------------
    def linearise(self, point: Point, before: Linearised | None, /) -> JaxLinearised:
        """Return the derivatives at a point; no data are copied to the device yet."""
        return JaxLinearised(self, point, before)
