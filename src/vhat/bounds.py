"""Half widths from a weighted norm: pure formulas on plain arrays.

Throughout, ``V`` is the weighted norm (``norm``), ``l = ln(2 / delta)``, and ``(v, c)`` is the sub-gamma pair
of V in V's own units: ``ln E exp(a (V - E V)) <= a^2 v^2 / (2 (1 - c a))`` for ``0 < a < 1/c``. The bounds
are statements about ``E V``. Whoever puts the observed V in its place has a heuristic, not a theorem: for a
prediction that is the square of one Gaussian, ``tight`` at delta = 0.05 with V plugged in and no tail misses
14% of the time.

"Proved" below always means: for Gaussian noise and one minimum, followed continuously as the noise varies.
Bias is in none of these half widths but that of `ridge`.

Everything broadcasts over ``norm``, ``noise``, ``delta``, ``v`` and ``c`` and returns a NumPy array, of no
dimension when every argument is a number. NaN in ``norm``, ``v`` or ``c`` stays NaN. The derivations are in
``docs/bounds.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from vhat.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

__all__ = [
    "Damping",
    "asymptotic",
    "chebyshev",
    "empirical",
    "fisher_damping",
    "lipschitz_gap",
    "lipschitz_network",
    "observation",
    "ridge",
    "sharp",
    "theorem",
    "tight",
    "uniform",
]


def tight(
    norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike, *, v: ArrayLike = 0.0, c: ArrayLike = 0.0
) -> np.ndarray:
    """Half width that the gap exceeds with probability at most delta, by the log-Sobolev inequality.

    With ``Q = V + v sqrt(2 l) + c l`` and its shares ``(A, B, K) = (V, v sqrt(2 l), c l) / Q``::

        half width = noise sqrt(2 l Q / n) (1 + G(A, B, K)) / 2,        0 <= G <= 1,    G(1, 0, 0) = 1,

    G being an elementary integral. For v = c = 0 this is ``noise sqrt(2 l V / n)``; in general it lies
    between one half and the whole of ``noise sqrt(2 l Q / n)``.

    Standing: proved when ``norm`` is E V and (v, c) bounds V's right tail. With the observed V in place of E
    V it is a heuristic; so is v = c = 0 for a model that is not linear in its parameters.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor, in units of V.
        c: Scale of V's right tail, in units of V.

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
    return _tight(_door(norm, n, noise, v, c), _level(delta))


def theorem(
    norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike, *, v: ArrayLike = 0.0, c: ArrayLike = 0.0
) -> np.ndarray:
    """Half width as published by Kuzborskij and Abbasi-Yadkori, offered for reproduction.

    ::

        half width = noise sqrt((pi^2 / 2) l V / n) + noise^2 (sqrt(2 l) v + (2/3) l c) / n

    Standing: proved for v = c = 0, where `tight` is pi/2 times narrower. For v, c > 0 it is unproved, and
    false as a general statement: the proof evaluates the sub-gamma bound of V at s where ``s^2 pi^2 / 8``
    stands, so that the first term has the unit of y and the second that of y squared, and the lemma that ends
    it should have ``2 (1 + u)`` for ``2 (1 + u/3)``. V in place of E V is a heuristic.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor (the paper's study takes 1).
        c: Scale of V's right tail (the paper's study takes 1).

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`.

    Examples:
        >>> f"{theorem(2.0, 100, 0.1, 0.05):.4f}"
        '0.0603'
    """
    return _theorem(_door(norm, n, noise, v, c), _level(delta))


