"""Tables for the isoperimetric bound: for one delta, integrals for each split of delta between the two sides.

``F`` is the prediction as a function of standard normal noise, ``W = |grad F|^2``, and ``U`` the normal score of F. If
F leaves ``E F + r`` upwards with probability ``delta1 = P(U > z1)`` and ``E F - r`` downwards with probability
``delta2 = P(U > z2)``, then for every ``lam`` in [1/2, 1] (1 alone where z2 is infinite)

    r <= integral of k(u) E[sqrt(W) | U = u] du,

    k = lam Phi + (1 - lam) (1 - Phi)   on (-z2, z1),        k = (2 lam - 1) Phi   below -z2,        k = 0   above z1.

The Cauchy-Schwarz inequality with a density rho gives ``r^2 <= (integral of k^2 / rho) E_rho[W]``. An assumption on W
bounds its mean under rho by its mean under the normal density phi:

    sub-gamma (v, c):       E_rho[W] <= E W + v sqrt(2 K) + c K,      K = KL(rho || phi)
    standard deviation s:   E_rho[W] <= E W + s sqrt(X),              X = (integral of rho^2 / phi) - 1

Here ``rho`` is proportional to ``k^t phi^(1-t)``: t = 0 uses only the mean of W, and t = 1 is Jensen's inequality. The
radius is the largest over the splits of the smallest over lam and t. The splits are divided into cells. Because k
increases with z1 and with z2, each cell is represented by its largest z1 and z2, and the result is never too small.
The proof is in ``docs/bounds.md``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

__all__ = ["COARSE", "FINE", "LEFT_END", "Resolution", "Table", "make_table", "quadrature"]

_SMALLEST = 1e-5
"""Smallest ``2 delta2 / delta`` at which a cell ends; the first cell is from there to 0."""
_GEOMETRIC_END = 0.05
"""``2 delta2 / delta`` from which on the cells have equal width."""


class Resolution(NamedTuple):
    """Resolution of the splits, the choices and the integrals of a table.

    Attributes:
        near_zero: Cells in geometric progression towards ``delta2 = 0``, where z2 grows without bound.
        even: Cells of equal width.
        factors: Values of ``1 - lam`` to try, as multiples of the best one for t = 0. The largest possible value, 1/2,
            is tried too.
        powers: Number of values of t.
        pieces: Pieces of each interval of integration, with sixteen Gauss-Legendre nodes each.
    """

    near_zero: int
    even: int
    factors: tuple[float, ...]
    powers: int
    pieces: int


FINE = Resolution(24, 136, (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0), 11, 10)
"""For the level of an interval: 0.1% above the exact value at delta = 0.05, in about 0.4 CPU seconds."""
COARSE = Resolution(10, 22, (0.0, 1 / 4, 1.0, 4.0, 16.0), 6, 5)
"""For the many levels of the average over estimated noise: 0.5% above the exact value, in about 0.02 CPU seconds."""

LEFT_END = -9.0
"""Lower end of integrals over the left tail, unless a finite -z2 is below it: ``Phi(-9)^2 / phi(-9) < 1e-19``."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_LOG_ROOT_2PI = 0.5 * np.log(2 * np.pi)


class Table(NamedTuple):
    """Integrals of one delta, (cells, choices of lam and t).

    Attributes:
        square: ``integral of k^2 / rho``.
        divergence: K, the Kullback-Leibler divergence of rho from the normal density.
        spread: X, the chi-square divergence of rho from the normal density.
    """

    square: np.ndarray
    divergence: np.ndarray
    spread: np.ndarray


@lru_cache(maxsize=256)
def make_table(delta: float, resolution: Resolution = FINE) -> Table:
    """Return the integrals for one delta, cached.

    Args:
        delta: Probability of a miss, in (0, 1).
        resolution: Resolution of the table; a coarser one gives a larger radius.
    """
    z1, z2 = _corners(delta, resolution)
    left_end = min(LEFT_END, -float(np.max(z2[np.isfinite(z2)])))
    start = np.maximum(-z2, left_end)
    outer, outer_weights = quadrature(np.full_like(start, left_end), start, resolution.pieces)
    inner, inner_weights = quadrature(start, z1, resolution.pieces)
    u = np.concatenate([outer, inner], axis=1)
    weights = np.concatenate([outer_weights, inner_weights], axis=1)
    inside = np.arange(u.shape[1]) >= outer.shape[1]
    log_phi = -0.5 * u**2 - _LOG_ROOT_2PI
    below = ndtr(u)
    above = ndtr(-u)

    gaps = _gaps(below, above, weights * np.exp(-log_phi), inside, np.array(resolution.factors))
    gaps[np.isinf(z2)] = 0.0  # only lam = 1 is allowed for infinite z2
    lam = 1 - gaps[:, :, None]
    k = np.where(inside, lam * below[:, None] + (1 - lam) * above[:, None], (2 * lam - 1) * below[:, None])
    return _prune(_integrals(k, log_phi[:, None], weights[:, None], np.linspace(0.0, 1.0, resolution.powers)))


