"""The data and parameters of the cases: small, drawn by NumPy from fixed seeds, shared by the frameworks.

The parameters of a network are those that its responses were drawn from, which are no minimum; ``at_minimum`` of
:mod:`guard_cases.numpy_net` moves them to one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["LINEAR", "NET", "PARTS", "RELU", "TWO_OUTPUTS", "WIDE", "LinearData", "NetData", "Theta", "large_net"]

N = 24
CALIBRATION = 20
POINTS = 5
INPUTS = 2
PARTS = ("w", "b", "v", "c")
Theta = dict[str, np.ndarray]


@dataclass(frozen=True)
class LinearData:
    """A linear model ``X @ w`` at its ridge solution.

    Attributes:
        theta: ``{"w": (p,)}``, the minimum at ``decay``.
        X: Training inputs.
        y: Training responses.
        points: Where predictions are asked for.
        decay: The weight decay of the solution.
    """

    theta: Theta
    X: np.ndarray
    y: np.ndarray
    points: np.ndarray
    decay: float


@dataclass(frozen=True)
class NetData:
    """A network ``act(X @ w + b) @ v + c`` with one hidden layer, and its data.

    Attributes:
        theta: ``{"w": (inputs, width), "b": (width,), "v": (width, outputs), "c": (outputs,)}``.
        X: Training inputs, (24, 2).
        y: Training responses, (24,), or (24, outputs).
        points: Where predictions are asked for, (5, 2).
        activation: ``"tanh"`` or ``"relu"``.
        squeeze: Whether the network returns (n,) in place of (n, 1).
        weights: Sample weights, one a row.
        row_noise: Noise of each training row.
        X_cal: Inputs of 20 rows that training has not seen.
        y_cal: Their responses.
    """

    theta: Theta
    X: np.ndarray
    y: np.ndarray
    points: np.ndarray
    activation: str
    squeeze: bool
    weights: np.ndarray
    row_noise: np.ndarray
    X_cal: np.ndarray
    y_cal: np.ndarray


def forward(theta: Theta, X: np.ndarray, activation: str) -> np.ndarray:
    """Return the predictions of the network, (n, outputs)."""
    inner = X @ theta["w"] + theta["b"]
    hidden = np.tanh(inner) if activation == "tanh" else np.maximum(inner, 0.0)
    return hidden @ theta["v"] + theta["c"]


def _linear() -> LinearData:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, 3))
    y = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal(N)
    decay = 0.05
    theta = np.linalg.solve(X.T @ X / N + decay * np.eye(3), X.T @ y / N)
    return LinearData({"w": theta}, X, y, rng.standard_normal((POINTS, 3)), decay)


def _net(seed: int, width: int, outputs: int = 1, *, activation: str = "tanh", noise: float = 0.05) -> NetData:
    rng = np.random.default_rng(seed)
    theta = {
        "w": rng.standard_normal((INPUTS, width)),
        "b": rng.standard_normal(width),
        "v": rng.standard_normal((width, outputs)) / np.sqrt(width),
        "c": rng.standard_normal(outputs),
    }
    X = rng.standard_normal((N + CALIBRATION, INPUTS))
    y = forward(theta, X, activation) + noise * rng.standard_normal((len(X), outputs))
    squeeze = outputs == 1
    if squeeze:
        y = y[:, 0]
    return NetData(
        theta=theta,
        X=X[:N],
        y=y[:N],
        points=1.5 * rng.standard_normal((POINTS, INPUTS)),
        activation=activation,
        squeeze=squeeze,
        weights=rng.uniform(0.5, 2.0, N),
        row_noise=rng.uniform(0.05, 0.2, N),
        X_cal=X[N:],
        y_cal=y[N:],
    )


def _far_from_a_minimum(data: NetData) -> NetData:
    """Return the same data with half of the responses turned round: large residuals, an indefinite Hessian."""
    return replace(data, y=data.y * np.where(np.arange(N) % 2 == 0, -3.0, 1.0))


def large_net() -> NetData:
    """Return a network with 3,201 parameters, more than are solved by a dense matrix."""
    return _net(6, 800)


LINEAR = _linear()
NET = _net(2, 4)  # p = 17 < n
WIDE = _net(3, 12)  # p = 49 > n
TWO_OUTPUTS = _net(4, 4, outputs=2)
RELU = _far_from_a_minimum(_net(5, 4, activation="relu"))
