"""A ridge regression in closed form, and the same model through the front ends: the oracle of every answer."""

from __future__ import annotations

import functools

import numpy as np
from scipy import stats

import vhat

N, LAM, DELTA = 24, 0.1, 0.05
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(N, 2))
Y = X @ [1.0, -2.0] + 0.3 * _RNG.standard_normal(N)
POINTS = X[:3] + 0.1
THETA = np.linalg.solve(X.T @ X / N + LAM * np.eye(2), X.T @ Y / N)


def linear(theta, Z):
    return Z @ theta


def design(Z):
    return Z


def limits(Z, y, lam, points, delta=DELTA):
    """Student's interval of a ridge regression, its noise that of ordinary least squares."""
    Z, y, points = (np.asarray(part, dtype=np.float64) for part in (Z, y, points))
    n, p = Z.shape
    theta = np.linalg.solve(Z.T @ Z / n + lam * np.eye(p), Z.T @ y / n)
    rows = points @ np.linalg.solve(Z.T @ Z / n + lam * np.eye(p), Z.T) / n
    residual = y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    error = np.sqrt(residual @ residual / (n - p) * np.sum(rows**2, axis=1))
    half = stats.t.ppf(1 - delta / 2, n - p) * error
    return points @ theta - half, points @ theta + half


def standardised_limits(columns, y, lam, delta):
    """Student's interval of ``NetworkRegressor(())`` at the rows behind those that have a response, (2, new rows).

    Args:
        columns: All rows, training rows first, standardised by the training rows, without the constant.
        y: Responses of the training rows.
        lam: Weight decay, of the constant too.
        delta: Probability of a miss.
    """
    n = len(y)
    Z = np.column_stack([*columns, np.ones(len(columns[0]))])
    lower, upper = limits(Z[:n], (y - y.mean()) / y.std(), lam, Z[n:], delta)
    return np.array([lower, upper]) * y.std() + y.mean()


def from_numpy(theta=THETA, X=X, y=Y, weight_decay=LAM, **options):
    return vhat.from_numpy(linear, theta, X, y, **{"jac": design, "weight_decay": weight_decay} | options)


def from_jax(theta=THETA, X=X, y=Y, weight_decay=LAM, **options):
    return vhat.from_jax(linear, theta, X, y, weight_decay=weight_decay, **options)


def from_torch(theta=THETA, X=X, y=Y, weight_decay=LAM, **options):
    return vhat.from_torch(module(theta), X, y, weight_decay=weight_decay, **options)


def module(theta=THETA):
    import torch

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(np.asarray(theta, dtype=np.float64)))

        def forward(self, Z):
            return Z @ self.weight

    return Linear().eval()


FRONT_ENDS = {"numpy": from_numpy, "jax": from_jax, "torch": from_torch}


@functools.cache
def fitted(front_end):
    """One model a front end, asked again and again: no call may change it."""
    return FRONT_ENDS[front_end]()
