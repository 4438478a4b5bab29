"""Upper confidence limits for the mean and the standard deviation of V, from draws of it.

V is not negative and leans to the right, often strongly, so that the limits of normal theory are too low: at
eta = 0.0025 and 100 draws, Student's t for the mean of an exponential law errs 3.8 times as often as it says, and the
delta method with the sample's kurtosis for its standard deviation 14 times as often. Both rules below correct for
skewness and kurtosis. The sample's own values of these are too small in small samples, so they are raised to at least
those of the lognormal law with the same relative spread ``r = sd / mean``, to leading order in r: skewness ``3 r``,
kurtosis ``3 + 16 r^2`` (the gamma law has ``2 r`` and ``3 + 6 r^2``).

Realised error rates over eta, 100,000 samples each (``python -m benchmarks.coverage limits``); the three numbers are
for 30, 100 and 400 draws:

==================  ==================  ==================  ==================  ==================
law of V            mean, eta = .0025   mean, eta = .0005   sd, eta = .0025     sd, eta = .0005
==================  ==================  ==================  ==================  ==================
of tanh(z / 2)      0.0  0.1  0.5       0.0  0.0  0.3       0.5  0.1  0.0       0.7  0.0  0.0
gamma, shape 8      0.8  0.9  0.9       0.7  0.8  0.8       0.3  0.2  0.2       0.2  0.2  0.0
gamma, shape 2      0.9  0.8  0.8       1.0  0.7  0.8       0.1  0.0  0.0       0.0  0.0  0.0
gamma, shape 1      1.1  0.8  0.7       1.2  0.8  0.6       0.0  0.0  0.0       0.0  0.0  0.0
chi-square, df 1    2.2  1.0  0.8       3.3  1.3  0.7       0.0  0.0  0.0       0.0  0.0  0.0
lognormal, 0.5      1.7  1.3  1.1       2.3  1.5  1.3       1.1  1.3  1.4       1.1  1.4  1.4
lognormal, 1        5.4  3.5  2.1       9.8  5.9  2.7       2.1  3.7  6.6       2.1  4.5  10
==================  ==================  ==================  ==================  ==================

So both err at most about twice as often as they say for relative spreads of up to one half, and more often for a
lognormal law with a relative spread of 1.3. No rule can account for values of V that no draw shows. An interval from
both limits at eta = delta / 20 and the two-moment bound at the rest of delta missed at most 0.4 delta for
F = tanh(z / 2), z^2 and exp(z / 2), and 0.6 delta for functions that attain the bound without a tail, from 30 draws on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import gammaincinv, stdtrit

from vhat.checks import as_numbers
from vhat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["FEWEST_DRAWS", "mean_limit", "sd_limit"]

FEWEST_DRAWS = 10
"""Least number of draws: below it the third and fourth moments of a sample say nothing."""
_SKEWNESS_PER_SPREAD = 3.0
"""Skewness over relative spread of a lognormal law with little spread."""
_EXCESS_PER_SQUARE = 16.0
"""Excess kurtosis over the square of the relative spread of a lognormal law with little spread."""
_LARGEST_ETA = 0.5
"""From here on a limit would be no upper one."""


def mean_limit(draws: ArrayLike, eta: float) -> np.ndarray:
    """Return an upper confidence limit for the mean: Johnson's t, corrected for skewness.

    With the sample mean m, standard deviation s, skewness g (at least ``3 s / m``), R draws and Student's quantile
    ``q = t_{R-1}(1 - eta)``::

        limit = m + s / sqrt(R) (q + g (1 + 2 q^2) / (6 sqrt(R)))

    Measured one-sided error rates are in the module's table. At 100 draws the limit is 5 to 12% above the mean for a
    relative spread of 0.2 to 0.4, 35% for an exponential law.

    Args:
        draws: Independent draws of a quantity that is not negative, along the first axis; at least ten.
        eta: Probability that the limit is below the mean, in (0, 1/2).

    Returns:
        Limits in the shape of one draw: the draws' own value where they are all equal, NaN where one is not finite.

    Raises:
        InputError: For fewer than ten draws, a negative draw, or an eta outside (0, 1/2).

    Examples:
        >>> float(mean_limit([1.0] * 20, 0.005))
        1.0
        >>> mean_limit(np.random.default_rng(0).gamma(8.0, 1 / 8, size=(100, 2)), 0.005).round(2)
        array([1.02, 1.12])
    """
    sample = _moments(draws)
    root = np.sqrt(sample.number)
    q = float(stdtrit(sample.number - 1, 1 - _check_eta(eta)))
    skewness = np.maximum(sample.skewness, _SKEWNESS_PER_SPREAD * sample.spread)
    return np.asarray(sample.mean + sample.sd / root * (q + skewness * (1 + 2 * q**2) / (6 * root)))


def sd_limit(draws: ArrayLike, eta: float) -> np.ndarray:
    """Return an upper confidence limit for the standard deviation: chi-square, with degrees of freedom by the kurtosis.

    The sample variance s^2 of R draws with kurtosis k has the relative variance ``(k - (R - 3) / (R - 1)) / R``. The
    chi-square over its degrees of freedom f that has the same gives the limit, for normal draws the classical one::

        f = 2 R / (k - (R - 3) / (R - 1)),        limit = s sqrt(f / chi2_f(eta)),

    with the sample's kurtosis, at least ``3 + 16 (s / m)^2``, for k, and f at least 1. Measured one-sided error rates
    are in the module's table. At 100 draws the limit is 30 to 40% above the standard deviation for a relative spread of
    0.2 to 0.4, twice as large for an exponential law.

    Args:
        draws: Independent draws of a quantity that is not negative, along the first axis; at least ten.
        eta: Probability that the limit is below the standard deviation, in (0, 1/2).

    Returns:
        Limits in the shape of one draw: 0 where the draws are all equal, NaN where one is not finite.

    Raises:
        InputError: For fewer than ten draws, a negative draw, or an eta outside (0, 1/2).

    Examples:
        >>> float(sd_limit([1.0] * 20, 0.005))
        0.0
        >>> sd_limit(np.random.default_rng(0).gamma(8.0, 1 / 8, size=(100, 2)), 0.005).round(2)
        array([0.44, 0.5 ])
    """
    sample = _moments(draws)
    R = sample.number
    kurtosis = np.maximum(sample.kurtosis, 3 + _EXCESS_PER_SQUARE * sample.spread**2)
    freedom = np.maximum(2 * R / (kurtosis - (R - 3) / (R - 1)), 1.0)
    # The lower quantile of a chi-square is twice that of a gamma law with half the degrees of freedom.
    return np.asarray(sample.sd * np.sqrt(freedom / (2 * gammaincinv(freedom / 2, _check_eta(eta)))))


class _Moments(NamedTuple):
    """Moments of the draws at each point, with the usual corrections for small samples."""

    number: int
    mean: np.ndarray
    sd: np.ndarray
    spread: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray


def _moments(draws: ArrayLike) -> _Moments:
    """Return the moments along the first axis; NaN where a draw is not finite.

    Raises:
        InputError: For fewer than ten draws, or a negative one.
    """
    values = as_numbers("draws", draws)
    if values.ndim == 0 or len(values) < FEWEST_DRAWS:
        count = values.shape[0] if values.ndim else 1
        raise InputError(f"{count} draws are too few for a confidence limit: at least {FEWEST_DRAWS} are needed.")
    if np.any(values < 0):
        raise InputError(f"draws must not be negative; the least is {np.nanmin(values):g}.")
    values = np.where(np.isfinite(values), values, np.nan)
    R = len(values)
    # In units of the largest draw, so that fourth powers stay within the range of float64.
    largest = np.max(values, axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    scaled = values / unit
    mean = np.mean(scaled, axis=0)
    centred = scaled - mean
    # Equal draws differ from their mean by rounding alone.
    sd = np.where(np.ptp(scaled, axis=0) == 0, 0.0, np.sqrt(np.sum(centred**2, axis=0) / (R - 1)))
    z = centred / (np.where(sd > 0, sd, 1.0) * np.sqrt((R - 1) / R))
    square = z * z
    skewness = np.mean(square * z, axis=0) * np.sqrt(R * (R - 1)) / (R - 2)
    excess = np.mean(square * square, axis=0) - 3
    kurtosis = 3 + ((R + 1) * excess + 6) * (R - 1) / ((R - 2) * (R - 3))
    spread = sd / np.where(mean > 0, mean, 1.0)
    hole = np.isnan(largest)
    return _Moments(R, mean * unit, np.where(hole, np.nan, sd) * unit, spread, skewness, kurtosis)


def _check_eta(eta: float) -> float:
    """Return eta.

    Raises:
        InputError: For an eta outside (0, 1/2).
    """
    if not 0 < eta < _LARGEST_ETA:
        raise InputError(f"eta={eta!r} is not between 0 and {_LARGEST_ETA:g}: it is the error rate of an upper limit.")
    return float(eta)
