"""The formulas of the bounds on checked arguments, and the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vhat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "FORMULAS",
    "Rows",
    "check_rows",
    "divide",
    "level_of",
    "nonnegative",
    "positive",
    "probability",
    "sharp_at",
    "theorem_at",
    "tight_at",
    "whole",
]


class Rows(NamedTuple):
    """The checked arguments that all bounds have.

    Attributes:
        V: The weighted norm.
        n: Number of training rows.
        noise: Standard deviation of the noise.
        v: Square root of V's variance factor.
        c: Scale of V's right tail.
    """

    V: np.ndarray
    n: float
    noise: np.ndarray
    v: np.ndarray
    c: np.ndarray

    @property
    def standard_error(self) -> np.ndarray:
        """``noise sqrt(V / n)``."""
        return np.asarray(self.noise * np.sqrt(self.V / self.n))


def tight_at(rows: Rows, level: np.ndarray) -> np.ndarray:
    """Return `tight` at l = level; the equation s^2 rho(s) = l has the root s^2 = 2 l n / (noise^2 Q)."""
    V, n, noise, v, c = rows
    Q = V + v * np.sqrt(2 * level) + c * level
    # Q = 0 has a half width of zero and an infinite or missing Q gives itself, whatever the shares.
    usable = (Q > 0) & np.isfinite(Q)
    divisor = np.where(usable, Q, 1.0)
    A = np.where(usable, V / divisor, 1.0)
    B = np.where(usable, v * np.sqrt(2 * level) / divisor, 0.0)
    K = np.where(usable, c * level / divisor, 0.0)
    return np.asarray(noise * np.sqrt(2 * level / n) * np.sqrt(Q) * (1 + _herbst(A, B, K)) / 2)


def theorem_at(rows: Rows, level: np.ndarray) -> np.ndarray:
    """Return `theorem` at l = level."""
    tail = rows.noise**2 * (np.sqrt(2 * level) * rows.v + (2 / 3) * level * rows.c) / rows.n
    return np.asarray(np.pi * np.sqrt(level / 2) * rows.standard_error + tail)


def sharp_at(rows: Rows, level: np.ndarray) -> np.ndarray:
    """Return `sharp` at l = level."""
    unit = rows.noise**2 / rows.n
    scale = unit * level * rows.c / 3
    root = np.hypot(np.pi * np.sqrt(level / 2) * rows.standard_error, unit * np.sqrt(2 * level) * rows.v)
    return np.asarray(np.hypot(root, scale) + scale)


FORMULAS = {"tight": tight_at, "theorem": theorem_at, "sharp": sharp_at}
"""The bounds on the gap, as functions of checked rows and of ``l = ln(2 / delta)``."""

_NODES, _WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(20))
_NODES = _NODES + 0.5
"""Nodes of Gauss-Legendre quadrature on [0, 1]."""

_SMALL_SHARE = 0.25
"""Share K up to which quadrature is used: there the closed form suffers from cancellation, and 20 nodes are exact to
rounding."""


def _herbst(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Return G(A, B, K) = (integral of rho over [0, s]) / (s rho(s)) for shares that add to one."""
    A, B, K = np.broadcast_arrays(A, B, K)
    small = K <= _SMALL_SHARE
    result = np.empty(K.shape)
    result[small] = _herbst_quadrature(A[small], B[small], K[small])
    result[~small] = _herbst_closed(A[~small], B[~small], K[~small])
    return result


