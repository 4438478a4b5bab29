"""The smallest eigenvalue of a symmetric pencil ``A x = mu M x`` from products alone, stopped by its sign."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh_tridiagonal

__all__ = ["Ritz", "lanczos"]

Apply = Callable[[np.ndarray], np.ndarray]

_CHECK_EVERY = 10
"""Steps between two looks at the eigenvalues, which cost about as much as a step."""
_SETTLED = 0.1
"""Relative change since the last look, and relative residual, at which the smallest value counts as found."""
_MISSED = 1e-3
"""Probability, over the start, with which an eigenvalue below half of the settled one may still hide."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Ritz:
    """The smallest Ritz pair when the iteration stopped.

    Attributes:
        value: The Ritz value: a Rayleigh quotient, so never below the smallest eigenvalue but for rounding.
        residual: ``|A x - mu M x|`` in the norm of ``M^-1``: an eigenvalue lies within it of ``value``.
        norm: The largest Ritz value in size, an estimate of the norm.
        rounding: How far rounding may have moved ``value``.
        vector: ``x`` with ``x'Mx = 1``.
        steps: Products with A.
        settled: Whether the smallest value stopped moving and its residual is small against it.
        assured: Whether, if it is positive, no eigenvalue lies below half of it but with a probability of 1e-3.
    """

    value: float
    residual: float
    norm: float
    rounding: float
    vector: np.ndarray
    steps: int
    settled: bool
    assured: bool


def lanczos(
    product: Apply, apply: Apply, solve: Apply, start: np.ndarray, *, max_steps: int, accuracy: float = 0.0
) -> Ritz:
    """Run Lanczos with full reorthogonalisation until the sign of the smallest eigenvalue is settled.

    It stops as soon as the smallest Ritz value is negative beyond rounding (a certificate: some ``x'Ax < 0``); or
    when that value has settled, its residual a tenth of it, and the start would have shown a smaller one by then; or
    when it is zero within rounding; or at ``max_steps``.

    A value may settle on a cluster while a single eigenvalue far below it has hardly grown out of the start. For a
    start that is uniform in its direction, k steps miss more than a share e of the spread of the spectrum with a
    probability of at most ``1.648 sqrt(p) exp(-(2k - 1) sqrt(e))`` (Kuczynski and Wozniakowski, 1992, theorem 3).

    Args:
        product: ``v -> A v``.
        apply: ``v -> M v``.
        solve: ``v -> M^-1 v``.
        start: A random vector (p,), normal with covariance ``M^-1``. Nothing is found in a direction that it lacks.
        max_steps: The most products; twice as many vectors of length p are kept.
        accuracy: Relative accuracy of ``product``.

    Returns:
        The smallest Ritz pair and how it stands.

    Examples:
        >>> A = np.diag([3.0, -1.0, 2.0])
        >>> found = lanczos(lambda v: A @ v, lambda v: v, lambda v: v, np.ones(3), max_steps=3)
        >>> round(found.value, 6), np.abs(found.vector).round(6).tolist()
        (-1.0, [0.0, 1.0, 0.0])
    """
    basis = np.empty((min(max_steps, len(start)), len(start)))
    images = np.empty_like(basis)  # M v of each v in the basis: one product a step serves every inner product
    image = apply(start)
    size = float(start @ image) ** 0.5
    basis[0], images[0] = start / size, image / size
    diagonal: list[float] = []
    beside: list[float] = []
    noise = accuracy + _EPS * len(start) ** 0.5
    previous = np.inf
    for k in range(len(basis)):
        image = product(basis[k])
        diagonal.append(float(basis[k] @ image))
        w = solve(image)
        for _ in range(2):  # twice is enough
            w = w - basis[: k + 1].T @ (images[: k + 1] @ w)
        image = apply(w)
        beta = max(float(w @ image), 0.0) ** 0.5
        exhausted = beta <= noise * max(map(abs, diagonal)) or k + 1 == len(start)
        last = exhausted or k + 1 == len(basis)
        if last or (k + 1) % _CHECK_EVERY == 0:
            ritz = _smallest(diagonal, beside, 0.0 if exhausted else beta, noise, previous, len(start))
            if last or (ritz.settled and ritz.assured) or ritz.value < -ritz.rounding:
                break
            previous = ritz.value
        beside.append(beta)
        basis[k + 1], images[k + 1] = w / beta, image / beta
    return _lift(ritz, basis, exhausted)


def _smallest(diagonal: list[float], beside: list[float], beta: float, noise: float, previous: float, p: int) -> Ritz:
    """Return the smallest Ritz pair of the tridiagonal matrix, its vector still in the Krylov basis."""
    values, vectors = eigh_tridiagonal(np.asarray(diagonal), np.asarray(beside))
    value, norm = float(values[0]), float(np.max(np.abs(values)))
    residual, rounding = beta * abs(float(vectors[-1, 0])), noise * norm
    still = abs(previous - value) <= _SETTLED * abs(value) and residual <= _SETTLED * abs(value)
    nothing = abs(value) <= rounding and residual <= rounding
    settled, assured = (value > rounding and still) or nothing, nothing or _is_assured(values, len(diagonal), p)
    return Ritz(value, residual, norm, rounding, vectors[:, 0], len(diagonal), settled, assured)


def _is_assured(values: np.ndarray, steps: int, p: int) -> bool:
    """Whether that many steps would have shown an eigenvalue below half of the smallest, if that is positive."""
    spread = max(float(values[-1] - values[0]), _EPS * float(np.max(np.abs(values))))
    share = min(max(0.5 * float(values[0]), 0.0) / spread, 1.0)
    return (2 * steps - 1) * math.sqrt(share) >= math.log(1.648 * math.sqrt(p) / _MISSED)


def _lift(ritz: Ritz, basis: np.ndarray, exhausted: bool) -> Ritz:
    """Return the pair with its vector in p-space."""
    vector = basis[: ritz.steps].T @ ritz.vector
    return replace(ritz, vector=vector, settled=ritz.settled or exhausted, assured=ritz.assured or exhausted)
