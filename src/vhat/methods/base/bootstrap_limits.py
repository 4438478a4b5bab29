"""Limits from a bootstrap distribution: formulas on plain arrays, one column a prediction.

``draws`` is (resamples, ...), the prediction of every refit; everything else has the shape of one prediction ``(...)``.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from vhat.methods.base.method import Limits

__all__ = ["acceleration", "bias_corrected", "percentile", "studentised"]


def percentile(draws: np.ndarray, delta: float) -> Limits:
    """Return the delta/2 and 1 - delta/2 quantiles, interpolated between draws."""
    lower, upper = np.quantile(draws, [delta / 2, 1 - delta / 2], axis=0)
    return Limits(lower, upper)


def bias_corrected(draws: np.ndarray, estimate: np.ndarray, accelerate: np.ndarray, delta: float) -> Limits:
    """Return quantiles whose levels are corrected for bias and skewness (Efron's BCa).

    ::

        level(a) = Phi(z0 + (z0 + z_a) / (1 - acceleration (z0 + z_a))),      z0 = Phi^-1(share of draws below estimate)

    with ties counted half. NaN where all draws lie on one side of the estimate, where z0 is infinite.
    """
    below = ((draws < estimate).mean(axis=0) + (draws <= estimate).mean(axis=0)) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        z0 = ndtri(below)
        shifted = [z0 + ndtri(tail) for tail in (delta / 2, 1 - delta / 2)]
        levels = [ndtr(z0 + each / (1 - accelerate * each)) for each in shifted]
    return Limits(*(_quantile_each(draws, level) for level in levels))


def acceleration(left_out: np.ndarray) -> np.ndarray:
    """Return ``sum d^3 / (6 (sum d^2)^(3/2))`` with d the jackknife values' distances below their mean.

    Args:
        left_out: The prediction without each row in turn, (n, ...).
    """
    d = left_out.mean(axis=0) - left_out
    size = np.sum(d**2, axis=0)
    return np.sum(d**3, axis=0) / (6 * np.where(size > 0, size, 1.0) ** 1.5)


def studentised(draws: np.ndarray, errors: np.ndarray, estimate: np.ndarray, error: np.ndarray, delta: float) -> Limits:
    """Return ``estimate - q error`` with q the quantiles of ``(draw - estimate) / its own error`` (bootstrap-t)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (draws - estimate) / errors
    low, high = np.quantile(t, [delta / 2, 1 - delta / 2], axis=0)
    return Limits(estimate - high * error, estimate - low * error)


def _quantile_each(draws: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return each column's own quantile; NaN for a level that is NaN."""
    columns = draws.reshape(len(draws), -1).T
    found = np.full(len(columns), np.nan)
    for at, level in enumerate(np.ravel(levels)):
        if np.isfinite(level):
            found[at] = np.quantile(columns[at], level)
    return found.reshape(np.shape(levels))