def sharp(
    norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike, *, v: ArrayLike = 0.0, c: ArrayLike = 0.0
) -> np.ndarray:
    """Half width of the published lemma before its square root is split, never wider than `theorem`.

    ::

        half width = sqrt(noise^2 (pi^2 / 2) l V / n + 2 l noise^4 v^2 / n^2 + l^2 noise^4 c^2 / (9 n^2))
                     + l noise^2 c / (3 n)

    Standing: proved for v = c = 0, where it equals `theorem`; unproved for v, c > 0, because it is the very
    step of the published proof that evaluates V's sub-gamma bound at the wrong argument and adds y to y
    squared. V in place of E V is a heuristic.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor.
        c: Scale of V's right tail.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`.

    Examples:
        >>> bool(sharp(2.0, 100, 0.1, 0.05, v=1, c=1) < theorem(2.0, 100, 0.1, 0.05, v=1, c=1))
        True
    """
    return _sharp(_door(norm, n, noise, v, c), _level(delta))


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
) -> np.ndarray:
    """Half width from the observed V, paying for its left tail with a part of delta.

    With ``d1 = split delta`` and ``d2 = delta - d1``, the bound is taken at d1 with E V replaced by::

        V + v sqrt(2 t) + c t,        t = ln(1 / d2)

    Standing: with ``bound="tight"`` proved, if (v, c) is known before the data are seen and bounds both tails
    of V (a pair that is itself a multiple of the observed V is a heuristic again). The published empirical
    bound is unproved for v, c > 0: it rests on `theorem`, and it spends delta twice. ``bound="theorem"`` and
    ``"sharp"`` inherit the first of these defects.

    Args:
        norm: The observed V; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        v: Square root of V's variance factor, for both tails.
        c: Scale of V's tails.
        bound: Which bound on the gap is used.
        split: The share of delta that the bound gets, in (0, 1); V's left tail gets the rest.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`, and for an unknown bound or a split outside (0, 1).

    Examples:
        >>> empirical([1.0, 2.0], 100, 0.1, 0.05, v=0.2, c=0.1).round(4)
        array([0.0453, 0.0542])
    """
    rows = _door(norm, n, noise, v, c)
    _choice("bound", bound, (*_FORMULAS, "chebyshev"))
    first, second = _divide(delta, split)
    t = -np.log(second)
    above = np.asarray(rows.V + rows.v * np.sqrt(2 * t) + rows.c * t)
    if bound == "chebyshev":
        return chebyshev(above, n, noise, first)
    return _FORMULAS[bound](rows._replace(V=above), _level(first))


def chebyshev(norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike) -> np.ndarray:
    """Half width by the Gaussian Poincare inequality and Chebyshev's.

    ::

        half width = noise sqrt(V / (delta n))

    Standing: proved for E V without any assumption on V's tail. V in place of E V is a heuristic.

    Args:
        norm: E V, or V as its plug-in; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`.

    Examples:
        >>> f"{chebyshev(2.0, 100, 0.1, 0.05):.4f}"
        '0.0632'
    """
    rows = _door(norm, n, noise)
    return np.asarray(rows.standard_error / np.sqrt(_probability(delta)))


def asymptotic(
    norm: ArrayLike, n: float, noise: ArrayLike, delta: ArrayLike, *, df: ArrayLike | None = None
) -> np.ndarray:
    """Half width of the delta method with the sandwich variance.

    ::

        half width = z noise sqrt(V / n)

    where z is the 1 - delta/2 quantile of the standard normal law, or of Student's t with df degrees of
    freedom. With the Gauss-Newton matrix and no decay this is the interval of classical non-linear least
    squares.

    Standing: right in the limit of many rows; no finite-sample guarantee unless the model is linear in its
    parameters, where it is exact for the expected prediction (with df, when the noise was estimated without
    decay).

    Args:
        norm: The observed V; not negative.
        n: Number of training rows.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        df: Residual degrees of freedom when the noise was estimated; None when it is known.

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`, and for df that is not positive.

    Examples:
        >>> f"{asymptotic(2.0, 100, 0.1, 0.05):.4f} {asymptotic(2.0, 100, 0.1, 0.05, df=10):.4f}"
        '0.0277 0.0315'
    """
    rows, tail = _door(norm, n, noise), _probability(delta) / 2
    quantile = -ndtri(tail) if df is None else -stdtrit(_positive("df", df, infinite=True), tail)
    return np.asarray(quantile * rows.standard_error)


