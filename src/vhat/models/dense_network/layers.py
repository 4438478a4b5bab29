"""First derivatives of a fully connected network, by one forward pass and backpropagation.

Layer l has the pre-activation ``a_l = h_{l-1} W_l + b_l`` and the values ``h_l = phi(a_l)``; ``h_0`` are the inputs
and the last pre-activation ``a_D`` is the prediction. With ``delta_l`` the gradient of a prediction in ``a_l``, its
gradient in ``b_l`` is ``delta_l``, and its gradient in ``W_l`` is the outer product of ``h_{l-1}`` and ``delta_l``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from vhat.models.dense_network.activations import DERIVATIVES, VALUES
from vhat.models.networks import Network

__all__ = ["Pass", "flatten", "forward", "leaf_shapes", "predict", "unflatten"]

Layer = tuple[np.ndarray, np.ndarray]
"""Biases (outputs,) and weights (inputs, outputs)."""

_BLOCK_ROWS = 8192
"""Rows that are predicted at a time. Their hidden values (2 MB for 32 units) stay in the cache."""


def leaf_shapes(network: Network) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of biases and weights in the order of the flat vector, which is that of JAX's trees."""
    shapes: list[tuple[int, ...]] = []
    for inputs, outputs in pairwise(network.widths):
        shapes += [(outputs,), (inputs, outputs)]
    return tuple(shapes)


def unflatten(network: Network, theta: np.ndarray) -> list[Layer]:
    """Return views of the biases and weights of each layer."""
    layers = []
    start = 0
    for inputs, outputs in pairwise(network.widths):
        biases = theta[start : start + outputs]
        start += outputs
        weights = theta[start : start + inputs * outputs].reshape(inputs, outputs)
        start += inputs * outputs
        layers.append((biases, weights))
    return layers


