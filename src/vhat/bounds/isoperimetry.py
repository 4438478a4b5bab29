"""Half widths from Gaussian isoperimetry: the whole distribution of a prediction compared with one dimension."""

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

    For a new response, whose noise of standard deviation ``observation_noise`` is independent of the fit, the same
    holds of the sum: ``m = noise^2 V / n + observation_noise^2``, with v and c unchanged.

    Standing: proved when ``norm`` is E V, the prediction is a locally Lipschitz function of Gaussian noise, and (v, c)
    or ``sd`` bounds V's right tail or its standard deviation. With the observed V in place of E V no level is proved,
    whatever the tail.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor, in units of V; infinite to assume nothing about the tail.
        c: Scale of V's right tail, in units of V.
        sd: Standard deviation of V over the noise, in units of V, in place of v and c.
        observation_noise: Standard deviation of a new response's own noise; 0 for the mean.
        df: Degrees of freedom of an estimated noise, independent of the fit; None where the noise is known.

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
    # Where nothing varies there is nothing to divide by, and the multiplier does not matter.
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

    - v = c = 0: W is constant, or bounded by what stands for its mean. Best possible, and close to the normal quantile.
    - (v, c): the sub-gamma pair of W's right tail, as multiples of E W.
    - v infinite: nothing is assumed about W but its mean.
    - sd: the standard deviation of W, as a multiple of E W, in place of v and c.

    Args:
        delta: Probability of a miss, in (0, 1).
        v: Square root of the variance factor over E W.
        c: Scale of the tail over E W.
        sd: Standard deviation over E W.
        df: Degrees of freedom of an estimated noise level, independent of the prediction; None where it is known.

    Returns:
        The multipliers: some thousandths above their limit unless W is constant, never below it.

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
    columns = np.broadcast_arrays(levels, first, second, freedom)
    flat = np.stack([column.ravel() for column in columns], axis=1)
    result = np.empty(len(flat))
    for level, degrees in np.unique(flat[:, [0, 3]], axis=0):
        _refuse_beyond_the_tables(float(level), float(degrees))
        rows = (flat[:, 0] == level) & (flat[:, 3] == degrees)
        if np.isinf(degrees):
            result[rows] = _radius(float(level), flat[rows, 1], flat[rows, 2], tail, FINE)
        else:
            result[rows] = _averaged(float(level), float(degrees), flat[rows, 1], flat[rows, 2], tail)
    return result.reshape(columns[0].shape)


_LEAST = 1e-150
"""Smallest delta: below it the integrals of the table leave the range of float64."""
_LEAST_AVERAGED = 1e-9
"""Smallest delta with an estimated noise level, which is averaged over levels down to 1e-10."""