def ridge(
    x: ArrayLike, X: ArrayLike, lam: float, noise: float, delta: float, *, theta_star: ArrayLike | None = None
) -> np.ndarray:
    """Half width around a ridge regression's prediction, bias included.

    With ``S = X'X / n + lam I``::

        half width = lam |x' S^-1 theta*| + noise sqrt((pi^2 / 2) l / n) sqrt(x' S^-1 x)

    Standing: proved; V does not depend on the noise here, so v = c = 0, and ``x' S^-1 x`` is at least ``V =
    x' S^-1 (X'X / n) S^-1 x``. `tight` at that V is narrower and proved too. The bias needs the true
    parameters: with an estimate for theta_star the bias term is a heuristic, and without one the interval is
    about the expected prediction only.

    Args:
        x: Test inputs, (d,) or (points, d).
        X: Training inputs, (n, d).
        lam: Decay in ``1/(2n) |X theta - y|^2 + lam/2 |theta|^2``; not negative.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        theta_star: The true parameters, (d,), or None to leave the bias out.

    Returns:
        The half widths, one a test input.

    Raises:
        InputError: For shapes that do not fit, values that are not finite, or a singular S.

    Examples:
        >>> X = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
        >>> ridge([[1.0, 1.0], [1.0, -1.0]], X, 0.01, 0.1, 0.05, theta_star=[1.0, 2.0]).round(4)
        array([0.3763, 0.6237])
    """
    points, rows = np.asarray(x, dtype=float), np.asarray(X, dtype=float)
    _nonnegative("lam", lam)
    if rows.ndim != 2 or points.ndim not in (1, 2) or points.shape[-1] != rows.shape[1]:
        raise InputError(f"x has shape {points.shape} and X {rows.shape}; give (d,) or (points, d), and (n, d).")
    if not (np.isfinite(points).all() and np.isfinite(rows).all() and np.isfinite(lam)):
        raise InputError("x, X or lam has NaN or infinite values. Remove or repair them.")
    n, d = rows.shape
    try:
        factor = np.linalg.cholesky(rows.T @ rows / n + lam * np.eye(d))
    except np.linalg.LinAlgError:
        raise InputError(f"X'X/n + lam I is singular with lam={lam!r}. Give a positive lam, or more rows.") from None
    white = np.linalg.solve(factor, np.atleast_2d(points).T)
    half = _theorem(_door(np.sum(white**2, axis=0), n, noise), _level(delta))
    if theta_star is not None:
        truth = np.asarray(theta_star, dtype=float)
        if truth.shape != (d,):
            raise InputError(f"theta_star has shape {truth.shape}; X has {d} columns, so give ({d},).")
        half = half + lam * np.abs(np.linalg.solve(factor, truth) @ white)
    return np.asarray(half.reshape(points.shape[:-1]))


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
) -> np.ndarray:
    """Half width that holds at once on the whole unit sphere of R^d, by a cover of (3 / eps)^d points.

    ::

        half width = bound at l = ln 2 + d ln(3 / eps) + ln(1 / delta),  plus lipschitz eps

    Standing: that of the bound, if ``norm``, v and c hold over the whole sphere and ``lipschitz`` bounds the
    gap's Lipschitz constant for every noise (see `lipschitz_gap`); a constant read off one fitted model is a
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

    Returns:
        The half widths.

    Raises:
        InputError: As in `tight`, and for an eps outside (0, 1], a dimension below 1 or an unknown bound.

    Examples:
        >>> f"{uniform(2.0, 100, 0.1, 0.05, dimension=3, lipschitz=1.0):.4f}"
        '0.1063'
    """
    rows = _door(norm, n, noise, v, c)
    _choice("bound", bound, tuple(_FORMULAS))
    lip = _nonnegative("lipschitz", lipschitz)
    d = _whole("dimension", dimension)
    radius = rows.noise / np.maximum(rows.n * lip, rows.noise) if eps is None else _positive("eps", eps)
    if np.any(radius > 1):
        raise InputError(f"eps={eps!r} is above 1; the cover of (3/eps)^d points needs a radius in (0, 1].")
    level = _level(delta) + d * np.log(3 / radius)
    return np.asarray(_FORMULAS[bound](rows, level) + lip * radius)


