"""The level of intervals whose V was estimated by random probes.

With K probes, ``V_K = V U``, ``U`` a chi-square variable with K degrees of freedom over K that is independent of the
noise. A bound promises ``P(|gap| > t sqrt(V/n) sigma) <= D(t)`` for every t, ``D`` the inverse of its multiplier
``m(delta)``. With the multiplier c in place of m(delta), and V_K in place of V, a miss therefore has the probability
``E D(c sqrt(U))`` at most. It is delta for one c; the interval is then made at the smaller ``delta' = D(c)``, and no
part of delta is spent on the sampling error of V.

For a new response the variance is ``V_K/n + s^2`` with a part s^2 that is known. As ``u -> D(c sqrt(u))`` is convex,
the same c errs on the side of coverage there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.stats import chi2

from vhat.errors import InputError

__all__ = ["delta_of_sampled"]

_NODES = 801
"""Number of points of the trapezoidal rule over U, whose error is far below that of the table of D."""
_TAIL = 1e-13
"""Probability of U beyond either end of that rule."""
_TABLE = 24
"""Number of levels at which the multiplier of the bound is tabulated. log D is smooth, and c is accurate to 1e-4."""
_LARGEST = 0.999
"""The largest of them. For a multiplier below that of this level, D is taken as 1."""


def delta_of_sampled(
    multiplier: Callable[[np.ndarray], np.ndarray],
    probes: int,
    delta: float,
    *,
    table: int = _TABLE,
    least: float = 1e-300,
) -> float:
    """Return the smaller delta at which a bound, applied to a sampled V, misses with probability delta.

    Args:
        multiplier: Half width of the bound in standard errors, at an array of levels.
        probes: Number K of random probes from which V was estimated.
        delta: Probability of a miss.
        table: Number of levels at which the multiplier is tabulated.
        least: The smallest level at which the bound can be asked.

    Raises:
        InputError: When so small a delta cannot be reached with so few probes.

    Examples:
        >>> from scipy.stats import norm
        >>> smaller = delta_of_sampled(lambda d: norm.isf(d / 2), 256, 0.05)
        >>> round(float(norm.isf(smaller / 2)), 3)  # the quantile of Student's t with 256 degrees of freedom
        1.969
    """
    u = np.linspace(chi2.ppf(_TAIL, probes) / probes, chi2.isf(_TAIL, probes) / probes, _NODES)
    weight = chi2.pdf(u * probes, probes)
    weight /= weight.sum()

    # For a Gaussian tail, log D(t) ~ -t^2/2, D(c sqrt(u)) ~ D(c)^u, which gives the range of levels that matter. Those
    # of heavier tails lie within it. Below its smallest level D is taken as constant.
    smallest = max(least, (delta / 2) ** (1.2 * u[-1]))
    levels = np.geomspace(smallest, min(_LARGEST, delta ** (0.5 * u[0])), table)
    # In ascending order of the multiplier, so from the largest level on; ties are left out.
    widths = np.asarray(multiplier(levels), dtype=np.float64)[::-1]
    logs = np.log(levels)[::-1]
    rising = np.concatenate([[True], np.diff(np.maximum.accumulate(widths)) > 0])
    log_misses = PchipInterpolator(widths[rising], logs[rising])
    lowest, highest = widths[0], widths[rising][-1]

    def misses(t: np.ndarray) -> np.ndarray:
        """Return D(t)."""
        inside = np.exp(log_misses(np.clip(t, lowest, highest)))
        return np.where(t < lowest, 1.0, inside)

    def excess(c: float) -> float:
        return float(weight @ misses(c * np.sqrt(u))) - delta

    start = float(np.asarray(multiplier(np.array([delta])))[0])
    if excess(highest) > 0:  # c lies beyond the largest multiplier of the table, where D is unknown
        raise InputError(
            f"delta={delta:g} is too small for a V that was estimated from {probes} probes. Make the sketch with more "
            "of them, or ask for a larger delta."
        )
    c = start if excess(start) <= 0 else brentq(excess, start, highest, xtol=1e-12 * start)
    return float(misses(np.array([c]))[0])
