"""The multiplier of simultaneous asymptotic intervals: a quantile of the largest of correlated normals."""

from __future__ import annotations

import numpy as np

from vhat import bounds

__all__ = ["DRAWS", "has_enough_draws", "multiplier"]

DRAWS = 40_000
"""Number of simulated maxima. One batch, a tenth of them, takes 32 MB for 1000 points."""
_LEAST_BEYOND = 100
"""Smallest number of draws beyond a simulated quantile: with 100 its probability of a miss is known to 10%."""
_BATCHES = 10
"""Number of batches in which they are drawn."""


def has_enough_draws(delta: float) -> bool:
    """Return whether the 1 - delta quantile can be simulated."""
    return delta * DRAWS >= _LEAST_BEYOND


def multiplier(covariance: np.ndarray, df: float | None, delta: float, seed: int) -> float:
    """Return the 1 - delta quantile of the largest of correlated standard normals, or Student's t, in size.

    Args:
        covariance: Covariance of the errors, (points, points), with a positive diagonal.
        df: Degrees of freedom of an estimated noise level that all of them share; None where it is known.
        delta: Probability that any of them is missed.
        seed: Seed of the simulation.
    """
    size = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(size, size))
    # The symmetric root is continuous in the covariance. A root from the eigenvectors alone is not: those of a multiple
    # eigenvalue may rotate with the last digit, and the draws with them.
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    rng = np.random.default_rng(seed)
    maxima = []
    for _ in range(_BATCHES):
        draws = root @ rng.standard_normal((len(root), DRAWS // _BATCHES))
        maxima.append(np.abs(draws).max(axis=0))
    largest = np.concatenate(maxima)
    if df is not None:
        largest = largest / np.sqrt(rng.chisquare(df, largest.shape) / df)
    simulated = float(np.quantile(largest, 1 - delta, method="higher"))
    # The true quantile lies between that of one point and the union bound over all.
    alone = float(bounds.asymptotic(1.0, 1, 1.0, delta, df=df))
    union = float(bounds.asymptotic(1.0, 1, 1.0, delta / len(root), df=df))
    return min(max(simulated, alone), union)