def observation(
    half_width: Callable[[float], ArrayLike], noise: ArrayLike, delta: float, *, split: float = 0.5
) -> np.ndarray:
    """Half width for a new noisy response: the mean's half width at d1 plus the new noise's quantile at d2.

    With ``d1 = split delta``, ``d2 = delta - d1`` and z the standard normal quantile::

        half width = half_width(d1) + noise z(1 - d2 / 2)

    Standing: that of the mean's bound (union bound), for Gaussian noise of the given size at the new point.

    Args:
        half_width: The mean's half width as a function of its probability of a miss.
        noise: Standard deviation of the noise at the new points; positive.
        delta: Probability of a miss, in (0, 1).
        split: The share of delta that the mean gets, in (0, 1); the new noise gets the rest.

    Returns:
        The half widths.

    Raises:
        InputError: For a noise that is not positive, or delta or split outside (0, 1).

    Examples:
        >>> f"{observation(lambda d: tight(2.0, 100, 0.1, d), noise=0.1, delta=0.05):.4f}"
        '0.2660'
    """
    sigma = _positive("noise", noise)
    first, second = _divide(delta, split)
    return np.asarray(np.asarray(half_width(float(first)), dtype=float) - sigma * ndtri(second / 2))


def lipschitz_network(objective: ArrayLike, lam: ArrayLike, layers: int) -> np.ndarray:
    """Bound on a network's Lipschitz constant in its input, from the value of its penalised objective.

    ::

        Lip f <= (2 L_lam / (lam K))^(K/2)

    because ``|theta|^2 <= 2 L_lam / lam`` and the product of K operator norms is at most its AM-GM mean. (The
    paper leaves out the 2, and its inequality then fails for a chain of equal weights that fits exactly.)

    Standing: proved for K dense layers with activations of slope at most 1: ReLU and tanh, but not GELU
    (1.13) or SiLU (1.10).

    Args:
        objective: ``L_lam = 1/(2n) sum (f - y)^2 + lam/2 |theta|^2`` at the parameters; not negative.
        lam: Decay; positive.
        layers: K, the number of weight matrices.

    Returns:
        The bounds.

    Raises:
        InputError: For a negative objective, a lam that is not positive or fewer than one layer.

    Examples:
        >>> f"{lipschitz_network(0.02, 1e-3, 2):.1f}"
        '20.0'
    """
    K = _whole("layers", layers)
    value, decay = _nonnegative("objective", objective), _positive("lam", lam)
    with np.errstate(over="ignore"):
        return np.asarray((2 * value / (decay * K)) ** (K / 2))


def lipschitz_gap(objective_bound: ArrayLike, lam: ArrayLike, layers: int) -> np.ndarray:
    """Bound on the Lipschitz constant of the gap ``f(x; theta_hat) - E f(x; theta_hat)`` of a network.

    ::

        Lip gap <= 2 (2 C / (lam K))^(K/2)

    Standing: proved if ``L_lam(theta_hat) <= C`` for all noise. Gaussian responses are unbounded, so that the
    objective alone gives no such C; one that holds with high probability bounds only one half of this sum,
    that of the fitted model; the other half is an expectation.

    Args:
        objective_bound: C, the bound on the penalised objective at the minimum; not negative.
        lam: Decay; positive.
        layers: K, the number of weight matrices.

    Returns:
        The bounds.

    Raises:
        InputError: As in `lipschitz_network`.

    Examples:
        >>> f"{lipschitz_gap(0.02, 1e-3, 2):.1f}"
        '40.0'
    """
    return np.asarray(2 * lipschitz_network(objective_bound, lam, layers))


@dataclass(frozen=True)
class Damping:
    """The damping of the Fisher comparison, with its two parts.

    Attributes:
        value: ``alpha + |min(0, smallest eigenvalue of R)|``.
        alpha: The deterministic part.
        scale: ``b = 2 noise C / sqrt(n)``, the size of R's fluctuation.
    """

    value: float
    alpha: float
    scale: float


