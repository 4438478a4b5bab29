"""Lanczos' method for the smallest eigenvalue of ``A x = mu M x``, stopped as soon as its sign is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh_tridiagonal

__all__ = ["Ritz", "lanczos"]

Apply = Callable[[np.ndarray], np.ndarray]

_CHECK_EVERY = 10
"""Steps between two computations of the Ritz values, each about as expensive as a step."""
_CONVERGED = 0.1
"""Relative change since the last check, and relative residual, below which the smallest Ritz value has converged."""
_MISS_PROBABILITY = 1e-3
"""Probability, over the random start, of missing an eigenvalue below half of the converged one."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Ritz:
    """The smallest Ritz pair when the iteration stopped.

    Attributes:
        value: The Ritz value: a Rayleigh quotient, and up to rounding never below the smallest eigenvalue.
        residual: ``|A x - mu M x|`` in the norm of ``M^-1``; an eigenvalue is within this distance of ``value``.
        rounding: Bound on the rounding error of ``value``.
        vector: ``x`` with ``x'Mx = 1``.
        steps: Products with A.
        settled: Whether the value has converged: it stopped changing and its residual is relatively small.
        assured: Whether an eigenvalue below half of a positive ``value`` has a probability of at most 1e-3.
    """

    value: float
    residual: float
    rounding: float
    vector: np.ndarray
    steps: int
    settled: bool
    assured: bool


def lanczos(
    product: Apply, apply: Apply, solve: Apply, start: np.ndarray, *, max_steps: int, accuracy: float = 0.0
) -> Ritz:
    """Run Lanczos with full reorthogonalisation until the sign of the smallest eigenvalue is known.

    The iteration stops when

    - the smallest Ritz value is negative beyond rounding: a certificate, because some ``x'Ax < 0``;
    - the value has converged, and a smaller eigenvalue would have shown by then;
    - the value is zero within rounding;
    - ``max_steps`` is reached.

    A value may converge to a cluster while the start has almost no component along a single smaller eigenvalue. For a
    start with uniform direction, the probability that the error after k steps exceeds a share e of the spread of the
    spectrum is at most ``1.648 sqrt(p) exp(-(2k - 1) sqrt(e))`` (Kuczynski and Wozniakowski, 1992, theorem 3).

    Args:
        product: ``v -> A v``.
        apply: ``v -> M v``.
        solve: ``v -> M^-1 v``.
        start: A random vector (p,), normal with covariance ``M^-1``. Eigenvectors orthogonal to it are not found.
        max_steps: Largest number of products; twice as many vectors of length p are stored.
        accuracy: Relative accuracy of ``product``.

    Returns:
        The smallest Ritz pair, and its accuracy.

    Examples:
        >>> A = np.diag([3.0, -1.0, 2.0])
        >>> found = lanczos(lambda v: A @ v, lambda v: v, lambda v: v, np.ones(3), max_steps=3)
        >>> round(found.value, 6), np.abs(found.vector).round(6).tolist()
        (-1.0, [0.0, 1.0, 0.0])
    """
    basis = np.empty((min(max_steps, len(start)), len(start)))
    # M v of each basis vector v: with it an inner product needs no further product with M.
    images = np.empty_like(basis)
    image = apply(start)
    size = float(start @ image) ** 0.5
    basis[0] = start / size
    images[0] = image / size
    # The tridiagonal matrix of the recurrence.
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    noise = accuracy + _EPS * len(start) ** 0.5
    previous = np.inf
    for k in range(len(basis)):
        image = product(basis[k])
        diagonal.append(float(basis[k] @ image))
        w = solve(image)
        for _ in range(2):  # two passes of Gram-Schmidt leave only rounding
            w = w - basis[: k + 1].T @ (images[: k + 1] @ w)
        image = apply(w)
        beta = max(float(w @ image), 0.0) ** 0.5
        # The Krylov space is invariant: all Ritz values are eigenvalues.
        exhausted = beta <= noise * max(map(abs, diagonal)) or k + 1 == len(start)
        last = exhausted or k + 1 == len(basis)
        if last or (k + 1) % _CHECK_EVERY == 0:
            ritz = _smallest_ritz_pair(diagonal, off_diagonal, 0.0 if exhausted else beta, noise, previous, len(start))
            if last or (ritz.settled and ritz.assured) or ritz.value < -ritz.rounding:
                break
            previous = ritz.value
        off_diagonal.append(beta)
        basis[k + 1] = w / beta
        images[k + 1] = image / beta
    return _with_vector(ritz, basis, exhausted)


def _smallest_ritz_pair(
    diagonal: list[float], off_diagonal: list[float], beta: float, noise: float, previous: float, p: int
) -> Ritz:
    """Return the smallest Ritz pair of the tridiagonal matrix, with its vector in the Krylov basis."""
    values, vectors = eigh_tridiagonal(np.asarray(diagonal), np.asarray(off_diagonal))
    value = float(values[0])
    residual = beta * abs(float(vectors[-1, 0]))
    rounding = noise * float(np.max(np.abs(values)))
    converged = abs(previous - value) <= _CONVERGED * abs(value) and residual <= _CONVERGED * abs(value)
    is_zero = abs(value) <= rounding and residual <= rounding
    return Ritz(
        value=value,
        residual=residual,
        rounding=rounding,
        vector=vectors[:, 0],
        steps=len(diagonal),
        settled=(value > rounding and converged) or is_zero,
        assured=is_zero or _is_assured(values, len(diagonal), p),
    )


def _is_assured(values: np.ndarray, steps: int, p: int) -> bool:
    """Return whether so many steps would have shown an eigenvalue below half of a positive smallest Ritz value."""
    spread = max(float(values[-1] - values[0]), _EPS * float(np.max(np.abs(values))))
    share = min(max(0.5 * float(values[0]), 0.0) / spread, 1.0)
    return (2 * steps - 1) * math.sqrt(share) >= math.log(1.648 * math.sqrt(p) / _MISS_PROBABILITY)


def _with_vector(ritz: Ritz, basis: np.ndarray, exhausted: bool) -> Ritz:
    """Return the pair with its vector in p-space."""
    vector = basis[: ritz.steps].T @ ritz.vector
    return replace(ritz, vector=vector, settled=ritz.settled or exhausted, assured=ritz.assured or exhausted)
