"""Half widths for single predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from vhat.bounds.formulas import (
    FORMULAS,
    check_rows,
    divide,
    level_of,
    positive,
    probability,
    sharp_at,
    theorem_at,
    tight_at,
)
from vhat.checks import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

__all__ = ["asymptotic", "chebyshev", "empirical", "observation", "sharp", "theorem", "tight"]


def tight(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width that the gap exceeds with probability at most delta, by the log-Sobolev inequality.

    With ``Q = V + v sqrt(2 l) + c l`` and its shares ``(A, B, K) = (V, v sqrt(2 l), c l) / Q``::

        half width = noise sqrt(2 l Q / n) (1 + G(A, B, K)) / 2,        0 <= G <= 1,    G(1, 0, 0) = 1,

    G being an elementary integral. For v = c = 0 this is ``noise sqrt(2 l V / n)``; in general it lies
    between one half and the whole of ``noise sqrt(2 l Q / n)``.

    Validity: proved if ``norm`` is E V and (v, c) bounds V's right tail. It is a heuristic with the observed V in place
    of E V, and with v = c = 0 for a model that is not linear in its parameters. With ``df`` the level l is replaced by
    ``(df / 2) ((2 / delta)^(2 / df) - 1)``, which is exact for an independent noise estimate and v = c = 0.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor, in units of V.
        c: Scale of V's right tail, in units of V.
        df: Degrees of freedom of an estimated noise level, independent of the fit; None if the noise is known.

    Returns:
        The half widths.

    Raises:
        InputError: For a negative norm, v or c, a noise or n that is not positive, or delta outside (0, 1).

    Examples:
        >>> f"{tight(2.0, 100, 0.1, 0.05):.4f}"
        '0.0384'
        >>> tight([0.0, 1.0, 2.0], 100, 0.1, 0.05, v=0.5, c=0.2).round(4)
        array([0.0243, 0.0372, 0.0462])
    """
    return tight_at(check_rows(norm, n, noise, v, c), level_of(delta, df))


