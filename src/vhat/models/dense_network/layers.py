"""First derivatives of a fully connected network: one forward pass, and what follows from it by the chain rule.

Layer l has the pre-activation ``a_l = h_{l-1} W_l + b_l`` and the values ``h_l = phi(a_l)``; ``h_0`` are the inputs
and the last pre-activation ``a_D`` is the prediction. With ``delta_l`` the gradient of a prediction in ``a_l``, its
gradient in ``b_l`` is ``delta_l`` and in ``W_l`` the outer product of ``h_{l-1}`` and ``delta_l``.
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

_ROWS_TOGETHER = 8192
"""Rows that are predicted together: their hidden values (2 MB for 32 units) stay in the cache."""


def leaf_shapes(network: Network) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of biases and weights in the order of the flat vector, which is the one of JAX's trees."""
    return tuple(shape for inputs, outputs in pairwise(network.widths) for shape in ((outputs,), (inputs, outputs)))


def unflatten(network: Network, theta: np.ndarray) -> list[Layer]:
    """Return views of the biases and weights of each layer."""
    layers, at = [], 0
    for inputs, outputs in pairwise(network.widths):
        biases = theta[at : at + outputs]
        at += outputs
        weights = theta[at : at + inputs * outputs].reshape(inputs, outputs)
        at += inputs * outputs
        layers.append((biases, weights))
    return layers


def flatten(params: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the flat vector, float64, of parameters in the structure of ``network.init``."""
    parts = [np.ravel(np.asarray(layer[name], dtype=np.float64)) for layer in params for name in ("b", "w")]
    return np.concatenate(parts)


def predict(network: Network, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return predictions, (m, K)."""
    activate, layers = VALUES[network.activation], unflatten(network, theta)
    found = np.empty((len(X), network.widths[-1]))
    with np.errstate(all="ignore"):  # a search may have gone too far
        for start in range(0, len(X), _ROWS_TOGETHER):
            hidden = X[start : start + _ROWS_TOGETHER]
            for biases, weights in layers[:-1]:
                hidden = activate(hidden @ weights + biases)
            found[start : start + _ROWS_TOGETHER] = hidden @ layers[-1][1] + layers[-1][0]
    return found


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass over rows.

    Attributes:
        layers: Biases and weights.
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
        """How many outputs there are, K."""
        return int(self.output.shape[1])

    @property
    def parameters(self) -> int:
        """How many parameters there are, p."""
        return sum(biases.size + weights.size for biases, weights in self.layers)

    def take(self, chosen: np.ndarray) -> Pass:
        """Return the pass of the rows of these numbers."""
        hidden, first, second = (
            [array[chosen] for array in arrays] for arrays in (self.hidden, self.first, self.second)
        )
        return Pass(self.layers, hidden, first, second, self.output[chosen])

    def curvature_diagonal(self, weights: np.ndarray) -> np.ndarray:
        """Return the diagonal of ``sum_i w_i grad f(x_i) grad f(x_i)'`` over all outputs, (p,).

        A gradient is the outer product of what enters a layer and of ``delta``; so is its square.
        """
        found = np.zeros(self.parameters)
        for output in range(self.outputs):
            last = np.zeros_like(self.output)
            last[:, output] = 1.0
            parts = []
            for hidden, delta in zip(self.hidden, self.deltas(last), strict=True):
                squares = weights[:, None] * delta**2
                parts += [squares.sum(axis=0), ((hidden**2).T @ squares).ravel()]
            found += np.concatenate(parts)
        return found

    def deltas(self, last: np.ndarray) -> list[np.ndarray]:
        """Return ``delta_1`` to ``delta_D``, given ``delta_D``, (n, K)."""
        found = [last]
        for (_, weights), slope in zip(reversed(self.layers[1:]), reversed(self.first), strict=True):
            found.append((found[-1] @ weights.T) * slope)
        return found[::-1]

    def gradient(self, last: np.ndarray) -> np.ndarray:
        """Return the gradient of ``sum_i last_i'f(x_i)``, (p,)."""
        parts = []
        for hidden, delta in zip(self.hidden, self.deltas(last), strict=True):
            parts += [delta.sum(axis=0), (hidden.T @ delta).ravel()]
        return np.concatenate(parts)

    def factors(self) -> list[tuple[np.ndarray, ...]]:
        """Return the gradients of all predictions leaf by leaf, (n * K, size): weights as pairs of outer factors."""
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
        found: list[tuple[np.ndarray, ...]] = []
        for hidden, delta in zip(rows.hidden, rows.deltas(last), strict=True):
            found += [(delta,), (hidden, delta)]
        return found

    def jacobian(self, dtype: Any = np.float64) -> np.ndarray:
        """Return the gradients of all predictions, (n * K, p): the outputs of one row stand together."""
        factors = [tuple(part.astype(dtype, copy=False) for part in leaf) for leaf in self.factors()]
        found = np.empty((self.output.size, self.parameters), dtype=dtype)
        at = 0
        for leaf in factors:
            if len(leaf) == 1:
                size = leaf[0].shape[1]
                found[:, at : at + size] = leaf[0]
            else:
                shape = (leaf[0].shape[1], leaf[1].shape[1])
                size = shape[0] * shape[1]
                # Written in place: a product of its own would be copied once more.
                block = found[:, at : at + size].reshape(len(found), *shape)
                np.multiply(leaf[0][:, :, None], leaf[1][:, None, :], out=block)
            at += size
        return found


def forward(network: Network, theta: np.ndarray, X: np.ndarray) -> Pass:
    """Evaluate the network and the derivatives of its activations on all rows."""
    layers = unflatten(network, theta)
    hidden, first, second = [X], [], []
    with np.errstate(all="ignore"):
        for biases, weights in layers[:-1]:
            a = hidden[-1] @ weights + biases
            value = VALUES[network.activation](a)
            slope, bend = DERIVATIVES[network.activation](a, value)
            hidden.append(value)
            first.append(slope)
            second.append(bend)
        output = hidden[-1] @ layers[-1][1] + layers[-1][0]
    return Pass(layers, hidden, first, second, output)
