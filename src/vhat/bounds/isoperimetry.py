"""Half widths by the Gaussian isoperimetric inequality, which compares a prediction with a function of one variable."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from vhat.bounds.formulas import check_rows, nonnegative, positive, probability
from vhat.bounds.isoperimetry_table import COARSE, FINE, LEFT_END, Resolution, make_table, quadrature
from vhat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["isoperimetric", "isoperimetric_multiplier"]


def isoperimetric(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    sd: ArrayLike | None = None,
    observation_noise: ArrayLike = 0.0,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width that the gap exceeds with probability at most delta, by the Gaussian isoperimetric inequality.

    With ``m = noise^2 V / n`` and ``R`` from :func:`isoperimetric_multiplier`::

        half width = R(delta; v / V, c / V) sqrt(m)

    A new response has noise of standard deviation ``observation_noise``, independent of the fit. The same bound then
    holds for the sum of gap and noise, with ``m = noise^2 V / n + observation_noise^2`` and the same v and c.

    Validity: proved if ``norm`` is E V, the prediction is a locally Lipschitz function of Gaussian noise, and (v, c) or
    ``sd`` bounds V's right tail or its standard deviation. With the observed V in place of E V no level is proved,
    whatever the tail.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor, in units of V; infinite for no assumption on the tail.
        c: Scale of V's right tail, in units of V.
        sd: Standard deviation of V over the noise, in units of V, in place of v and c.
        observation_noise: Standard deviation of a new response's own noise; 0 for the mean.
        df: Degrees of freedom of an estimated noise, independent of the fit; None if the noise is known.

    Returns:
        The half widths.

    Raises:
        InputError: For a negative norm, v, c or sd, a noise, df or n that is not positive, or delta outside (0, 1).

    Examples:
        >>> f"{isoperimetric(2.0, 100, 0.1, 0.05):.4f}"
        '0.0277'
        >>> isoperimetric([0.0, 1.0, 2.0], 100, 0.1, 0.05, v=0.5, c=0.2).round(4)
        array([0.    , 0.0224, 0.0299])
    """
    rows = check_rows(norm, n, noise, v, c)
    extra = nonnegative("observation_noise", observation_noise) ** 2
    unit = rows.noise**2 / rows.n
    mean = unit * rows.V + extra
    # If the mean is zero, so is the half width, whatever the multiplier.
    per_mean = np.where(mean > 0, unit, 0.0) / np.where(mean > 0, mean, 1.0)
    if sd is not None:
        given = nonnegative("sd", sd)
        return np.asarray(np.sqrt(mean) * isoperimetric_multiplier(delta, sd=given * per_mean, df=df))
    with np.errstate(invalid="ignore"):
        spread = np.where(np.isinf(rows.v), np.inf, rows.v * per_mean)
    return np.asarray(np.sqrt(mean) * isoperimetric_multiplier(delta, v=spread, c=rows.c * per_mean, df=df))