def theorem(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width as published by Kuzborskij and Abbasi-Yadkori, offered for reproduction.

    ::

        half width = noise sqrt((pi^2 / 2) l V / n) + noise^2 (sqrt(2 l) v + (2/3) l c) / n

    Validity: proved for v = c = 0, where `tight` is pi/2 times narrower. For v, c > 0 it is unproved, and false as a
    general statement. The published proof evaluates the sub-gamma bound of V at s in place of ``s^2 pi^2 / 8``, so that
    the first term has the unit of y and the second that of y squared; and its last lemma should have ``2 (1 + u)`` in
    place of ``2 (1 + u/3)``. V in place of E V is a heuristic.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor (the paper's study takes 1).
        c: Scale of V's right tail (the paper's study takes 1).
        df: Degrees of freedom of an estimated noise level, independent of the fit; None if the noise is known.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`.

    Examples:
        >>> f"{theorem(2.0, 100, 0.1, 0.05):.4f}"
        '0.0603'
    """
    return theorem_at(check_rows(norm, n, noise, v, c), level_of(delta, df))


def sharp(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width of the published lemma before its square root is split, never wider than `theorem`.

    ::

        half width = sqrt(noise^2 (pi^2 / 2) l V / n + 2 l noise^4 v^2 / n^2 + l^2 noise^4 c^2 / (9 n^2))
                     + l noise^2 c / (3 n)

    Validity: proved for v = c = 0, where it equals `theorem`. It is unproved for v, c > 0, because it is the step of
    the published proof that evaluates V's sub-gamma bound at the wrong argument and adds y to y squared. V in place of
    E V is a heuristic.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor.
        c: Scale of V's right tail.
        df: Degrees of freedom of an estimated noise level, independent of the fit; None if the noise is known.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`.

    Examples:
        >>> bool(sharp(2.0, 100, 0.1, 0.05, v=1, c=1) < theorem(2.0, 100, 0.1, 0.05, v=1, c=1))
        True
    """
    return sharp_at(check_rows(norm, n, noise, v, c), level_of(delta, df))


def empirical(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    v: ArrayLike,
    c: ArrayLike,
    bound: Literal["tight", "theorem", "sharp", "chebyshev"] = "tight",
    split: float = 0.5,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width from the observed V, with a part of delta for V's left tail.

    With ``d1 = split delta`` and ``d2 = delta - d1``, the bound is evaluated at d1 with E V replaced by::

        V + v sqrt(2 t) + c t,        t = ln(1 / d2)

    Validity: proved with ``bound="tight"``, if (v, c) does not depend on the data and bounds both tails of V. A pair
    that is a multiple of the observed V makes it a heuristic. The published empirical bound is unproved for v, c > 0:
    it uses `theorem`, and it uses delta twice. ``bound="theorem"`` and ``"sharp"`` have the first of these defects.

    Args:
        norm: The observed V; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor, for both tails.
        c: Scale of V's tails.
        bound: Which bound on the gap is used.
        split: The share of delta that the bound gets, in (0, 1); V's left tail gets the rest.
        df: As in `tight`.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`, and for an unknown bound or a split outside (0, 1).

    Examples:
        >>> empirical([1.0, 2.0], 100, 0.1, 0.05, v=0.2, c=0.1).round(4)
        array([0.0453, 0.0542])
    """
    rows = check_rows(norm, n, noise, v, c)
    check_choice("bound", bound, (*FORMULAS, "chebyshev"))
    first, second = divide(delta, split)
    t = -np.log(second)
    above = np.asarray(rows.V + rows.v * np.sqrt(2 * t) + rows.c * t)
    if bound == "chebyshev":
        return chebyshev(above, n, noise, first, df=df)
    return FORMULAS[bound](rows._replace(V=above), level_of(first, df))


def chebyshev(
    norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike, *, df: ArrayLike | None = None
) -> np.ndarray:
    """Half width by the Gaussian Poincare inequality and Chebyshev's inequality.

    ::

        half width = noise sqrt(V / (delta n))

    Validity: proved for E V without any assumption on V's tail. With V in place of E V no level is proved, whatever the
    tail: for a prediction that is the square of one Gaussian variable it misses 8.8% of the time at delta = 0.05. With
    ``df`` the width is larger by the factor ``sqrt(df / (df - 2))``, and infinite up to two degrees of freedom.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        df: As in `tight`.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`.

    Examples:
        >>> f"{chebyshev(2.0, 100, 0.1, 0.05):.4f}"
        '0.0632'
    """
    rows = check_rows(norm, n, noise)
    known = rows.standard_error / np.sqrt(probability(delta))
    if df is None:
        return np.asarray(known)
    freedom = positive("df", df, infinite=True)
    # E 1/s^2 = df / (df - 2) / sigma^2 replaces 1/sigma^2 in Chebyshev's inequality.
    with np.errstate(divide="ignore"):
        growth = np.where(freedom > 2, 1 / np.sqrt(np.maximum(1 - 2 / freedom, 0.0)), np.inf)
    return np.asarray(np.where(known > 0, known * growth, known))


def asymptotic(
    norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike, *, df: ArrayLike | None = None
) -> np.ndarray:
    """Half width of the delta method with the sandwich variance.

    ::

        half width = z noise sqrt(V / n)

    where z is the 1 - delta/2 quantile of the standard normal distribution, or of Student's t with df degrees of
    freedom. With the Gauss-Newton matrix and no decay this is the interval of classical non-linear least squares.

    Validity: asymptotic in the number of rows. There is no finite-sample guarantee, except for a model that is linear
    in its parameters: there it is exact for the expected prediction (with df, if the noise was estimated without
    decay).

    Args:
        norm: The observed V; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        df: Residual degrees of freedom if the noise was estimated; None if it is known.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`, and for df that is not positive.

    Examples:
        >>> f"{asymptotic(2.0, 100, 0.1, 0.05):.4f} {asymptotic(2.0, 100, 0.1, 0.05, df=10):.4f}"
        '0.0277 0.0315'
    """
    rows = check_rows(norm, n, noise)
    return np.asarray(_upper_quantile(probability(delta) / 2, df) * rows.standard_error)


def _upper_quantile(tail: np.ndarray, df: ArrayLike | None) -> np.ndarray:
    """Return the 1 - tail quantile of the standard normal distribution, or of Student's t with df."""
    if df is None:
        return np.asarray(-ndtri(tail))
    return np.asarray(-stdtrit(positive("df", df, infinite=True), tail))


def observation(
    half_width: Callable[[float], ArrayLike],
    noise: ArrayLike,
    delta: float,
    *,
    split: float = 0.5,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width for a new noisy response: that of the mean at d1 plus a quantile of the new noise at d2.

    With ``d1 = split delta``, ``d2 = delta - d1`` and z the standard normal quantile (Student's t with df)::

        half width = half_width(d1) + noise z(1 - d2 / 2)

    Validity: that of the mean's bound, by a union bound, for Gaussian noise of the given size at the new point. It is
    conservative: `isoperimetric` bounds the sum of gap and noise together.

    Args:
        half_width: The mean's half width as a function of its probability of a miss.
        noise: Standard deviation of the noise at the new points; positive.
        delta: Probability of a miss, in (0, 1).
        split: Share of delta for the mean, in (0, 1); the rest is for the new noise.
        df: Degrees of freedom of ``noise`` if it was estimated; None if it is known.

    Returns:
        The half widths.

    Raises:
        InputError: For a noise that is not positive, or delta or split outside (0, 1).

    Examples:
        >>> f"{observation(lambda d: tight(2.0, 100, 0.1, d), noise=0.1, delta=0.05):.4f}"
        '0.2660'
    """
    sigma = positive("noise", noise)
    first, second = divide(delta, split)
    quantile = _upper_quantile(second / 2, df)
    return np.asarray(np.asarray(half_width(float(first)), dtype=float) + sigma * quantile)
