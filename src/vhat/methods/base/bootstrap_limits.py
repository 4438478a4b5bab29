"""Limits from a bootstrap distribution: formulas on plain arrays, one column per prediction.

``draws`` is (resamples, ...), the predictions of all refits; every other array has the shape of one prediction,
``(...)``.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from vhat.methods.base.limits import Limits

__all__ = ["acceleration", "bias_corrected", "percentile", "studentised"]


def percentile(draws: np.ndarray, delta: float) -> Limits:
    """Return the delta/2 and 1 - delta/2 quantiles of the draws, interpolated linearly."""
    lower, upper = np.quantile(draws, [delta / 2, 1 - delta / 2], axis=0)
    return Limits(lower, upper)


def bias_corrected(draws: np.ndarray, estimate: np.ndarray, accelerate: np.ndarray, delta: float) -> Limits:
    """Return quantiles at levels corrected for bias and skewness (Efron's BCa).

    ::

        level(a) = Phi(z0 + (z0 + z_a) / (1 - acceleration (z0 + z_a))),      z0 = Phi^-1(share of draws below estimate)

    Ties count half. The limits are NaN if all draws lie on one side of the estimate, where z0 is infinite.

    Args:
        draws: Predictions of the refits.
        estimate: Prediction of the fit to the data.
        accelerate: The acceleration, see :func:`acceleration`.
        delta: Probability of a miss.
    """
    below = ((draws < estimate).mean(axis=0) + (draws <= estimate).mean(axis=0)) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        z0 = ndtri(below)
        shifted = [z0 + ndtri(tail) for tail in (delta / 2, 1 - delta / 2)]
        levels = [ndtr(z0 + each / (1 - accelerate * each)) for each in shifted]
    return Limits(*(_quantile_by_column(draws, level) for level in levels))


def acceleration(left_out: np.ndarray) -> np.ndarray:
    """Return the jackknife acceleration ``sum d^3 / (6 (sum d^2)^(3/2))``; d is the mean less the jackknife value.

    Args:
        left_out: Predictions without each row in turn, (n, ...).
    """
    d = left_out.mean(axis=0) - left_out
    squares = np.sum(d**2, axis=0)
    # Where all jackknife values are equal, the acceleration is zero.
    return np.sum(d**3, axis=0) / (6 * np.where(squares > 0, squares, 1.0) ** 1.5)


def studentised(draws: np.ndarray, errors: np.ndarray, estimate: np.ndarray, error: np.ndarray, delta: float) -> Limits:
    """Return bootstrap-t limits ``estimate - q error``, with q the quantiles of ``(draw - estimate) / its own error``.

    Args:
        draws: Predictions of the refits.
        errors: Standard error of each draw, in the shape of ``draws``.
        estimate: Prediction of the fit to the data.
        error: Its standard error.
        delta: Probability of a miss.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (draws - estimate) / errors
    low, high = np.quantile(t, [delta / 2, 1 - delta / 2], axis=0)
    # A large t means a draw above its center: the upper quantile gives the lower limit.
    return Limits(estimate - high * error, estimate - low * error)


def _quantile_by_column(draws: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the quantile of each column at that column's own level; NaN where the level is NaN."""
    columns = draws.reshape(len(draws), -1).T
    quantiles = np.full(len(columns), np.nan)
    for column, level in enumerate(np.ravel(levels)):
        if np.isfinite(level):
            quantiles[column] = np.quantile(columns[column], level)
    return quantiles.reshape(np.shape(levels))