def _herbst_quadrature(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Return G for a small share K: positive rational integrands with poles at least 2 away from [0, 1]."""
    root = np.sqrt(K)
    linear = np.where(K > 0, np.arctanh(root) / np.where(K > 0, root, 1.0), 1.0)
    A = A[..., None]
    B = B[..., None]
    K = K[..., None]
    x = _NODES
    start = 2 * np.sqrt(A)
    end = 2 * A + B
    P = start + (end - start) * x
    tau = x * (P + start) / (start + end)
    mixed = (B * x / (1 - K * x**2)) ** 2 + B / (start + end) * (P / (1 - K * tau)) ** 2
    return np.asarray(A[..., 0] * linear + 0.5 * mixed @ _WEIGHTS)


def _herbst_closed(A: np.ndarray, B: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Return G in closed form; 1 - K is computed as A + B, which has no cancellation for K near 1."""
    root = np.sqrt(K)
    E = np.maximum(A + B, np.finfo(float).tiny)
    linear = (np.log1p(root) - 0.5 * np.log(E)) / root
    start = 2 * np.sqrt(A)
    end = 2 * A + B
    below = np.maximum(start + B / root, np.finfo(float).tiny)
    logs = 2 * np.log(np.maximum(end + B / root, np.finfo(float).tiny) / below) - np.log(E)
    square = B**2 * (1 / E - linear) / (2 * K)
    mixed = (B * (end / E - start) - (B**2 - 4 * A * K) / (2 * root) * logs) / (2 * K)
    return np.asarray(A * linear + 0.5 * (square + mixed))


def check_rows(norm: ArrayLike, n: float, noise: ArrayLike, v: ArrayLike = 0.0, c: ArrayLike = 0.0) -> Rows:
    """Return the arguments that all bounds have, checked."""
    return Rows(
        V=nonnegative("norm", norm),
        n=float(positive("n", n)),
        noise=positive("noise", noise),
        v=nonnegative("v", v),
        c=nonnegative("c", c),
    )


def nonnegative(name: str, value: ArrayLike) -> np.ndarray:
    """Return an array of float64; refuse negative values. NaN is accepted, and gives NaN."""
    array = np.asarray(value, dtype=float)
    if np.any(array < 0):
        raise InputError(f"{name} must not be negative; found {float(np.nanmin(array))!r}.")
    return array


def positive(name: str, value: ArrayLike, *, infinite: bool = False) -> np.ndarray:
    """Return an array of float64; refuse values that are not positive and, unless ``infinite``, finite."""
    array = np.asarray(value, dtype=float)
    if not np.all(array > 0) or not (infinite or np.all(np.isfinite(array))):
        bad = array[~(array > 0) | ~np.isfinite(array)]
        raise InputError(f"{name} must be positive and finite; found {float(bad.flat[0])!r}.")
    return array


def probability(delta: ArrayLike, name: str = "delta") -> np.ndarray:
    """Return an array of float64; refuse values that are not strictly between 0 and 1."""
    array = np.asarray(delta, dtype=float)
    if not np.all((array > 0) & (array < 1)):
        raise InputError(f"{name}={delta!r} is not between 0 and 1. delta is the probability of a miss, such as 0.05.")
    return array


def level_of(delta: ArrayLike, df: ArrayLike | None = None, log_events: ArrayLike = 0.0) -> np.ndarray:
    """Return l = ln(2 / delta), also if 2 / delta overflows; for an estimated noise level, a larger l.

    Consider a bound with the probability of a miss ``2 exp(-l)``, and an estimated noise level s that is independent of
    the prediction, with ``df s^2 / sigma^2`` chi-square with df degrees of freedom. The probability of a miss is then
    ``2 E exp(-l s^2 / sigma^2) = 2 (1 + 2 l / df)^(-df/2)``. It equals delta for
    ``l = (df / 2) ((2 / delta)^(2 / df) - 1)``.

    Args:
        delta: Probability of a miss, in (0, 1).
        df: Degrees of freedom of an estimated noise level; None if it is known.
        log_events: Logarithm of the number of events that share delta equally (union bound).
    """
    known = np.log(2) - np.log(probability(delta)) + np.asarray(log_events)
    if df is None:
        return np.asarray(known)
    half = positive("df", df, infinite=True) / 2
    with np.errstate(over="ignore", invalid="ignore"):
        estimated = half * np.expm1(known / half)
    return np.asarray(np.where(np.isinf(half), known, estimated))


def divide(delta: ArrayLike, split: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the two parts ``split delta`` and ``(1 - split) delta``."""
    total = probability(delta)
    share = probability(split, "split")
    return np.asarray(share * total), np.asarray((1 - share) * total)


def whole(name: str, value: int) -> int:
    """Return an int; refuse values that are not positive whole numbers."""
    if not value >= 1 or value != int(value):
        raise InputError(f"{name}={value!r} is not a whole number of at least 1.")
    return int(value)
