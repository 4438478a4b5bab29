"""Eigenvalues of the Gauss-Newton matrix ``J'CJ/n``, and V at some points as a function of a ridge penalty.

With ``B = C^(1/2) J / sqrt(n)`` in the units of the penalty and ``B = U S^(1/2) W'``, the refit under lam has the
smoother ``U diag(s/(s + lam)) U'``, ``tr S_lam = sum_j s_j/(s_j + lam)`` degrees of freedom, and

    V_lam(x) = sum_jk c_j c_k M_jk,    c_j = t_j / (s_j + lam).

D is the variance of each weighted response. With fewer rows than parameters t is ``g B'U`` and M is ``U'DU``, otherwise
t is ``g W`` and M is ``W'B'DBW``. One decomposition gives V for all lam.
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

__all__ = ["Path", "Spectrum", "compute_path", "find_spectrum"]

_MOST_ROWS = 2000
"""Largest number of training rows, times outputs, whose kernel is decomposed; of more rows a random sample is."""
_MOST_PARAMETERS = 2000
"""Largest number of parameters for which the p x p matrix of all rows is decomposed."""
_FLOPS = 1e11
"""Largest number of flops for that matrix, about ten seconds on one core: not more than the intervals take."""
_RANK_RTOL = 1e-13
"""Eigenvalue, relative to the largest, below which it is rounding."""
_PROBES = 4
"""Random vectors for an estimate of the spectrum, if a decomposition of all rows is too expensive."""
_STEPS = 25
"""Lanczos steps per random vector. With 100 products in total the error is about four percent of a few hundred degrees
of freedom."""
_BLOCK_BYTES = 2**26
"""Bytes of the gradients of one block of rows."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues in the units of the penalty.

    Attributes:
        values: The eigenvalues, (r,).
        counts: Multiplicity of each, (r,): ones for computed eigenvalues, quadrature weights for an estimated spectrum.
    """

    values: np.ndarray
    counts: np.ndarray

    @property
    def rank(self) -> float:
        """Rank of the training Jacobian, ``tr S`` for lam = 0."""
        return float(self.counts[self.values > _RANK_RTOL * self.values.max()].sum())

    def freedom(self, lam: float) -> float:
        """Return ``tr S_lam``, the degrees of freedom of the ridge refit."""
        return float(self.counts @ (self.values / (self.values + lam)))

    def penalty(self, freedom: float) -> float:
        """Return the lam with ``tr S_lam`` equal to ``freedom``, which must be between 0 and the rank."""
        top = np.log(self.values.max())
        low = top + np.log(_RANK_RTOL) - 5.0
        high = top + np.log(self.counts.sum() / freedom) + 5.0
        found = brentq(lambda log: self.freedom(float(np.exp(log))) - freedom, low, high, xtol=1e-10)
        return float(np.exp(found))


@dataclass(frozen=True, eq=False)
class Path:
    """V at some points as a function of lam.

    Attributes:
        spectrum: The eigenvalues of all training rows, or an estimate of their distribution.
        values: The eigenvalues for the rows that were decomposed, (r,).
        images: t, (points * K, r).
        variances: M, (r, r), or its diagonal (r,) if it is diagonal.
        spread: D along each eigenvector, (r,); None if only a sample of the rows was decomposed.
        rows: Number of rows that were decomposed.
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
    """Return the eigenvalues for all training rows, or an estimate of their distribution if that is too expensive.

    Args:
        problem: The training problem.
        root: The square root of the shape of the penalty, (p,).
        seed: Seed of the random vectors of an estimate.
    """
    if not _can_decompose_all(problem):
        return _estimate(problem, root, seed)
    if _is_dual(problem):
        B = _all_rows(problem, root)
        return _spectrum(scipy.linalg.eigvalsh(B @ B.T)[::-1])
    return _spectrum(scipy.linalg.eigvalsh(_moments(problem, root))[::-1])


def compute_path(problem: Problem, inputs: Any, root: np.ndarray, noise: np.ndarray, seed: int = 0) -> Path:
    """Return V at some points as a function of lam, from a decomposition of the training rows or a sample of them.

    Args:
        problem: The training problem.
        inputs: Checked inputs of the points.
        root: The square root of the shape of the penalty, (p,).
        noise: Standard deviation of each training response, (n, K).
        seed: Seed of the sample of the training rows.
    """
    all_rows = _can_decompose_all(problem)
    part, sigma = (problem, noise) if all_rows else _sample(problem, noise, seed)
    spread = (_weights(part) * sigma**2).reshape(-1)  # D: the variance of sqrt(c) y
    if _is_dual(part):
        B = _all_rows(part, root)
        values, vectors = _leading_eigenpairs(B @ B.T)
        directions = B.T @ vectors
    else:
        values, vectors = _leading_eigenpairs(_moments(part, root))
        directions = vectors
    images = _images(part, inputs, root, directions)
    variances, along = _variances(part, root, values, vectors, spread)
    spectrum = _spectrum(values) if all_rows else _estimate(problem, root, seed)
    return Path(spectrum, values, images, variances, along if all_rows else None, part.n)


