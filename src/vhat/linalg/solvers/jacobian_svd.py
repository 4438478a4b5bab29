"""Gauss-Newton solutions through a singular value decomposition of the Jacobian, for very small weight decay.

With ``G = s'J Lam^-1/2 = U S W'``, ``y = Lam^-1/2 g`` and ``a = W'y``, in the notation of
:mod:`vhat.linalg.solvers.kernel`,

    s' J P^-1 g = U S / (1 + S^2) a,     Lam^1/2 P^-1 g = y - W a + W a / (1 + S^2).

The eigenvalues of the kernel ``GG'`` are ``S^2``. If the largest is 1e16, rounding in the kernel destroys those about
one, which determine V. The singular values S have an error of only 1e-16 times the largest. The method stores the
Jacobian in full and takes ``4 n^2 p`` operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.interface import SUPPORT_FLOOR, FromImages, Response, Solution, Status, concatenate
from vhat.linalg.solvers.kernel import Kernel, kernel_bytes
from vhat.models.problem import Array, Problem

__all__ = ["JacobianSVD"]

_EPS = float(np.finfo(float).eps)
_RTOL = 1e-4
"""Relative error of the square root of V above which a row is not converged."""
_ROWS = 16
"""Right-hand sides, and rows of the Jacobian, per block."""
_VECTORS = 6
"""Vectors of length p per row of a block."""


class _Factors(NamedTuple):
    """``G = U S W'``.

    Attributes:
        left: ``U``, (N, r).
        sizes: ``S``, (r,), decreasing.
        basis: ``Q``, (p, r), with orthonormal columns.
        rotation: Orthogonal (r, r), with ``W = Q rotation``.
        discrepancy: Relative difference between G and the framework's derivatives along a random direction.
    """

    left: np.ndarray
    sizes: np.ndarray
    basis: np.ndarray
    rotation: np.ndarray
    discrepancy: float


class _Parts(NamedTuple):
    """Right-hand sides ``y``, split into a part in the span of W and a part orthogonal to it.

    Attributes:
        along: ``a = W'y``, (k, r).
        complement: ``y - W a``, (k, p).
        size: ``|y|``, (k,).
    """

    along: np.ndarray
    complement: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class JacobianSVD(FromImages):
    """``P^-1`` through the singular values of the Jacobian, which are computed at the first solve.

    Attributes:
        kernel: The kernel of the problem; all parameters must have decay.
        name: The solver's name in results.
    """

    kernel: Kernel = field(repr=False)
    name: str = "dual"

    @staticmethod
    def fits(kernel: Kernel) -> bool:
        """Return whether the Jacobian fits into the memory budget beside the kernel."""
        problem = kernel.problem
        N = problem.n * problem.outputs
        own = 8 * (N * problem.p + 8 * min(N, problem.p) * N + _ROWS * _VECTORS * problem.p)
        return kernel_bytes(problem, kernel.structure) + own <= problem.memory

    @property
    def problem(self) -> Problem:  # type: ignore[override]
        """The training problem."""
        return self.kernel.problem

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row."""
        kernel = self.kernel
        factors = self._factors
        solutions: list[np.ndarray] = []
        responses: list[Response] = []
        for rows in self._blocks(g):
            parts = self._parts(rows)
            # Lam^1/2 h = y - W a + W a / (1 + S^2)
            shrunk = parts.along / (1.0 + factors.sizes**2)
            scaled = parts.complement + (shrunk @ factors.rotation.T) @ factors.basis.T
            solutions.append(scaled * kernel.inverse_root)
            responses.append(self._response(rows, parts))
        found = concatenate(responses)
        return Solution(kernel.problem.native(np.concatenate(solutions)), found.status, found.residual, found.steps)

    def respond(self, g: Array) -> Response:
        """Return the images of the solutions over the training rows."""
        return concatenate([self._response(rows, self._parts(rows)) for rows in self._blocks(g)])

    def _blocks(self, g: Array) -> Iterator[np.ndarray]:
        rows = self.kernel.problem.numpy(g)
        return (rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS))

    def _parts(self, g: np.ndarray) -> _Parts:
        finite = np.isfinite(g).all(axis=1, keepdims=True)
        y = np.where(finite, g, 0.0) * self.kernel.inverse_root
        size = np.linalg.norm(y, axis=1)
        coordinates = y @ self._factors.basis
        y -= coordinates @ self._factors.basis.T
        # Project twice: the rounding of the first projection is small relative to y, but not to the remainder.
        correction = y @ self._factors.basis
        y -= correction @ self._factors.basis.T
        return _Parts((coordinates + correction) @ self._factors.rotation, y, size)

    def _response(self, g: np.ndarray, parts: _Parts) -> Response:
        problem = self.kernel.problem
        kernel = self.kernel
        factors = self._factors
        shrunk = parts.along / (1.0 + factors.sizes**2)
        u = (shrunk * factors.sizes) @ factors.left.T
        energy = np.sum(parts.complement**2, axis=1) + np.sum(parts.along * shrunk, axis=1)
        penalty = kernel.scaled_penalty
        pull = parts.complement @ penalty + shrunk @ (factors.rotation.T @ (factors.basis.T @ penalty))
        error = self._error_bound(parts, np.linalg.norm(u, axis=1), np.sqrt(energy))
        finite = np.isfinite(g).all(axis=1) & np.isfinite(energy)
        status = np.where(error <= _RTOL, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        return Response(
            image=kernel.root.divide(u.reshape(len(g), problem.n, problem.outputs)),
            energy=energy,
            pull=pull,
            status=np.where(finite, status, Status.NOT_FINITE.value),
            residual=error,
            steps=np.ones(len(g), dtype=int),
        )

    def _error_bound(self, parts: _Parts, length: np.ndarray, root_energy: np.ndarray) -> np.ndarray:
        """Return a bound on the relative rounding error of ``|u|``, (k,).

        G has an error dG of norm ``e = 1e-16 |G|``. It changes ``u = G z``, ``z = (I + G'G)^-1 y``, by
        ``(I + GG')^-1 dG z - G (I + G'G)^-1 dG'u``: at most by ``e |z| / (1 + S^2)``, S the smallest singular value (0
        if there are more rows than parameters), plus ``e |u| / 2``. ``|z|`` is at most ``(g'h)^1/2``. A rounding error
        of a changes u by at most half of it.

        Args:
            parts: The right-hand sides.
            length: ``|u|``, (k,).
            root_energy: ``(g'h)^1/2``, (k,).
        """
        sizes = self._factors.sizes
        rows, rank = self._factors.left.shape
        least = 1.0 + sizes[-1] ** 2 if rank == rows else 1.0
        error = _EPS * (sizes[0] * (root_energy / least + 0.5 * length) + 0.5 * parts.size)
        reference = np.maximum(length, SUPPORT_FLOOR * root_energy)
        relative = np.divide(error, reference, out=np.zeros_like(error), where=reference > 0)
        return relative + self._factors.discrepancy

    @cached_property
    def _factors(self) -> _Factors:
        kernel = self.kernel
        problem = kernel.problem
        N = problem.n * problem.outputs
        G = np.empty((N, problem.p))
        step = max(1, _ROWS // problem.outputs)
        for start in range(0, problem.n, step):
            stop = min(start + step, problem.n)
            rows = slice(start * problem.outputs, stop * problem.outputs)
            G[rows] = kernel.root.rows(start, stop, kernel.features.plain(rows))
        discrepancy = self._discrepancy()
        # G' = Q R and R = rotation S U', so that G = U S (Q rotation)'.
        basis, R = scipy.linalg.qr(G.T, mode="economic", overwrite_a=True, check_finite=False)
        rotation, sizes, right = scipy.linalg.svd(R, full_matrices=False, overwrite_a=True, check_finite=False)
        return _Factors(right.T, sizes, basis, rotation, discrepancy)

    def _discrepancy(self) -> float:
        """Return the relative difference between the features and the framework's derivatives along one direction.

        It detects a model that changed after the features were computed.
        """
        kernel = self.kernel
        problem = kernel.problem
        v = np.random.default_rng(0).standard_normal((1, problem.p)) * kernel.inverse_root
        image = kernel.features.times(v * kernel.root_decay)
        expected = problem.jvp(problem.native(v)).reshape(image.shape)
        return float(np.linalg.norm(image - expected) / max(np.linalg.norm(expected), np.finfo(float).tiny))
