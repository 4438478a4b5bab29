"""Yeo and Johnson's transformation of skewed columns: monotone, smooth, and defined for every number.

    psi(x) = ((1 + x)^a - 1) / a                   for x >= 0,  log(1 + x) where a = 0
    psi(x) = -((1 - x)^(2 - a) - 1) / (2 - a)      for x < 0,   -log(1 - x) where a = 2

a = 1 changes nothing; smaller powers draw in a long tail on the right, larger ones one on the left. It is used on
columns in standard deviations about their mean, so that the unit of a column does not matter. A network sees such a
column spread out evenly, where a few far rows would have taken most of its range.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

__all__ = ["choose_power", "transform"]

_SKEWED = 1.0
"""Skewness, of either sign, above which a column is transformed: that of an exponential distribution is 2."""
_POWERS = (0.0, 2.0)
"""The range of powers, symmetric about 1: at its ends a tail is that of a logarithm. Beyond them psi would be bounded,
and points far from all data would look to the network like the last rows of the data."""
_LEAST_VALUES = 3
"""Different values that a column must have: of two, every transformation is a change of scale."""


def transform(x: np.ndarray, power: np.ndarray | float) -> np.ndarray:
    """Transform standardised columns, (n, d), by the power of each, (d,)."""
    a = np.broadcast_to(np.asarray(power, dtype=np.float64), x.shape)
    right, left = np.maximum(x, 0.0), np.maximum(-x, 0.0)
    found: np.ndarray = _raised(right, a) - _raised(left, 2.0 - a)
    # Exactly as it was, without rounding, where the power is one.
    return np.where(a == 1.0, x, found)


def _raised(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return ``((1 + x)^a - 1) / a`` for x >= 0, its limit ``log(1 + x)`` where a is 0."""
    log = np.log1p(x)
    divisor = np.where(a == 0.0, 1.0, a)
    return np.where(a == 0.0, log, np.expm1(divisor * log) / divisor)


def choose_power(column: np.ndarray, weights: np.ndarray) -> float:
    """Return the power that makes a standardised column most nearly normal, by its likelihood; 1 unless it is skewed.

    Args:
        column: The column in standard deviations about its mean, (n,).
        weights: How often each row counts, (n,).
    """
    skewness = float(np.average(column**3, weights=weights))
    if abs(skewness) <= _SKEWED or len(np.unique(column)) < _LEAST_VALUES:
        return 1.0
    slope = float(np.average(np.sign(column) * np.log1p(np.abs(column)), weights=weights))

    def loss(power: float) -> float:
        moved = transform(column, power)
        mean = np.average(moved, weights=weights)
        return 0.5 * float(np.log(np.average((moved - mean) ** 2, weights=weights))) - (power - 1.0) * slope

    return float(minimize_scalar(loss, bounds=_POWERS, method="bounded", options={"xatol": 1e-6}).x)