def fisher_damping(noise: float, curvature_bound: float, n: float, p: int, smallest_eigenvalue: float) -> Damping:
    """Damping at which the expected sandwich matrix is compared with the inverse Fisher information.

    With ``b = 2 noise C / sqrt(n)`` and R the residual part of the Hessian::

        alpha = b sqrt(max(1, ln(n sqrt(2 p) / b))),        value = alpha + |min(0, lambda_min(R))|

    and then ``E M(theta*) <= I(theta*)^-1 + I / n``. What alpha has to satisfy for that is
    ``alpha >= b sqrt(ln(n sqrt(2 p) / alpha))``; this one does, because it is at least b. The published
    alpha does not.

    Standing: proved at the true parameters, for |hess f(x_i)| <= C in operator norm. A damping other than the
    decay of the training moves the interval off the minimum that was found.

    Args:
        noise: Standard deviation of the noise; positive.
        curvature_bound: C, not negative.
        n: Number of training rows.
        p: Number of parameters.
        smallest_eigenvalue: The smallest eigenvalue of R.

    Returns:
        The damping and its parts.

    Raises:
        InputError: For arguments out of range.

    Examples:
        >>> damping = fisher_damping(0.1, 1.0, 100, 50, smallest_eigenvalue=-0.3)
        >>> f"{damping.value:.4f} = {damping.alpha:.4f} + 0.3"
        '0.3658 = 0.0658 + 0.3'
    """
    rows, sigma = float(_positive("n", n)), float(_positive("noise", noise))
    b = 2 * sigma * float(_nonnegative("curvature_bound", curvature_bound)) / np.sqrt(rows)
    if not np.isfinite(smallest_eigenvalue):
        raise InputError(f"smallest_eigenvalue={smallest_eigenvalue!r} is not a finite number.")
    count = rows * np.sqrt(2 * _whole("p", p))
    alpha = b * np.sqrt(max(1.0, np.log(count) - np.log(b))) if b > 0 else 0.0
    return Damping(value=float(alpha + max(0.0, -smallest_eigenvalue)), alpha=float(alpha), scale=float(b))


class _Rows(NamedTuple):
    """What every bound takes, checked."""

    V: np.ndarray
    n: float
    noise: np.ndarray
    v: np.ndarray
    c: np.ndarray

    @property
    def standard_error(self) -> np.ndarray:
        return np.asarray(self.noise * np.sqrt(self.V / self.n))


def _tight(rows: _Rows, level: np.ndarray) -> np.ndarray:
    """`tight` at l = level; the equation s^2 rho(s) = l has the root s^2 = 2 l n / (noise^2 Q)."""
    V, n, noise, v, c = rows
    Q = V + v * np.sqrt(2 * level) + c * level
    usable = (Q > 0) & np.isfinite(Q)
    whole = np.where(usable, Q, 1.0)
    A = np.where(usable, V / whole, 1.0)
    B = np.where(usable, v * np.sqrt(2 * level) / whole, 0.0)
    K = np.where(usable, c * level / whole, 0.0)
    return np.asarray(noise * np.sqrt(2 * level / n) * np.sqrt(Q) * (1 + _herbst(A, B, K)) / 2)


def _theorem(rows: _Rows, level: np.ndarray) -> np.ndarray:
    """`theorem` at l = level."""
    tail = rows.noise**2 * (np.sqrt(2 * level) * rows.v + (2 / 3) * level * rows.c) / rows.n
    return np.asarray(np.pi * np.sqrt(level / 2) * rows.standard_error + tail)


def _sharp(rows: _Rows, level: np.ndarray) -> np.ndarray:
    """`sharp` at l = level."""
    unit = rows.noise**2 / rows.n
    scale = unit * level * rows.c / 3
    root = np.hypot(np.pi * np.sqrt(level / 2) * rows.standard_error, unit * np.sqrt(2 * level) * rows.v)
    return np.asarray(np.hypot(root, scale) + scale)


_FORMULAS = {"tight": _tight, "theorem": _theorem, "sharp": _sharp}

_NODES, _WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(20))
_NODES = _NODES + 0.5

_SMALL_SHARE = 0.25
"""Below this share of the scale term the closed form cancels and 20 Gauss nodes are exact to rounding."""