def _leading_eigenpairs(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues above rounding, decreasing, and their vectors."""
    values, vectors = scipy.linalg.eigh(matrix)
    kept = values > _RANK_RTOL * values[-1]
    return values[kept][::-1], vectors[:, kept][:, ::-1]


def _spectrum(values: np.ndarray) -> Spectrum:
    return Spectrum(np.maximum(values, 0.0), np.ones(len(values)))


def _is_dual(problem: Problem) -> bool:
    """Return whether there are at most as many rows as parameters."""
    return problem.n * problem.outputs <= problem.p


def _can_decompose_all(problem: Problem) -> bool:
    """Return whether a decomposition of all training rows is affordable."""
    rows = problem.n * problem.outputs
    p = problem.p
    if _is_dual(problem):
        return rows <= _MOST_ROWS and 8 * rows * p <= problem.memory / 4
    return p <= _MOST_PARAMETERS and rows * p**2 <= _FLOPS


def _sample(problem: Problem, noise: np.ndarray, seed: int) -> tuple[Problem, np.ndarray]:
    """Return the problem of a random sample of its rows, as large as affordable, and their noise."""
    fits = int(problem.memory / 4 / (8 * problem.p * problem.outputs))
    size = max(2, min(_MOST_ROWS // problem.outputs, fits, problem.n))
    rows = np.sort(np.random.default_rng(seed).choice(problem.n, size=size, replace=False))
    return problem.rows(rows), noise[rows]


def _weights(problem: Problem) -> np.ndarray:
    """Return C, (n, K), with negative curvature replaced by zero."""
    return np.maximum(problem.loss_derivatives.own_curvature, 0.0)


def _scaled_rows(problem: Problem, root: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of B, each with the slice of its (row, output) pairs."""
    n = problem.n
    K = problem.outputs
    p = problem.p
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
    """Return M, or its diagonal if D is one number, and D along each eigenvector."""
    dual = _is_dual(problem)
    scale = np.ones_like(values) if dual else values
    # Rows of weight zero have no part in the eigenvectors, and their noise does not matter.
    counted = spread[spread > 0]
    if counted.size and np.ptp(counted) <= 1e-9 * counted.max():
        return counted[0] * scale, np.full(len(values), counted[0])
    right = spread[:, None] * vectors if dual else _moments(problem, root, spread) @ vectors
    M = vectors.T @ right
    # The eigenvectors of B'B have images of squared length s, those of BB' of length one.
    return M, np.diag(M) / scale


def _estimate(problem: Problem, root: np.ndarray, seed: int) -> Spectrum:
    """Return the distribution of the eigenvalues by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017)."""
    p = problem.p
    xp = array_namespace(problem.theta)
    scale = problem.native(root)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(_PROBES, p)) / np.sqrt(p)
    # Lanczos' three-term recurrence, without reorthogonalisation, for all random vectors v at once.
    v = problem.native(signs)
    previous = problem.native(np.zeros((_PROBES, p)))
    beta = np.zeros(_PROBES)
    diagonal = []
    off_diagonal = []
    for _ in range(min(_STEPS, p)):
        w = problem.product(v / scale, "ggn") / scale - problem.native(beta[:, None]) * previous
        alpha = problem.numpy(xp.sum(w * v, axis=1))
        w = w - problem.native(alpha[:, None]) * v
        beta = np.sqrt(problem.numpy(xp.sum(w * w, axis=1)))
        diagonal.append(alpha)
        off_diagonal.append(beta)
        if np.any(beta <= _RANK_RTOL * np.abs(alpha)):  # an invariant subspace: the quadrature is exact
            break
        previous = v
        v = w / problem.native(beta[:, None])
    values = []
    counts = []
    for j in range(_PROBES):
        nodes, vectors = scipy.linalg.eigh_tridiagonal([a[j] for a in diagonal], [b[j] for b in off_diagonal[:-1]])
        values.append(np.maximum(nodes, 0.0))
        counts.append(p / _PROBES * vectors[0] ** 2)
    return Spectrum(np.concatenate(values), np.concatenate(counts))
