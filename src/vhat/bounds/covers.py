"""Bounds that hold simultaneously over a region of inputs, by a finite cover of the region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from vhat.bounds.formulas import FORMULAS, check_rows, level_of, nonnegative, positive, whole
from vhat.checks import check_choice
from vhat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["log_grid", "uniform", "uniform_box"]


def uniform(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    dimension: int,
    lipschitz: ArrayLike,
    eps: ArrayLike | None = None,
    bound: Literal["tight", "theorem", "sharp"] = "tight",
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width that holds simultaneously on the unit sphere of R^d, by a cover of (3 / eps)^d points.

    ::

        half width = bound at l = ln 2 + d ln(3 / eps) + ln(1 / delta),  plus lipschitz eps

    Validity: that of the bound, if ``norm``, v and c hold over the whole sphere and ``lipschitz`` bounds the gap's
    Lipschitz constant for every noise (see `lipschitz_gap`). A Lipschitz constant estimated from one fitted model is a
    heuristic.

    Args:
        norm: The largest E V over the sphere.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss anywhere on the sphere, in (0, 1).
        dimension: d, the dimension of the space around the sphere.
        lipschitz: Bound on the Lipschitz constant of x -> gap(x).
        eps: Radius of the cover, in (0, 1]; None takes ``noise / (n lipschitz)``, at most 1.
        bound: Which bound is used at the points of the cover.
        v: Square root of V's variance factor, the largest over the sphere.
        c: Scale of V's right tail, the largest over the sphere.
        df: Degrees of freedom of an estimated noise level, independent of the fit; None if the noise is known.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`, and for an eps outside (0, 1], a dimension below 1 or an unknown bound.

    Examples:
        >>> f"{uniform(2.0, 100, 0.1, 0.05, dimension=3, lipschitz=1.0):.4f}"
        '0.1063'
    """
    rows = check_rows(norm, n, noise, v, c)
    check_choice("bound", bound, tuple(FORMULAS))
    lip = nonnegative("lipschitz", lipschitz)
    d = whole("dimension", dimension)
    radius = rows.noise / np.maximum(rows.n * lip, rows.noise) if eps is None else positive("eps", eps)
    if np.any(radius > 1):
        raise InputError(f"eps={eps!r} is above 1; the cover of (3/eps)^d points needs a radius in (0, 1].")
    level = level_of(delta, df, d * np.log(3 / radius))
    return np.asarray(FORMULAS[bound](rows, level) + lip * radius)


def uniform_box(
    norm: ArrayLike,
    n: float,
    noise: ArrayLike,
    delta: ArrayLike,
    *,
    sides: ArrayLike,
    lipschitz: ArrayLike,
    eps: ArrayLike | None = None,
    bound: Literal["tight", "theorem", "sharp"] = "tight",
    v: ArrayLike = 0.0,
    c: ArrayLike = 0.0,
    df: ArrayLike | None = None,
) -> np.ndarray:
    """Half width that holds simultaneously on a box, by a grid of N points with one within eps of every point.

    ::

        half width = bound at l = ln 2 + ln N + ln(1 / delta),  plus lipschitz eps

    Validity: as for `uniform`.

    Args:
        norm: The largest E V over the box.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss anywhere in the box, in (0, 1).
        sides: Lengths of the sides of the box, (d,); not negative.
        lipschitz: Bound on the Lipschitz constant of x -> gap(x), in the Euclidean norm.
        eps: Distance to the nearest point of the grid; None takes ``noise / (n lipschitz)``, at most half the diagonal.
        bound: Which bound is used at the points of the grid.
        v: Square root of V's variance factor, the largest over the box.
        c: Scale of V's right tail, the largest over the box.
        df: Degrees of freedom of an estimated noise level, independent of the fit; None if the noise is known.

    Returns:
        The half widths.

    Raises:
        InputError: As in `uniform`, and for sides that are negative or not finite.

    Examples:
        >>> f"{uniform_box(2.0, 100, 0.1, 0.05, sides=[1.0, 2.0], lipschitz=1.0):.4f}"
        '0.0847'
    """
    rows = check_rows(norm, n, noise, v, c)
    check_choice("bound", bound, tuple(FORMULAS))
    lip = nonnegative("lipschitz", lipschitz)
    lengths = np.atleast_1d(nonnegative("sides", sides))
    if lengths.ndim != 1 or not np.isfinite(lengths).all():
        raise InputError(f"sides={sides!r} are not the finite lengths of a box, (d,).")
    half_diagonal = np.linalg.norm(lengths) / 2
    if eps is None:
        # One point in the middle covers the box: no radius above half the diagonal is needed.
        chosen = rows.noise / np.maximum(rows.n * lip, np.finfo(float).tiny)
        radius = np.minimum(chosen, max(half_diagonal, np.finfo(float).tiny))
    else:
        radius = positive("eps", eps)
    level = level_of(delta, df, log_grid(lengths, radius))
    return np.asarray(FORMULAS[bound](rows, level) + lip * radius)


def log_grid(sides: ArrayLike, eps: ArrayLike) -> np.ndarray:
    """Return the logarithm of the number of points of a grid that covers a box to within ``eps``.

    The corners of a cube of side s are ``s sqrt(d) / 2`` from its centre. Side j therefore takes
    ``ceil(side_j sqrt(d) / (2 eps))`` points, with d the number of sides that are not zero.

    Args:
        sides: Lengths of the sides, (d,).
        eps: Distance to the nearest point, any shape.
    """
    lengths = np.atleast_1d(np.asarray(sides, dtype=float))
    wide = lengths[lengths > 0]
    across = wide * np.sqrt(wide.size) / (2 * np.asarray(eps, dtype=float)[..., None])
    # Rounding must not add a point if the quotient is a whole number.
    counts = np.maximum(1.0, np.ceil(across * (1 - 1e-12)))
    return np.asarray(np.sum(np.log(counts), axis=-1))