def flatten(params: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the flat vector, float64, of parameters in the structure of ``network.init``."""
    parts = [np.ravel(np.asarray(layer[name], dtype=np.float64)) for layer in params for name in ("b", "w")]
    return np.concatenate(parts)


def predict(network: Network, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return predictions, (m, K)."""
    activate = VALUES[network.activation]
    layers = unflatten(network, theta)
    last_biases, last_weights = layers[-1]
    predictions = np.empty((len(X), network.widths[-1]))
    with np.errstate(all="ignore"):  # a line search may try parameters that are too large
        for start in range(0, len(X), _BLOCK_ROWS):
            hidden = X[start : start + _BLOCK_ROWS]
            for biases, weights in layers[:-1]:
                hidden = activate(hidden @ weights + biases)
            predictions[start : start + _BLOCK_ROWS] = hidden @ last_weights + last_biases
    return predictions


@dataclass(frozen=True, eq=False)
class Pass:
    """The values of a forward pass over rows.

    Attributes:
        layers: Biases and weights of each layer.
        hidden: ``h_0`` to ``h_{D-1}``, (n, units) each.
        first: ``phi'(a_l)`` of the hidden layers.
        second: ``phi''(a_l)`` of the hidden layers.
        output: The predictions, (n, K).
    """

    layers: list[Layer] = field(repr=False)
    hidden: list[np.ndarray] = field(repr=False)
    first: list[np.ndarray] = field(repr=False)
    second: list[np.ndarray] = field(repr=False)
    output: np.ndarray = field(repr=False)

    @property
    def outputs(self) -> int:
        """Number of outputs, K."""
        return int(self.output.shape[1])

    @property
    def parameters(self) -> int:
        """Number of parameters, p."""
        return sum(biases.size + weights.size for biases, weights in self.layers)

    def take(self, index: np.ndarray | slice) -> Pass:
        """Return the pass of some rows."""
        return Pass(
            self.layers,
            [array[index] for array in self.hidden],
            [array[index] for array in self.first],
            [array[index] for array in self.second],
            self.output[index],
        )

    def curvature_diagonal(self, weights: np.ndarray) -> np.ndarray:
        """Return the diagonal of ``sum_i w_i grad f(x_i) grad f(x_i)'``, summed over all outputs, (p,).

        Args:
            weights: One per row, (n,).
        """
        total = np.zeros(self.parameters)
        for output in range(self.outputs):
            last = np.zeros_like(self.output)
            last[:, output] = 1.0
            parts = []
            for hidden, delta in zip(self.hidden, self.deltas(last), strict=True):
                # The squares of an outer product are the outer product of the squares.
                squares = weights[:, None] * delta**2
                parts += [squares.sum(axis=0), ((hidden**2).T @ squares).ravel()]
            total += np.concatenate(parts)
        return total

    def deltas(self, last: np.ndarray) -> list[np.ndarray]:
        """Return ``delta_1`` to ``delta_D`` of all rows, given ``delta_D``, (n, K)."""
        deltas = [last]
        for (_, weights), slope in zip(reversed(self.layers[1:]), reversed(self.first), strict=True):
            # delta_l = (delta_{l+1} W_{l+1}') phi'(a_l)
            deltas.append((deltas[-1] @ weights.T) * slope)
        return deltas[::-1]

    def gradient(self, last: np.ndarray) -> np.ndarray:
        """Return the gradient of ``sum_i last_i'f(x_i)``, (p,)."""
        parts = []
        for hidden, delta in zip(self.hidden, self.deltas(last), strict=True):
            parts += [delta.sum(axis=0), (hidden.T @ delta).ravel()]
        return np.concatenate(parts)

    def factors(self) -> list[tuple[np.ndarray, ...]]:
        """Return the gradients of all predictions by leaf.

        Returns:
            For the biases of a layer a 1-tuple (n * K, outputs), for its weights the factors of the outer products,
            (n * K, inputs) and (n * K, outputs).
        """
        n, K = self.output.shape
        if K == 1:
            return self._factors(self, np.ones((n, 1)))
        repeated = Pass(
            self.layers,
            [np.repeat(hidden, K, axis=0) for hidden in self.hidden],
            [np.repeat(slope, K, axis=0) for slope in self.first],
            [],
            self.output,
        )
        return self._factors(repeated, np.tile(np.eye(K), (n, 1)))

    @staticmethod
    def _factors(rows: Pass, last: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        factors: list[tuple[np.ndarray, ...]] = []
        for hidden, delta in zip(rows.hidden, rows.deltas(last), strict=True):
            factors += [(delta,), (hidden, delta)]
        return factors

    def jacobian(self, dtype: Any = np.float64) -> np.ndarray:
        """Return the gradients of all predictions, (n * K, p), ordered by row, then by output."""
        factors = [tuple(part.astype(dtype, copy=False) for part in leaf) for leaf in self.factors()]
        J = np.empty((self.output.size, self.parameters), dtype=dtype)
        start = 0
        for leaf in factors:
            if len(leaf) == 1:
                size = leaf[0].shape[1]
                J[:, start : start + size] = leaf[0]
            else:
                u, w = leaf
                size = u.shape[1] * w.shape[1]
                # Multiply into J directly, without a copy of the products.
                block = J[:, start : start + size].reshape(len(J), u.shape[1], w.shape[1])
                np.multiply(u[:, :, None], w[:, None, :], out=block)
            start += size
        return J


def forward(network: Network, theta: np.ndarray, X: np.ndarray) -> Pass:
    """Evaluate the network and the derivatives of its activations on all rows."""
    layers = unflatten(network, theta)
    hidden = [X]
    first = []
    second = []
    with np.errstate(all="ignore"):
        for biases, weights in layers[:-1]:
            a = hidden[-1] @ weights + biases
            value = VALUES[network.activation](a)
            slope, slope_derivative = DERIVATIVES[network.activation](a, value)
            hidden.append(value)
            first.append(slope)
            second.append(slope_derivative)
        last_biases, last_weights = layers[-1]
        output = hidden[-1] @ last_weights + last_biases
    return Pass(layers, hidden, first, second, output)
