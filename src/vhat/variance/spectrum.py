"""Eigenvalues of the Gauss-Newton matrix ``J'CJ/n``, and how V at some points follows a ridge penalty through them.

With ``B = (CJ)^(1/2) / sqrt(n)`` in the units of the penalty and ``B = U S^(1/2) W'``, the refit under lam has the
smoother ``U diag(s/(s + lam)) U'``, ``tr S_lam = sum_j s_j/(s_j + lam)`` degrees of freedom, and

    V_lam(x) = sum_jk c_j c_k M_jk,    c_j = t_j / (s_j + lam),

where t and M are ``g B'U`` and ``U'DU`` where there are fewer rows than parameters, ``g W`` and ``W'B'DBW`` elsewhere,
and D is the variance of each weighted response. One decomposition serves all lam.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from array_api_compat import array_namespace
from scipy.optimize import brentq

from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.models.problem import Problem

__all__ = ["Path", "Spectrum", "find_spectrum", "follow"]

_MOST_ROWS = 2000
"""Training rows, times outputs, whose kernel is decomposed: a random sample of them where there are more."""
_MOST_PARAMETERS = 2000
"""Parameters up to which the matrix of all rows is decomposed, however many rows there are."""
_FLOPS = 1e11
"""Operations of that matrix, some ten seconds on one core: no more than the intervals themselves take."""
_RANK = 1e-13
"""Share of the largest eigenvalue below which one is rounding."""
_PROBES, _STEPS = 4, 25
"""Random vectors and Lanczos steps by which traces are estimated where no decomposition of all rows is affordable: some
four percent of a few hundred degrees of freedom, for 100 products with the matrix."""
_BLOCK_BYTES = 2**26
"""What gradients that are made together may take."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues in the units of the penalty.

    Attributes:
        values: The eigenvalues, (r,).
        counts: How many directions each stands for, (r,); ones where they were computed, weights of a quadrature where
            their distribution was estimated.
    """

    values: np.ndarray
    counts: np.ndarray

    @property
    def rank(self) -> float:
        """How many directions the training rows see, ``tr S`` for lam = 0."""
        return float(self.counts[self.values > _RANK * self.values.max()].sum())

    def freedom(self, lam: float) -> float:
        """Return ``tr S_lam``, the degrees of freedom of the ridge refit."""
        return float(self.counts @ (self.values / (self.values + lam)))

    def penalty(self, freedom: float) -> float:
        """Return the lam at which ``tr S_lam`` is ``freedom``, which must be between 0 and the rank."""
        top = np.log(self.values.max())
        low, high = top + np.log(_RANK) - 5.0, top + np.log(self.counts.sum() / freedom) + 5.0
        found = brentq(lambda log: self.freedom(float(np.exp(log))) - freedom, low, high, xtol=1e-10)
        return float(np.exp(found))


@dataclass(frozen=True, eq=False)
class Path:
    """V at some points along lam.

    Attributes:
        spectrum: The eigenvalues of all training rows, as far as they are affordable.
        values: The eigenvalues of the rows on which V is followed, (r,).
        images: t, (points * K, r).
        variances: M, (r, r), or its diagonal (r,) where it is one.
        spread: D along each eigenvector, (r,); None where the spectrum is an estimate.
        rows: How many training rows V is followed on.
    """

    spectrum: Spectrum
    values: np.ndarray
    images: np.ndarray
    variances: np.ndarray
    spread: np.ndarray | None
    rows: int

    def norms(self, lam: float) -> np.ndarray:
        """Return ``V_lam`` of each point and output, (points * K,)."""
        c = self.images / (self.values + lam)
        if self.variances.ndim == 1:
            found: np.ndarray = c**2 @ self.variances
            return found
        return np.einsum("ij,ij->i", c @ self.variances, c)


def find_spectrum(problem: Problem, root: np.ndarray, seed: int = 0) -> Spectrum:
    """Return the eigenvalues of all training rows: computed where that is affordable, else their distribution.

    Args:
        problem: The training problem.
        root: The root of the shape of the penalty, (p,).
        seed: Draws the random vectors of an estimate.
    """
    if not _whole(problem):
        return _estimate(problem, root, seed)
    if _is_dual(problem):
        B = _all_rows(problem, root)
        return _spectrum(scipy.linalg.eigvalsh(B @ B.T)[::-1])
    return _spectrum(scipy.linalg.eigvalsh(_moments(problem, root))[::-1])


def follow(problem: Problem, inputs: Any, root: np.ndarray, noise: np.ndarray, seed: int = 0) -> Path:
    """Decompose the training rows, or a sample of them, and see how the gradients at some points lie to them.

    Args:
        problem: The training problem.
        inputs: Checked inputs of the points.
        root: The root of the shape of the penalty, (p,).
        noise: Standard deviation of each training response, (n, K).
        seed: Draws training rows where there are too many.
    """
    whole = _whole(problem)
    part, sigma = (problem, noise) if whole else _sampled(problem, noise, seed)
    spread = (_weights(part) * sigma**2).reshape(-1)  # D: the variance of sqrt(c) y
    B = _all_rows(part, root) if _is_dual(part) else None
    values, vectors = scipy.linalg.eigh(_moments(part, root) if B is None else B @ B.T)
    kept = values > _RANK * values[-1]
    values, vectors = values[kept][::-1], vectors[:, kept][:, ::-1]
    images = _images(part, inputs, root, vectors if B is None else B.T @ vectors)
    variances, along = _variances(part, root, values, vectors, spread)
    spectrum = _spectrum(values) if whole else _estimate(problem, root, seed)
    return Path(spectrum, values, images, variances, along if whole else None, part.n)


def _spectrum(values: np.ndarray) -> Spectrum:
    return Spectrum(np.maximum(values, 0.0), np.ones(len(values)))


def _is_dual(problem: Problem) -> bool:
    """Whether there are fewer rows than parameters."""
    return problem.n * problem.outputs <= problem.p


def _whole(problem: Problem) -> bool:
    """Whether all training rows can be decomposed."""
    rows, p = problem.n * problem.outputs, problem.p
    if _is_dual(problem):
        return rows <= _MOST_ROWS and 8 * rows * p <= problem.memory / 4
    return p <= _MOST_PARAMETERS and rows * p**2 <= _FLOPS


def _sampled(problem: Problem, noise: np.ndarray, seed: int) -> tuple[Problem, np.ndarray]:
    """Return the problem of a random sample of its rows, as many as are affordable, and their noise."""
    bearable = int(problem.memory / 4 / (8 * problem.p * problem.outputs))
    most = max(2, min(_MOST_ROWS // problem.outputs, bearable, problem.n))
    rows = np.sort(np.random.default_rng(seed).choice(problem.n, size=most, replace=False))
    return problem.rows(rows), noise[rows]


def _weights(problem: Problem) -> np.ndarray:
    """Return C, (n, K); rows at which the loss bends down count as seen by nothing."""
    return np.maximum(problem.loss_derivatives.own_curvature, 0.0)


def _scaled_rows(problem: Problem, root: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of B, with the (row, output) pairs that they hold."""
    n, K, p = problem.n, problem.outputs, problem.p
    weights = np.sqrt(_weights(problem) / n)
    step = max(1, _BLOCK_BYTES // (8 * p * K))
    for start in range(0, n, step):
        stop = min(start + step, n)
        J = jacobian_rows(problem, start, stop, np.empty(((stop - start) * K, p)))
        yield slice(start * K, stop * K), weights[start:stop].reshape(-1, 1) * J / root


def _all_rows(problem: Problem, root: np.ndarray) -> np.ndarray:
    """Return B, (n * K, p)."""
    return np.concatenate([block for _, block in _scaled_rows(problem, root)])


def _moments(problem: Problem, root: np.ndarray, spread: np.ndarray | None = None) -> np.ndarray:
    """Return ``B'B``, (p, p); with ``spread``, ``B'DB``."""
    total = np.zeros((problem.p, problem.p))
    for pairs, block in _scaled_rows(problem, root):
        total += block.T @ (block if spread is None else spread[pairs, None] * block)
    return total


def _images(problem: Problem, inputs: Any, root: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return t of each point, (points * K, r): its gradient along the directions ``B'U`` or ``W``, (p, r)."""
    count = problem.count(inputs)
    step = max(1, _BLOCK_BYTES // (8 * problem.p * problem.outputs))
    parts = []
    for start in range(0, count, step):
        g = problem.numpy(problem.gradients(problem.take(inputs, start, min(start + step, count))))
        parts.append((g / root) @ directions)
    return np.concatenate(parts)


def _variances(
    problem: Problem, root: np.ndarray, values: np.ndarray, vectors: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return M, or its diagonal where D is one number, and D along each eigenvector."""
    dual = _is_dual(problem)
    seen = spread[spread > 0]
    scale = np.ones_like(values) if dual else values
    if seen.size and np.ptp(seen) <= 1e-9 * seen.max():  # rows that the loss does not see have no part in U
        return seen[0] * scale, np.full(len(values), seen[0])
    right = spread[:, None] * vectors if dual else _moments(problem, root, spread) @ vectors
    M = vectors.T @ right
    return M, np.diag(M) / scale


def _estimate(problem: Problem, root: np.ndarray, seed: int) -> Spectrum:
    """Estimate the distribution of the eigenvalues by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017)."""
    p, steps = problem.p, min(_STEPS, problem.p)
    xp = array_namespace(problem.theta)
    scale = problem.native(root)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(_PROBES, p)) / np.sqrt(p)
    v, before = problem.native(signs), problem.native(np.zeros((_PROBES, p)))
    beta = np.zeros(_PROBES)
    diagonal, beside = [], []
    for _ in range(steps):
        w = problem.product(v / scale, "ggn") / scale - problem.native(beta[:, None]) * before
        alpha = problem.numpy(xp.sum(w * v, axis=1))
        w = w - problem.native(alpha[:, None]) * v
        beta = np.sqrt(problem.numpy(xp.sum(w * w, axis=1)))
        diagonal.append(alpha)
        beside.append(beta)
        if np.any(beta <= _RANK * np.abs(alpha)):  # an invariant subspace: the quadrature is exact
            break
        before, v = v, w / problem.native(beta[:, None])
    found = [
        scipy.linalg.eigh_tridiagonal([a[j] for a in diagonal], [b[j] for b in beside[:-1]]) for j in range(_PROBES)
    ]
    values = np.concatenate([np.maximum(nodes, 0.0) for nodes, _ in found])
    counts = np.concatenate([p / _PROBES * vectors[0] ** 2 for _, vectors in found])
    return Spectrum(values, counts)