def _herbst(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """G(A, B, K) = (integral of rho over [0, s]) / (s rho(s)) for shares that add to one."""
    A, B, K = np.broadcast_arrays(A, B, K)
    small = K <= _SMALL_SHARE
    result = np.empty(K.shape)
    result[small] = _herbst_quadrature(A[small], B[small], K[small])
    result[~small] = _herbst_closed(A[~small], B[~small], K[~small])
    return result


def _herbst_quadrature(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """G for a small share K: positive rational integrands with poles at least 2 away from [0, 1]."""
    root = np.sqrt(K)
    linear = np.where(K > 0, np.arctanh(root) / np.where(K > 0, root, 1.0), 1.0)
    A, B, K, x = A[..., None], B[..., None], K[..., None], _NODES
    start, end = 2 * np.sqrt(A), 2 * A + B
    P = start + (end - start) * x
    tau = x * (P + start) / (start + end)
    mixed = (B * x / (1 - K * x**2)) ** 2 + B / (start + end) * (P / (1 - K * tau)) ** 2
    return np.asarray(A[..., 0] * linear + 0.5 * mixed @ _WEIGHTS)


def _herbst_closed(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """G in closed form; 1 - K is taken as A + B so that nothing is lost as K comes near 1."""
    root = np.sqrt(K)
    E = np.maximum(A + B, np.finfo(float).tiny)
    linear = (np.log1p(root) - 0.5 * np.log(E)) / root
    start, end = 2 * np.sqrt(A), 2 * A + B
    below = np.maximum(start + B / root, np.finfo(float).tiny)
    logs = 2 * np.log(np.maximum(end + B / root, np.finfo(float).tiny) / below) - np.log(E)
    square = B**2 * (1 / E - linear) / (2 * K)
    mixed = (B * (end / E - start) - (B**2 - 4 * A * K) / (2 * root) * logs) / (2 * K)
    return np.asarray(A * linear + 0.5 * (square + mixed))


def _door(norm: ArrayLike, n: float, noise: ArrayLike, v: ArrayLike = 0.0, c: ArrayLike = 0.0) -> _Rows:
    """Check what every bound takes, once."""
    return _Rows(
        V=_nonnegative("norm", norm),
        n=float(_positive("n", n)),
        noise=_positive("noise", noise),
        v=_nonnegative("v", v),
        c=_nonnegative("c", c),
    )


def _nonnegative(name: str, value: ArrayLike) -> np.ndarray:
    """As float64; NaN is let through, to come out as NaN."""
    array = np.asarray(value, dtype=float)
    if np.any(array < 0):
        raise InputError(f"{name} must not be negative; found {float(np.nanmin(array))!r}.")
    return array


def _positive(name: str, value: ArrayLike, *, infinite: bool = False) -> np.ndarray:
    array = np.asarray(value, dtype=float)
    if not np.all(array > 0) or not (infinite or np.all(np.isfinite(array))):
        bad = array[~(array > 0) | ~np.isfinite(array)]
        raise InputError(f"{name} must be positive and finite; found {float(bad.flat[0])!r}.")
    return array


def _probability(delta: ArrayLike, name: str = "delta") -> np.ndarray:
    array = np.asarray(delta, dtype=float)
    if not np.all((array > 0) & (array < 1)):
        raise InputError(f"{name}={delta!r} is not between 0 and 1. delta is the probability of a miss, such as 0.05.")
    return array


def _level(delta: ArrayLike) -> np.ndarray:
    """Return l = ln(2 / delta), also where 2 / delta would overflow."""
    return np.asarray(np.log(2) - np.log(_probability(delta)))


def _divide(delta: ArrayLike, split: float) -> tuple[np.ndarray, np.ndarray]:
    """The two parts of delta."""
    whole, share = _probability(delta), _probability(split, "split")
    return np.asarray(share * whole), np.asarray((1 - share) * whole)


def _whole(name: str, value: int) -> int:
    if not value >= 1 or value != int(value):
        raise InputError(f"{name}={value!r} is not a whole number of at least 1.")
    return int(value)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value!r} is not known. Use one of {', '.join(map(repr, choices))}.")
