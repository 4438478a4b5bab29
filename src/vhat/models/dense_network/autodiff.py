"""One of the library's own networks and the square loss as functions of a flat parameter vector, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.models.dense_network import layers
from vhat.models.dense_network.linearised import NetworkLinearised
from vhat.models.kinks import NO_KINKS, KinkedOperations
from vhat.models.loss import LossDerivatives, half_square
from vhat.models.networks import Network
from vhat.models.numpy.arrays import NumpyArrays
from vhat.models.numpy.inputs import match_inputs, take
from vhat.models.protocols import Functional, Linearised, Point
from vhat.models.validate import refuse_flat_functional, refuse_functional

__all__ = ["NetworkAutodiff"]


@dataclass(frozen=True, eq=False)
class NetworkAutodiff:
    """A :class:`vhat.fit.Network` in NumPy: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        network: The network.
        dtype: The dtype in which the parameters were given.
    """

    network: Network
    dtype: str = "float64"

    framework = "network"
    arrays = NumpyArrays()
    columns = None

    @property
    def squeeze(self) -> bool:
        """Whether the network returns (n,)."""
        return self.network.widths[-1] == 1

    @property
    def linear(self) -> bool:
        """Whether the network has no hidden layer."""
        return len(self.network.widths) == 2

    @property
    def kinks(self) -> KinkedOperations:
        """The kink of relu, if there is a hidden layer; all other activations are smooth."""
        kinked = self.network.activation == "relu" and not self.linear
        return KinkedOperations(("relu",), known=True) if kinked else NO_KINKS

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of biases and weights, in the order of the flat vector."""
        return layers.leaf_shapes(self.network)

    def check(self, x: Any, X: np.ndarray, /) -> np.ndarray:
        """Check test inputs against the training inputs."""
        rows: np.ndarray = match_inputs(x, X)
        return rows.astype(np.float64, copy=False)

    def count(self, inputs: np.ndarray, /) -> int:
        """Return the number of rows in checked inputs."""
        return len(inputs)

    def take(self, inputs: np.ndarray, index: Any, /) -> np.ndarray:
        """Return some rows of checked inputs."""
        rows: np.ndarray = take(inputs, index)
        return rows

    def predict(self, theta: np.ndarray, inputs: np.ndarray, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K)."""
        return layers.predict(self.network, theta, inputs)

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return half the squared error of each row and its derivatives."""
        return half_square(f, y, weights)

    def params(self, theta: np.ndarray, /) -> tuple[dict[str, np.ndarray], ...]:
        """Return a copy of the parameters in the structure of ``network.init``."""
        parts = layers.unflatten(self.network, theta)
        return tuple({"b": biases.copy(), "w": weights.copy()} for biases, weights in parts)

    def functional(self, theta: np.ndarray, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``. The user's function is differentiated by JAX."""
        import jax
        import jax.numpy as jnp

        from vhat.models.jax.affine import is_affine
        from vhat.models.jax.pytrees import wrap_errors

        def flat(theta: Any) -> Any:
            parts = layers.unflatten(self.network, theta)
            return jnp.asarray(q(tuple({"b": biases, "w": weights} for biases, weights in parts)))

        with jax.enable_x64(True), wrap_errors("differentiating the functional"):
            point = jnp.asarray(theta)
            value, again = (np.asarray(flat(point)) for _ in range(2))
            refuse_functional(value, again)
            gradient = np.array(jax.jacrev(flat)(point)).reshape(-1, len(theta))
            try:
                affine = is_affine(lambda _, theta, __: flat(theta), (), point, ())
            except Exception:  # a functional that needs concrete values can be differentiated, but not traced
                affine = False
        refuse_flat_functional(gradient)
        return Functional(value.astype(np.float64), gradient, affine)

    def linearise(self, point: Point, before: Linearised | None, /) -> NetworkLinearised:
        """Return the derivatives at a point; none is computed yet."""
        return NetworkLinearised(self, point, before)