def _corners(delta: float, resolution: Resolution) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest z1 and z2 of each cell of splits ``delta1 + delta2 = delta``, ``delta2 <= delta1``."""
    geometric = np.geomspace(_SMALLEST, _GEOMETRIC_END, resolution.near_zero)
    even = np.linspace(_GEOMETRIC_END, 1.0, resolution.even + 1)
    edges = 0.5 * delta * np.concatenate([[0.0], geometric[:-1], even])
    lower = edges[:-1]
    upper = edges[1:]
    with np.errstate(divide="ignore"):
        return -ndtri(delta - upper), -ndtri(lower)


def quadrature(left: np.ndarray, right: np.ndarray, pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on intervals, each divided into equal pieces: (intervals, nodes)."""
    edges = left[:, None] + (right - left)[:, None] * np.linspace(0.0, 1.0, pieces + 1)
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    half = (edges[:, 1:] - edges[:, :-1]) / 2
    nodes = middle[:, :, None] + half[:, :, None] * _NODES
    weights = half[:, :, None] * _WEIGHTS
    return nodes.reshape(len(left), -1), weights.reshape(len(left), -1)


def _gaps(
    below: np.ndarray, above: np.ndarray, weights: np.ndarray, inside: np.ndarray, factors: np.ndarray
) -> np.ndarray:
    """Return the values of ``1 - lam`` to try in each cell, around the best one for t = 0.

    For t = 0 the integral is a quadratic function of ``g = 1 - lam``:
    ``(1-g)^2 a + 2 g (1-g) b + g^2 c + (1-2g)^2 e``.
    """
    a = np.sum(weights * below**2, axis=1, where=inside)
    b = np.sum(weights * below * above, axis=1, where=inside)
    c = np.sum(weights * above**2, axis=1, where=inside)
    e = np.sum(weights * below**2, axis=1, where=~inside)
    best = (a - b + 2 * e) / (a - 2 * b + c + 4 * e)
    around_best = np.clip(best[:, None] * factors, 0.0, 0.5)
    return np.concatenate([around_best, np.full((len(best), 1), 0.5)], axis=1)


def _integrals(k: np.ndarray, log_phi: np.ndarray, weights: np.ndarray, powers: np.ndarray) -> Table:
    """Return the three integrals for every power t of k in rho."""
    positive = k > 0
    log_k = np.log(np.where(positive, k, 1.0))
    weights = np.where(positive, weights, 0.0)
    squares = []
    divergences = []
    spreads = []
    for t in powers:
        density = weights * np.exp(t * log_k + (1 - t) * log_phi)  # rho times a constant
        if t == 0.0:
            # rho is phi itself, also where k is zero, and both divergences are zero.
            squares.append(np.sum(weights * np.exp(2 * log_k - log_phi), axis=-1))
            divergences.append(np.zeros_like(squares[0]))
            spreads.append(np.zeros_like(squares[0]))
            continue
        constant = density.sum(axis=-1)
        squares.append(constant * np.sum(weights * np.exp((2 - t) * log_k - (1 - t) * log_phi), axis=-1))
        divergence = t * np.sum(density * (log_k - log_phi), axis=-1) / constant - np.log(constant)
        divergences.append(np.maximum(divergence, 0.0))
        ratio = np.sum(weights * np.exp(2 * t * log_k + (1 - 2 * t) * log_phi), axis=-1) / constant**2
        spreads.append(np.maximum(ratio - 1, 0.0))
    return Table(*(np.concatenate(parts, axis=1) for parts in (squares, divergences, spreads)))


_FAN = np.array([(v, c) for v in (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 1e3) for c in (0.0, 0.1, 0.5, 2.0)])
"""Pairs (v, c) for which the best choices are kept; ``s`` of the two-moment form takes the values of v."""


def _prune(full: Table) -> Table:
    """Return the table with only the choices that are best for some pair; this can only increase the radius."""
    square, divergence, spread = full
    kept = []
    for v, c in _FAN:
        kept.append(np.argmin(square * (1 + v * np.sqrt(2 * divergence) + c * divergence), axis=1))
    for s in np.unique(_FAN[:, 0]):
        kept.append(np.argmin(square * (1 + s * np.sqrt(spread)), axis=1))
    chosen = np.sort(np.stack(kept, axis=1), axis=1)
    # Cells keep different numbers of choices, and are padded by repeated choices.
    repeated = np.zeros(chosen.shape, dtype=bool)
    repeated[:, 1:] = chosen[:, 1:] == chosen[:, :-1]
    order = np.argsort(repeated, axis=1, kind="stable")
    most = int(np.max(np.sum(~repeated, axis=1)))
    chosen = np.take_along_axis(chosen, order[:, :most], axis=1)
    return Table(*(np.take_along_axis(part, chosen, axis=1) for part in full))