def _refuse_beyond_the_tables(delta: float, df: float) -> None:
    """Refuse a delta for which the tables have no multiplier.

    Raises:
        InputError: Naming the smallest delta.
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
"""Rows that are evaluated together: some thirty megabytes."""


def _radius(
    delta: float, first: np.ndarray, second: np.ndarray, tail: str, resolution: Resolution = FINE
) -> np.ndarray:
    """Return the multipliers of one delta for ratios (v, c), or (sd, 0) where ``tail`` says so; NaN stays NaN."""
    any_tail = _any_tail(delta)
    result = np.where(np.isnan(first + second), np.nan, any_tail)
    result[(first == 0) & (second == 0)] = _constant(delta)
    rest = np.flatnonzero((first + second > 0) & np.isfinite(first + second))
    if rest.size == 0:
        return result
    square, divergence, spread = make_table(delta, resolution)
    growth = {
        _SUB_GAMMA: (np.sqrt(2 * divergence), divergence),
        _TWO_MOMENTS: (np.sqrt(spread), np.zeros_like(spread)),
    }
    by_first, by_second = growth[tail]
    for start in range(0, rest.size, _CHUNK):
        at = rest[start : start + _CHUNK]
        best = np.zeros(at.size)
        for cell in range(len(square)):
            means = 1 + np.multiply.outer(first[at], by_first[cell]) + np.multiply.outer(second[at], by_second[cell])
            best = np.maximum(best, np.min(square[cell] * means, axis=1))
        # What holds without any assumption on the tail holds with one.
        result[at] = np.minimum(np.sqrt(best), any_tail)
    return result


@lru_cache(maxsize=1024)
def _constant(delta: float) -> float:
    """Return the best multiplier for constant W: the root r of ``D(r) = delta``.

    ``D(r) = P(U > z) + P(U > 2 r - z)`` with ``integral of Phi up to z = r``. It is attained by ``F = min(U, z)``.
    """
    low, high = -40.0, 40.0

    def excess(z: float) -> float:
        return float(ndtr(-z) + ndtr(z - 2 * _area(z))) - delta

    z = brentq(excess, low, high, xtol=1e-14, rtol=1e-15)
    return float(_area(z))


def _area(z: ArrayLike) -> np.ndarray:
    """Return the integral of Phi up to z, ``z Phi(z) + phi(z)``."""
    at = np.asarray(z, dtype=float)
    return np.asarray(at * ndtr(at) + np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi))


@lru_cache(maxsize=1024)
def _any_tail(delta: float) -> float:
    """Return the multiplier that needs nothing but the mean of W.

    The largest over the splits is attained at an end: delta shared equally, or all of it on one side.
    """
    ends = -ndtri(np.array([delta / 2, delta]))
    u, weights = quadrature(np.array([0.0, LEFT_END]), ends, _PIECES)
    with np.errstate(over="ignore"):
        inverse_density = np.sqrt(2 * np.pi) * np.exp(0.5 * u**2)
        shared = 0.5 * np.sum(weights[0] * inverse_density[0])
        one_side = np.sum(weights[1] * ndtr(u[1]) ** 2 * inverse_density[1])
    return float(np.sqrt(max(shared, one_side)))


_PIECES = 16
"""Pieces of an interval of integration, of sixteen nodes each."""
_LEVELS = np.concatenate([np.geomspace(1e-10, 1e-2, 17)[:-1], np.geomspace(1e-2, 0.9, 16)])
"""Levels at which a tail's multiplier is computed, to be averaged over the noise estimate."""
_PLACES = np.linspace(0.0, 1.0, 25)
"""Values of ``x = t / (1 + t)``, t = v + c, at which the averaged multiplier is computed; others are interpolated."""


def _averaged(delta: float, df: float, first: np.ndarray, second: np.ndarray, tail: str) -> np.ndarray:
    """Return the multipliers for a noise estimate with ``df`` degrees of freedom.

    With ``D`` the probability of a miss as a function of the multiplier, the answer is the root R of
    ``E D(R sqrt(chi2_df / df)) = delta``. Whatever the rows that are asked about together, a row's answer is read
    from the same curve: that of its own ratio of v to c.
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
    """Return the root R of ``sum_i weights_i D(R scale_i) = delta``, D given by its inverse at ``_LEVELS``."""
    largest = radii[0]
    smallest = radii[-1]
    log_miss = PchipInterpolator(radii[::-1], np.log(_LEVELS[::-1]))

    def excess(log_multiplier: float) -> float:
        at = np.exp(log_multiplier) * scale
        # Below the smallest radius of the table a miss is certain, and above the largest as likely as there.
        miss = np.where(at < smallest, 1.0, np.exp(log_miss(np.clip(at, smallest, largest))))
        return float(np.sum(weights * miss)) - delta

    return float(np.exp(brentq(excess, np.log(1e-3), np.log(1e8), xtol=1e-10)))


@lru_cache(maxsize=32)
def _radii(share: float, tail: str) -> np.ndarray:
    """Return the multipliers at ``_LEVELS`` (down) and ``_PLACES`` (across); coarse tables do."""
    totals = np.append(_PLACES[:-1] / (1 - _PLACES[:-1]), np.inf)
    first = np.append((1 - share) * totals[:-1], np.inf)
    second = np.append(share * totals[:-1], 0.0)
    return np.stack([_radius(float(level), first, second, tail, COARSE) for level in _LEVELS])


def _chi_nodes(df: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values of ``sqrt(chi2_df / df)`` and their probabilities: the trapezoidal rule in its logarithm."""
    spread = min(6.0, 10.0 / np.sqrt(df))
    log_root = np.linspace(-30.0 / df - spread, spread, 1001)
    log_density = df * log_root - 0.5 * df * np.exp(2 * log_root)
    weights = np.exp(log_density - log_density.max())
    return np.exp(log_root), weights / weights.sum()