def isoperimetric_multiplier(
    delta: ArrayLike,
    *,
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    sd: ArrayLike | None = None,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width in standard errors, ``R`` with ``P(|F - E F| > R sqrt(E W)) <= delta``.

    ``W = |grad F|^2`` is the squared gradient of the prediction in the noise.

    - v = c = 0: W is constant, or at most the value used for its mean. The multiplier is best possible, and close to
      the normal quantile.
    - (v, c): the sub-gamma pair of W's right tail, in units of E W.
    - v infinite: no assumption on W except its mean.
    - sd: the standard deviation of W, in units of E W, in place of v and c.

    Args:
        delta: Probability of a miss, in (0, 1).
        v: Square root of the variance factor over E W.
        c: Scale of the tail over E W.
        sd: Standard deviation over E W.
        df: Degrees of freedom of an estimated noise level, independent of the prediction; None if it is known.

    Returns:
        The multipliers. Unless W is constant, they are a few thousandths above the exact value, and never below it.

    Raises:
        InputError: For a negative v, c or sd, a df that is not positive, or a delta outside (0, 1) or too small.

    Examples:
        >>> isoperimetric_multiplier([0.1, 0.05, 0.01]).round(3)
        array([1.645, 1.96 , 2.576])
        >>> isoperimetric_multiplier(0.05, v=[0.1, 0.5, np.inf], c=[0.05, 0.25, 0.0]).round(2)
        array([2.03, 2.24, 2.36])
        >>> isoperimetric_multiplier(0.05, df=[5, 20]).round(2)
        array([2.57, 2.09])
    """
    levels = probability(delta)
    if sd is None:
        first = nonnegative("v", v)
        second = nonnegative("c", c)
        tail = _SUB_GAMMA
    else:
        first = nonnegative("sd", sd)
        second = np.zeros(())
        tail = _TWO_MOMENTS
    freedom = positive("df", np.inf if df is None else df, infinite=True)
    shape = np.broadcast_shapes(levels.shape, first.shape, second.shape, freedom.shape)
    level_rows, v_rows, c_rows, df_rows = (
        np.broadcast_to(column, shape).ravel() for column in (levels, first, second, freedom)
    )
    # Each pair of a level and degrees of freedom has its own tables; usually there is only one pair.
    pairs = np.broadcast_arrays(levels, freedom)
    result = np.empty(v_rows.size)
    for level, degrees in np.unique(np.stack([pair.ravel() for pair in pairs], axis=1), axis=0):
        _check_level(float(level), float(degrees))
        rows = (level_rows == level) & (df_rows == degrees)
        if np.isinf(degrees):
            result[rows] = _radius(float(level), v_rows[rows], c_rows[rows], tail, FINE)
        else:
            result[rows] = _averaged(float(level), float(degrees), v_rows[rows], c_rows[rows], tail)
    return result.reshape(shape)


_LEAST = 1e-150
"""Smallest delta: below it the integrals of the table underflow or overflow in float64."""
_LEAST_AVERAGED = 1e-9
"""Smallest delta with an estimated noise level, whose multiplier is an average over levels down to 1e-10."""


def _check_level(delta: float, df: float) -> None:
    """Refuse a delta below the range of the tables.

    Raises:
        InputError: With the smallest delta.
    """
    if delta < _LEAST:
        raise InputError(f"delta={delta:g} is below {_LEAST:g}, the smallest of the isoperimetric bound. Use 'tight'.")
    if np.isfinite(df) and delta < _LEAST_AVERAGED:
        raise InputError(
            f"delta={delta:g} is below {_LEAST_AVERAGED:g}, the smallest of the isoperimetric bound with an estimated "
            "noise level. Give the noise level, or use bound='asymptotic'."
        )


_SUB_GAMMA = "sub-gamma"
_TWO_MOMENTS = "two moments"
_CHUNK = 4096
"""Rows evaluated together: about thirty megabytes."""
_LARGEST_TAIL = 1e12
"""End of the curves in t = v + c, in units of E W; the multiplier without an assumption on the tail is smaller."""
_MOST_SHARES = 64
"""Number of different ratios of v to c in one call up to which each has its own curve, about ten milliseconds each."""


def _radius(
    delta: float, first: np.ndarray, second: np.ndarray, tail: str, resolution: Resolution = FINE
) -> np.ndarray:
    """Return the multipliers of one delta for (v, c) or (sd, 0), in units of E W; NaN gives NaN.

    Args:
        delta: Probability of a miss.
        first: v or sd, (rows,).
        second: c or zeros, (rows,).
        tail: Which of the two.
        resolution: Resolution of the tables.
    """
    any_tail = _any_tail(delta)
    total = first + second
    result = np.where(np.isnan(total), np.nan, any_tail)
    result[(first == 0) & (second == 0)] = _constant(delta)
    rest = np.flatnonzero((total > 0) & np.isfinite(total))
    if rest.size == 0:
        return result
    total = total[rest]
    # Rounded, so that tails in units of V have one share for all V.
    share = np.round(second[rest] / total, 12)
    shares = np.unique(share)
    if len(shares) > _MOST_SHARES:
        square = _largest_of_cells(first[rest], second[rest], *_lines(delta, tail, resolution))
    else:
        square = np.empty(rest.size)
        for each in shares:
            rows = share == each
            square[rows] = np.interp(total[rows], *_square_curve(delta, float(each), tail, resolution))
    # The bound without an assumption on the tail holds here too.
    result[rest] = np.minimum(np.sqrt(square), any_tail)
    return result


def _lines(delta: float, tail: str, resolution: Resolution) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a, b, d of ``r^2 <= a + b v + d c`` for every cell and choice, (cells, choices) each."""
    square, divergence, spread = make_table(delta, resolution)
    if tail == _TWO_MOMENTS:
        return square, square * np.sqrt(spread), np.zeros_like(square)
    return square, square * np.sqrt(2 * divergence), square * divergence


def _largest_of_cells(
    first: np.ndarray, second: np.ndarray, constant: np.ndarray, by_first: np.ndarray, by_second: np.ndarray
) -> np.ndarray:
    """Return, for each row, the largest value over the cells, with the best choice in each cell."""
    result = np.empty(first.size)
    for start in range(0, first.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        values = _values_of_cells(first[part], second[part], constant, by_first, by_second)
        result[part] = np.max(values, axis=0)
    return result


def _values_of_cells(
    first: np.ndarray, second: np.ndarray, constant: np.ndarray, by_first: np.ndarray, by_second: np.ndarray
) -> np.ndarray:
    """Return the smallest value over the choices of each cell, (cells, rows)."""
    values = np.empty((len(constant), first.size))
    for cell in range(len(constant)):
        lines = constant[cell] + np.multiply.outer(first, by_first[cell]) + np.multiply.outer(second, by_second[cell])
        values[cell] = np.min(lines, axis=1)
    return values


@lru_cache(maxsize=256)
def _square_curve(delta: float, share: float, tail: str, resolution: Resolution) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared multiplier as a function of ``t = v + c``, for (v, c) = t (1 - share, share).

    The value of a cell is the smallest of several straight lines in t, and the squared multiplier is the largest value
    over the cells. It is piecewise linear, and linear interpolation between its corners is exact.

    Returns:
        The corners, and the values there.
    """
    constant, by_first, by_second = _lines(delta, tail, resolution)
    slope = (1 - share) * by_first + share * by_second
    changes = [_corners(a, b) for a, b in zip(constant, slope, strict=True)]
    corners = np.unique(np.concatenate([*changes, [_LARGEST_TAIL]]))
    while True:
        values = _values_of_cells((1 - share) * corners, share * corners, constant, by_first, by_second)
        largest = np.argmax(values, axis=0)
        left = largest[:-1]
        right = largest[1:]
        changed = np.flatnonzero(left != right)
        # If another cell becomes the largest between two corners, the crossing of their lines is a corner too.
        gap = values[left, np.arange(len(left))] - values[right, np.arange(len(right))]
        next_gap = values[left, np.arange(1, len(left) + 1)] - values[right, np.arange(1, len(right) + 1)]
        with np.errstate(invalid="ignore", divide="ignore"):
            crossing = corners[:-1] + np.diff(corners) * gap / (gap - next_gap)
        new = np.setdiff1d(crossing[changed][np.isfinite(crossing[changed])], corners)
        if new.size:
            # A crossing within rounding of a corner would never end the loop.
            distance = np.min(np.abs(new[:, None] - corners), axis=1)
            new = new[distance > 1e-12 * (1 + new)]
        if new.size == 0:
            return corners, np.max(values, axis=0)
        corners = np.union1d(corners, new)


def _corners(constant: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return 0 and the points t > 0 at which the smallest of the lines ``constant + slope t`` changes."""
    corners = [0.0]
    current = np.lexsort((slope, constant))[0]
    while True:
        flatter = np.flatnonzero(slope < slope[current])
        if flatter.size == 0:
            return np.array(corners)
        crossing = (constant[flatter] - constant[current]) / (slope[current] - slope[flatter])
        nearest = np.min(crossing)
        # If several lines cross the current one at the same point, the flattest is the smallest beyond it.
        tied = flatter[crossing <= nearest]
        current = tied[np.argmin(slope[tied])]
        corners.append(float(nearest))


@lru_cache(maxsize=1024)
def _constant(delta: float) -> float:
    """Return the best possible multiplier for constant W: the root r of ``D(r) = delta``.

    ``D(r) = P(U > z) + P(U > 2 r - z)`` with ``integral of Phi up to z = r``. It is attained by ``F = min(U, z)``.
    """

    def excess(z: float) -> float:
        return float(ndtr(-z) + ndtr(z - 2 * _area(z))) - delta

    z = brentq(excess, -40.0, 40.0, xtol=1e-14, rtol=1e-15)
    return float(_area(z))


def _area(z: ArrayLike) -> np.ndarray:
    """Return the integral of Phi up to z, ``z Phi(z) + phi(z)``."""
    at = np.asarray(z, dtype=float)
    return np.asarray(at * ndtr(at) + np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi))


@lru_cache(maxsize=1024)
def _any_tail(delta: float) -> float:
    """Return the multiplier without an assumption on W except its mean.

    The largest value over the splits of delta is attained at an end: equal shares, or all of it on one side.
    """
    ends = -ndtri(np.array([delta / 2, delta]))
    u, weights = quadrature(np.array([0.0, LEFT_END]), ends, _PIECES)
    with np.errstate(over="ignore"):
        inverse_density = np.sqrt(2 * np.pi) * np.exp(0.5 * u**2)
        shared = 0.5 * np.sum(weights[0] * inverse_density[0])
        one_side = np.sum(weights[1] * ndtr(u[1]) ** 2 * inverse_density[1])
    return float(np.sqrt(max(shared, one_side)))


_PIECES = 16
"""Pieces of an interval of integration, with sixteen nodes each."""
_LEVELS = np.concatenate([np.geomspace(1e-10, 1e-2, 17)[:-1], np.geomspace(1e-2, 0.9, 16)])
"""Levels at which multipliers are computed, for the average over the noise estimate."""
_PLACES = np.linspace(0.0, 1.0, 25)
"""Values of ``x = t / (1 + t)``, t = v + c, at which the averaged multiplier is computed, for interpolation."""


def _averaged(delta: float, df: float, first: np.ndarray, second: np.ndarray, tail: str) -> np.ndarray:
    """Return the multipliers for a noise estimate with ``df`` degrees of freedom.

    With ``D`` the probability of a miss as a function of the multiplier, it is the root R of
    ``E D(R sqrt(chi2_df / df)) = delta``. The value of a row is interpolated on the curve of its own ratio of v to c,
    and does not depend on the other rows of the call.
    """
    total = first + second
    result = np.where(np.isnan(total), np.nan, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(total > 0, np.round(second / total, 12), 0.0)
        place = np.where(np.isinf(total), 1.0, total / (1 + total))
    share[np.isinf(total)] = 0.0
    for each in np.unique(share[~np.isnan(total)]):
        rows = (share == each) & ~np.isnan(total)
        result[rows] = _curve(delta, df, float(each), tail)(place[rows])
    return result


@lru_cache(maxsize=256)
def _curve(delta: float, df: float, share: float, tail: str) -> PchipInterpolator:
    """Return the averaged multiplier as a function of ``x = t / (1 + t)``, for (v, c) = t (1 - share, share)."""
    scale, weights = _chi_nodes(df)
    values = [_averaged_root(delta, radii, scale, weights) for radii in _radii(share, tail).T]
    return PchipInterpolator(_PLACES, np.maximum.accumulate(values))


def _averaged_root(delta: float, radii: np.ndarray, scale: np.ndarray, weights: np.ndarray) -> float:
    """Return the root R of ``sum_i weights_i D(R scale_i) = delta``; ``radii`` is the inverse of D at ``_LEVELS``."""
    largest = radii[0]
    smallest = radii[-1]
    log_miss = PchipInterpolator(radii[::-1], np.log(_LEVELS[::-1]))

    def excess(log_multiplier: float) -> float:
        at = np.exp(log_multiplier) * scale
        # Conservative: below the smallest radius of the table a miss is certain, above the largest as likely as there.
        miss = np.where(at < smallest, 1.0, np.exp(log_miss(np.clip(at, smallest, largest))))
        return float(np.sum(weights * miss)) - delta

    return float(np.exp(brentq(excess, np.log(1e-3), np.log(1e8), xtol=1e-10)))


@lru_cache(maxsize=32)
def _radii(share: float, tail: str) -> np.ndarray:
    """Return the multipliers at ``_LEVELS`` (rows) and ``_PLACES`` (columns), from coarse tables."""
    totals = np.append(_PLACES[:-1] / (1 - _PLACES[:-1]), np.inf)
    first = np.append((1 - share) * totals[:-1], np.inf)
    second = np.append(share * totals[:-1], 0.0)
    return np.stack([_radius(float(level), first, second, tail, COARSE) for level in _LEVELS])


def _chi_nodes(df: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of ``sqrt(chi2_df / df)`` and their weights: the trapezoidal rule in the logarithm."""
    spread = min(6.0, 10.0 / np.sqrt(df))
    log_root = np.linspace(-30.0 / df - spread, spread, 1001)
    log_density = df * log_root - 0.5 * df * np.exp(2 * log_root)
    weights = np.exp(log_density - log_density.max())
    return np.exp(log_root), weights / weights.sum()
