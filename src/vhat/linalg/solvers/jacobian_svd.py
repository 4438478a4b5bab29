"""The Gauss-Newton matrix through the singular values of the Jacobian, for a decay that its square has no digits for.

With ``G = s'J Lam^-1/2 = U S W'``, ``y = Lam^-1/2 g`` and ``a = W'y``, in the notation of
:mod:`vhat.linalg.solvers.kernel`,

    s' J P^-1 g = U S / (1 + S^2) a,     Lam^1/2 P^-1 g = y - W a + W a / (1 + S^2).

The kernel ``GG'`` has the squares of S: where the largest is 1e16, those about one, which decide V, are lost in it. S
itself is right to 1e-16 of its largest. The price is the Jacobian in full and ``4 n^2 p`` operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.interface import DARK, FromImages, Response, Solution, Status, joined
from vhat.linalg.solvers.kernel import Kernel, kernel_bytes
from vhat.models.problem import Array, Problem

__all__ = ["Orthogonal"]

_EPS = float(np.finfo(float).eps)
_ENOUGH = 1e-4
"""Relative error of the root of V above which a row is not called converged."""
_ROWS = 16
"""Right-hand sides, and rows of the Jacobian, that are worked on together."""
_VECTORS = 6
"""Of length p that each of them takes."""


class _Factors(NamedTuple):
    """``G = U S W'``.

    Attributes:
        left: ``U``, (N, r).
        sizes: ``S``, (r,), falling.
        basis: ``Q``, (p, r), with orthonormal columns.
        turn: ``W = Q turn``, (r, r).
        apart: By how much G differs from the front end's derivatives along a random direction, relative.
    """

    left: np.ndarray
    sizes: np.ndarray
    basis: np.ndarray
    turn: np.ndarray
    apart: float


class _Parts(NamedTuple):
    """Right-hand sides ``y``, as the data see them.

    Attributes:
        along: ``a = W'y``, (k, r).
        beside: ``y - W a``, (k, p).
        size: ``|y|``, (k,).
    """

    along: np.ndarray
    beside: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class Orthogonal(FromImages):
    """``P^-1`` through the singular values of the Jacobian, which are computed when the first rows are asked about.

    Attributes:
        kernel: Of the same problem, all of whose parameters have decay.
        name: Of the solver that made it.
    """

    kernel: Kernel = field(repr=False)
    name: str = "dual"

    @staticmethod
    def fits(kernel: Kernel) -> bool:
        """Whether the budget has room for the Jacobian beside the kernel."""
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
        kernel, h = self.kernel, []
        found: list[Response] = []
        for rows in self._blocks(g):
            parts, factors = self._parts(rows), self._factors
            shrunk = parts.along / (1.0 + factors.sizes**2)
            h.append((parts.beside + (shrunk @ factors.turn.T) @ factors.basis.T) * kernel.inverse_root)
            found.append(self._response(rows, parts))
        answer = joined(found)
        return Solution(kernel.problem.native(np.concatenate(h)), answer.status, answer.residual, answer.steps)

    def respond(self, g: Array) -> Response:
        """Answer from the data's side."""
        return joined([self._response(rows, self._parts(rows)) for rows in self._blocks(g)])

    def _blocks(self, g: Array) -> Iterator[np.ndarray]:
        rows = self.kernel.problem.numpy(g)
        return (rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS))

    def _parts(self, g: np.ndarray) -> _Parts:
        finite = np.isfinite(g).all(axis=1, keepdims=True)
        y = np.where(finite, g, 0.0) * self.kernel.inverse_root
        size = np.linalg.norm(y, axis=1)
        seen = y @ self._factors.basis
        y -= seen @ self._factors.basis.T
        again = y @ self._factors.basis  # rounding in the first round, small beside y but not beside what is left
        y -= again @ self._factors.basis.T
        return _Parts((seen + again) @ self._factors.turn, y, size)

    def _response(self, g: np.ndarray, parts: _Parts) -> Response:
        problem, kernel, factors = self.kernel.problem, self.kernel, self._factors
        shrunk = parts.along / (1.0 + factors.sizes**2)
        u = (shrunk * factors.sizes) @ factors.left.T
        energy = np.sum(parts.beside**2, axis=1) + np.sum(parts.along * shrunk, axis=1)
        slope = kernel.scaled_slope
        pull = parts.beside @ slope + shrunk @ (factors.turn.T @ (factors.basis.T @ slope))
        error = self._error(parts, np.linalg.norm(u, axis=1), np.sqrt(energy))
        finite = np.isfinite(g).all(axis=1) & np.isfinite(energy)
        status = np.where(error <= _ENOUGH, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        return Response(
            image=kernel.root.divide(u.reshape(len(g), problem.n, problem.outputs)),
            energy=energy,
            pull=pull,
            status=np.where(finite, status, Status.NOT_FINITE.value),
            residual=error,
            steps=np.ones(len(g), dtype=int),
        )

    def _error(self, parts: _Parts, length: np.ndarray, energy: np.ndarray) -> np.ndarray:
        """What rounding may move ``|u|`` by, relative, (k,); ``energy`` is ``(g'h)^1/2``.

        G is known to ``e = 1e-16 |G|``. With it ``u = G z``, ``z = (I + G'G)^-1 y``, moves by
        ``(I + GG')^-1 dG z - G (I + G'G)^-1 dG'u``: at most by ``e |z| / (1 + S^2)``, S the smallest (0 where there are
        more rows than parameters), and ``e |u| / 2``. ``|z|`` is at most the root of the energy. Rounding in a moves u
        by half of itself.
        """
        sizes, (rows, rank) = self._factors.sizes, self._factors.left.shape
        held = 1.0 + sizes[-1] ** 2 if rank == rows else 1.0
        moved = _EPS * (sizes[0] * (energy / held + 0.5 * length) + 0.5 * parts.size)
        shown = np.maximum(length, DARK * energy)
        return np.divide(moved, shown, out=np.zeros_like(moved), where=shown > 0) + self._factors.apart

    @cached_property
    def _factors(self) -> _Factors:
        kernel, problem = self.kernel, self.kernel.problem
        N = problem.n * problem.outputs
        G = np.empty((N, problem.p))
        step = max(1, _ROWS // problem.outputs)
        for start in range(0, problem.n, step):
            stop = min(start + step, problem.n)
            rows = slice(start * problem.outputs, stop * problem.outputs)
            G[rows] = kernel.root.rows(start, stop, kernel.features.plain(rows))
        apart = self._apart()
        basis, R = scipy.linalg.qr(G.T, mode="economic", overwrite_a=True, check_finite=False)
        turn, sizes, right = scipy.linalg.svd(R, full_matrices=False, overwrite_a=True, check_finite=False)
        return _Factors(right.T, sizes, basis, turn, apart)

    def _apart(self) -> float:
        """Compare the features with the front end along a random direction: they were read off it long ago."""
        kernel, problem = self.kernel, self.kernel.problem
        v = np.random.default_rng(0).standard_normal((1, problem.p)) * kernel.inverse_root
        image = kernel.features.times(v * kernel.root_decay)
        there = problem.jvp(problem.native(v)).reshape(image.shape)
        return float(np.linalg.norm(image - there) / max(np.linalg.norm(there), np.finfo(float).tiny))
