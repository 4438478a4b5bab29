"""The network as NumPy functions with derivatives in closed form, and its minima by SciPy.

The minima come from SciPy and not from ``fitted.polish()``: a change of polish must show in the cases of polish, and
move no other case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from guard_cases.data import PARTS, NetData, Theta

__all__ = ["Decay", "NumpyNet", "at_minimum", "by_parameter", "joined"]

Decay = float | Mapping[str, Any]


def joined(theta: Theta) -> np.ndarray:
    """Return the parts of theta as one vector."""
    return np.concatenate([np.ravel(theta[part]) for part in PARTS])


def by_parameter(data: NetData, decay: Decay) -> np.ndarray:
    """Return the decay of every parameter as one vector."""
    if not isinstance(decay, Mapping):
        decay = dict.fromkeys(PARTS, decay)
    return joined({part: np.broadcast_to(decay[part], data.theta[part].shape) for part in PARTS})


def at_minimum(data: NetData, decay: Decay = 0.01, weights: np.ndarray | None = None) -> NetData:
    """Return the same data with the parameters at the minimum that SciPy reaches from those that drew the responses."""
    from scipy.optimize import minimize

    net = NumpyNet(data)
    lam = by_parameter(data, decay)
    n = len(data.y)
    row = (np.ones(n) if weights is None else weights) / n

    def residual(theta: np.ndarray) -> np.ndarray:
        return (net.predict(theta, data.X) - data.y).reshape(n, -1)

    def objective(theta: np.ndarray) -> float:
        return float(0.5 * np.sum(row[:, None] * residual(theta) ** 2) + 0.5 * np.sum(lam * theta**2))

    def gradient(theta: np.ndarray) -> np.ndarray:
        J = net.jac(theta, data.X).reshape(n, -1, len(theta))
        return np.einsum("i,ik,ikp->p", row, residual(theta), J) + lam * theta

    def hessian(theta: np.ndarray) -> np.ndarray:
        J = net.jac(theta, data.X).reshape(n, -1, len(theta))
        second = net.hess(theta, data.X).reshape(n, -1, len(theta), len(theta))
        curved = np.einsum("i,ik,ikpq->pq", row, residual(theta), second)
        return np.einsum("i,ikp,ikq->pq", row, J, J) + curved + np.diag(lam)

    found = minimize(
        objective, joined(data.theta), jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-12}
    )
    return replace(data, theta=net.parts(found.x))


class NumpyNet:
    """The network and its derivatives as functions of a flat vector."""

    def __init__(self, data: NetData) -> None:
        self.inputs, self.width = data.theta["w"].shape
        self.outputs = len(data.theta["c"])
        self.activation = data.activation
        self.squeeze = data.squeeze

    def predict(self, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return (n,) or (n, outputs)."""
        parts = self.parts(np.asarray(theta))
        hidden, _, _ = self._hidden(parts, X)
        values = hidden @ parts["v"] + parts["c"]
        return self._squeezed(values)

    def jac(self, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return (n, p) or (n, outputs, p)."""
        parts = self.parts(np.asarray(theta))
        hidden, slope, _ = self._hidden(parts, X)
        n = len(X)
        K = self.outputs
        # by the hidden layer's input: (n, K, width)
        back = parts["v"].T[None] * slope[:, None, :]
        by_w = np.einsum("nd,nkh->nkdh", X, back).reshape(n, K, -1)
        by_v = np.einsum("nh,kl->nkhl", hidden, np.eye(K)).reshape(n, K, -1)
        by_c = np.broadcast_to(np.eye(K), (n, K, K))
        return self._squeezed(np.concatenate([by_w, back, by_v, by_c], axis=2))

    def hess(self, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Return (n, p, p) or (n, outputs, p, p)."""
        parts = self.parts(np.asarray(theta))
        _, slope, bend = self._hidden(parts, X)
        n = len(X)
        K = self.outputs
        p = len(theta)
        extended = np.concatenate([X, np.ones((n, 1))], axis=1)  # what w and b of a unit are multiplied by
        second = np.zeros((n, K, p, p))
        first_v = (self.inputs + 1) * self.width
        for unit in range(self.width):
            # w[:, unit] and b[unit] in the flat vector, where w is (inputs, width) by rows
            place = [row * self.width + unit for row in range(self.inputs + 1)]
            squares = extended[:, :, None] * extended[:, None, :]
            mixed = slope[:, unit, None] * extended
            for output in range(K):
                weight = parts["v"][unit, output]
                second[np.ix_(range(n), [output], place, place)] = (weight * bend[:, unit, None, None] * squares)[
                    :, None
                ]
                out = first_v + unit * K + output
                second[:, output, place, out] = mixed
                second[:, output, out, place] = mixed
        return self._squeezed(second)

    def parts(self, theta: np.ndarray) -> Theta:
        """Return the vector as w, b, v and c."""
        shapes = ((self.inputs, self.width), (self.width,), (self.width, self.outputs), (self.outputs,))
        ends = np.cumsum([0, *[int(np.prod(shape)) for shape in shapes]])
        return {
            part: theta[first:last].reshape(shape)
            for part, first, last, shape in zip(PARTS, ends[:-1], ends[1:], shapes, strict=True)
        }

    def _hidden(self, parts: Theta, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the hidden layer with its first and second derivative by its own input, (n, width) each."""
        inner = X @ parts["w"] + parts["b"]
        if self.activation == "relu":
            return np.maximum(inner, 0.0), (inner > 0).astype(float), np.zeros_like(inner)
        hidden = np.tanh(inner)
        slope = 1 - hidden**2
        return hidden, slope, -2 * hidden * slope

    def _squeezed(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.squeeze else values
