"""The multiplier of asymptotic intervals that hold at all points at once: the quantile of correlated normals."""

from __future__ import annotations

import numpy as np

from vhat import bounds

__all__ = ["DRAWS", "has_enough_draws", "multiplier"]

DRAWS = 40_000
"""Simulated maxima. One batch of a tenth of them for 1000 points takes 32 MB."""
_LEAST_BEYOND = 100
"""Draws beyond the quantile below which it is not simulated: at 100 its probability of a miss is known to 10%."""
_BATCHES = 10


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
    # The symmetric root: eigenvectors of one eigenvalue turn with the last digit, and the draws would with them.
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    rng = np.random.default_rng(seed)
    batches = (np.abs(root @ rng.standard_normal((len(root), DRAWS // _BATCHES))) for _ in range(_BATCHES))
    largest = np.concatenate([batch.max(axis=0) for batch in batches])
    if df is not None:
        largest = largest / np.sqrt(rng.chisquare(df, largest.shape) / df)
    simulated = float(np.quantile(largest, 1 - delta, method="higher"))
    # The true quantile lies between that of one point and the union bound over all.
    alone = float(bounds.asymptotic(1.0, 1, 1.0, delta, df=df))
    union = float(bounds.asymptotic(1.0, 1, 1.0, delta / len(root), df=df))
    return min(max(simulated, alone), union)
