"""Every test point through one n x n factorisation: Gauss-Newton directly, the exact Hessian in a few corrections."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vhat.curvature import Operator
from vhat.errors import InputError
from vhat.problem import Array, Curvature, Problem
from vhat.solve.cg import CG
from vhat.solve.contract import Prepared, Response, Solution, Status, metric_norm, respond_by_solving
from vhat.solve.features import NotRankOne
from vhat.solve.kernel import Kernel, make_kernel
from vhat.solve.loop import Iteration

__all__ = ["Dual", "GaussNewton", "Preconditioned"]

_EPS = float(np.finfo(np.float64).eps)
_LOST = 1e-8
"""Relative error of ``g'h`` above which it is computed from h and not in the space of the data."""


@dataclass(frozen=True)
class Dual:
    """Factorise the n x n kernel ``J lam^-1 J'`` once; it answers Gauss-Newton, and preconditions the exact Hessian.

    Attributes:
        rtol: A row of the exact Hessian stops when its residual, in the Gauss-Newton metric, has fallen by this.
        max_steps: Corrections after which a row is given up.
        block: How many right-hand sides are corrected together.
    """

    rtol: float = 1e-7
    max_steps: int = 500
    block: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.rtol < 1:
            raise InputError(f"rtol={self.rtol!r} is not between 0 and 1.")
        if self.max_steps < 1 or self.block < 1:
            raise InputError(f"max_steps={self.max_steps!r} and block={self.block!r} must be at least 1.")

    @property
    def name(self) -> str:
        """The name that results carry."""
        return "dual"

    def prepare(self, problem: Problem, curvature: Curvature, scale: Array, kernel: Kernel | None = None) -> Prepared:
        """Factorise, or take the factorisation that is at hand.

        Raises:
            MemoryBudgetError: When the kernel does not fit.
            NotPositiveDefinite: When parameters without decay are not determined by the data.
        """
        kernel = make_kernel(problem) if kernel is None else kernel
        if curvature == "ggn" and kernel.root.exact:
            return GaussNewton(problem, kernel, scale)
        options = CG(rtol=self.rtol, max_steps=self.max_steps, block=self.block)
        return Preconditioned(options, problem, curvature, kernel)


@dataclass(frozen=True)
class GaussNewton:
    """``P^-1`` through the kernel: no vector of length p beyond the gradient asked about."""

    problem: Problem
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row, with its true residual."""
        h, image = self.kernel.solve(g)
        size = metric_norm(self.problem, g, self.scale)
        left = metric_norm(self.problem, g - Operator(self.problem, "ggn")(h), self.scale)
        residual = np.divide(left, size, out=np.zeros_like(left), where=size > 0)
        status = np.where(residual <= 1e-6, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        status = np.where(np.isfinite(left), status, Status.NOT_FINITE.value)
        return Solution(h, status, residual, np.ones(len(size), dtype=int), image)

    def respond(self, g: Array) -> Response:
        """Answer from the data's side; rows that lose too many digits there go through their full solution."""
        problem, kernel = self.problem, self.kernel
        if not kernel.root.regular:
            return respond_by_solving(problem, self.solve(g), g)
        rows, free = problem.numpy(g), kernel.structure.free
        found = kernel.respond(_cross(kernel, g, rows), rows[:, free])
        whole = np.sum(rows**2 * kernel.inverse_decay, axis=1)
        energy = whole - np.sum(found.crossed * found.pushed, axis=(1, 2)) + np.sum(rows[:, free] * found.free, axis=1)
        pull = rows @ kernel.decayed - np.sum(found.pushed * kernel.decayed_image, axis=(1, 2))
        residual, status = np.full(len(rows), kernel.residual), np.full(len(rows), Status.CONVERGED.value, "<U13")
        if kernel.residual > 1e-6:
            status[:] = Status.NOT_CONVERGED
        status[~np.isfinite(energy)] = Status.NOT_FINITE
        lost = np.flatnonzero(_EPS * whole > _LOST * np.abs(energy))
        if lost.size:
            energy[lost], pull[lost] = self._by_solution(
                g[lost], found.pushed[lost], found.free[lost], found.image[lost]
            )
        return Response(found.image, energy, pull, status, residual, np.ones(len(rows), dtype=int))

    def _by_solution(
        self, g: Array, pushed: np.ndarray, free: np.ndarray, image: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """``g'h = (Jh)'C(Jh)/n + h'lam h``, a sum of squares, and ``h' lam theta``."""
        problem = self.problem
        h = problem.numpy(self.kernel.lift(g, pushed, free))
        decay = problem.numpy(problem.decay)
        energy = np.sum(self.kernel.root.times(image) ** 2, axis=(1, 2)) + np.sum(decay * h**2, axis=1)
        return energy, h @ (decay * problem.numpy(problem.theta))


def _cross(kernel: Kernel, g: Array, rows: np.ndarray) -> np.ndarray:
    """``J lam^-1 g``, through features where the gradients have the structure of the training rows' gradients."""
    try:
        return kernel.cross(rows)
    except NotRankOne:
        return kernel.problem.jvp(g * kernel.problem.native(kernel.inverse_decay))


@dataclass(frozen=True)
class Preconditioned:
    """Conjugate gradients on the exact Hessian in the Gauss-Newton metric."""

    options: CG
    problem: Problem
    curvature: Curvature
    kernel: Kernel = field(repr=False)
    name: str = "dual"

    @property
    def _iteration(self) -> Iteration:
        return Iteration(self.options, self.problem, self.curvature, self.kernel, trusted=12)

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self._iteration.solve(g)

    def respond(self, g: Array) -> Response:
        """Solve, and read the response off the solutions and their images."""
        return respond_by_solving(self.problem, self.solve(g), g)
