"""Yeo and Johnson's transformation of skewed columns: monotone, smooth, and defined for every number.

    psi(x) = ((1 + x)^a - 1) / a                   for x >= 0,  log(1 + x) where a = 0
    psi(x) = -((1 - x)^(2 - a) - 1) / (2 - a)      for x < 0,   -log(1 - x) where a = 2

a = 1 is the identity. Powers below 1 shorten a long right tail, powers above 1 a long left tail. The transformation is
applied to standardised columns, so that the unit of a column does not matter. It spreads the values of a column more
evenly over its range, most of which would otherwise be taken up by a few extreme rows.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

__all__ = ["choose_power", "transform"]

_SKEWED = 1.0
"""Absolute skewness above which a column is transformed. The skewness of an exponential distribution is 2."""
_POWERS = (0.0, 2.0)
"""Range of powers, symmetric about 1. At its ends psi grows like a logarithm in one tail. Beyond them psi would be
bounded, so that points far from all data would be mapped next to the most extreme rows of the data."""
_MIN_DISTINCT_VALUES = 3
"""Number of distinct values below which no column is transformed: on two values, any transformation is a change of
scale."""


def transform(x: np.ndarray, power: np.ndarray | float) -> np.ndarray:
    """Transform standardised columns, (n, d), by one power per column, (d,)."""
    a = np.broadcast_to(np.asarray(power, dtype=np.float64), x.shape)
    # Both branches of psi at once: the branch of the other sign is evaluated at 0, where it is 0.
    right = np.maximum(x, 0.0)
    left = np.maximum(-x, 0.0)
    transformed: np.ndarray = _box_cox(right, a) - _box_cox(left, 2.0 - a)
    # For a = 1 the result is x exactly, without rounding.
    return np.where(a == 1.0, x, transformed)


def _box_cox(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return ``((1 + x)^a - 1) / a`` for x >= 0, or its limit ``log(1 + x)`` where a is 0."""
    log = np.log1p(x)
    divisor = np.where(a == 0.0, 1.0, a)
    return np.where(a == 0.0, log, np.expm1(divisor * log) / divisor)


def choose_power(column: np.ndarray, weights: np.ndarray) -> float:
    """Return the maximum-likelihood power under which a column is normal; 1 for a column that is not skewed.

    Args:
        column: The standardised column, (n,).
        weights: One per row, (n,).
    """
    skewness = float(np.average(column**3, weights=weights))
    if abs(skewness) <= _SKEWED or len(np.unique(column)) < _MIN_DISTINCT_VALUES:
        return 1.0
    # The mean log of the derivative psi'(x), which is (1 + |x|)^(sign(x) (a - 1)), is (a - 1) times this.
    log_slope = float(np.average(np.sign(column) * np.log1p(np.abs(column)), weights=weights))

    def negative_log_likelihood(power: float) -> float:
        """Return the profile over mean and variance, per row, up to a constant."""
        transformed = transform(column, power)
        mean = np.average(transformed, weights=weights)
        variance = np.average((transformed - mean) ** 2, weights=weights)
        return 0.5 * float(np.log(variance)) - (power - 1.0) * log_slope

    found = minimize_scalar(negative_log_likelihood, bounds=_POWERS, method="bounded", options={"xatol": 1e-6})
    return float(found.x)
