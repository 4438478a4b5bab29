"""Linear models, whose refits have a closed form: the estimate is ``(X'WX/n + lam I)^-1 X'Wy/n``."""

from __future__ import annotations

import numpy as np

import vhat


def predict(q, Z):
    return Z @ q


def polynomial(x: np.ndarray, degree: int) -> np.ndarray:
    return np.vander(x, degree + 1, increasing=True)


def estimator(X: np.ndarray, lam: float = 0.0, weight: np.ndarray | None = None) -> np.ndarray:
    """Return the matrix that takes responses to estimates, (p, n)."""
    n, p = X.shape
    right = X.T if weight is None else X.T * weight
    return np.linalg.solve(right @ X / n + lam * np.eye(p), right / n)


def fitted_at(X: np.ndarray, y: np.ndarray, lam: float = 0.0, weight: np.ndarray | None = None) -> vhat.FittedModel:
    theta = estimator(X, lam, weight) @ y
    return vhat.from_jax(predict, theta, X, y, weight_decay=lam, sample_weight=weight)


def mean_and_error(units: np.ndarray) -> tuple[float, float]:
    """Return the mean of independent units and its standard error."""
    return float(np.mean(units)), float(np.std(units, ddof=1) / np.sqrt(len(units)))
