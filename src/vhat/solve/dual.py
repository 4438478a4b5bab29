"""Every test point through one n x n factorisation: Gauss-Newton directly, the exact Hessian in a few corrections."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from vhat.curvature import Operator
from vhat.errors import InputError
from vhat.problem import Array, Curvature, Problem
from vhat.solve.cg import CG
from vhat.solve.contract import Prepared, Response, Solution, Status, metric_norm, respond_by_solving
from vhat.solve.kernel import Kernel, make_kernel
from vhat.solve.loop import Iteration

__all__ = ["Dual", "GaussNewton", "Preconditioned"]

_DIRECT = 1e-8
"""A relative residual above this sends a direct solution on to conjugate gradients."""
_ACCEPTED = 1e-6
"""A relative residual above this, in the unit-free scale, is not converged, whatever the kernel's own metric says."""


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
        options = CG(rtol=self.rtol, max_steps=self.max_steps, block=self.block)
        if curvature == "ggn" and kernel.root.exact:
            return GaussNewton(options, problem, kernel, scale)
        return Preconditioned(options, problem, curvature, kernel, scale)


@dataclass(frozen=True)
class GaussNewton:
    """``P^-1`` through the kernel, each row with its true residual."""

    options: CG
    problem: Problem
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row; where the kernel has lost digits it is a preconditioner and no more."""
        size = metric_norm(self.problem, g, self.scale)
        h = self.kernel.solve(g)
        status, residual = judged(self.problem, g - Operator(self.problem, "ggn")(h), size, self.scale)
        if np.any(residual > _DIRECT):
            return Preconditioned(self.options, self.problem, "ggn", self.kernel, self.scale).solve(g)
        return Solution(h, status, residual, np.ones(len(size), dtype=int))

    def respond(self, g: Array) -> Response:
        """Solve, then look at the training rows: an image kept in the kernel's basis would share its lost digits."""
        return respond_by_solving(self.problem, self.solve(g), g)


def judged(problem: Problem, r: Array, size: np.ndarray, scale: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return a status and a relative residual for each row, in the unit-free scale and not the kernel's own metric."""
    left = metric_norm(problem, r, scale)
    residual = np.divide(left, size, out=np.zeros_like(left), where=size > 0)
    status = np.where(residual <= _ACCEPTED, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
    return np.where(np.isfinite(left), status, Status.NOT_FINITE.value), residual


@dataclass(frozen=True)
class Preconditioned:
    """Conjugate gradients on the exact Hessian in the Gauss-Newton metric."""

    options: CG
    problem: Problem
    curvature: Curvature
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g; what the kernel's metric calls converged must be so in the unit-free scale too."""
        found = Iteration(self.options, self.problem, self.curvature, self.kernel).solve(g)
        r = g - Operator(self.problem, self.curvature)(found.h)
        status, residual = judged(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)
        kept = np.where(found.status == Status.CONVERGED, status, found.status)
        return replace(found, status=kept, residual=residual)

    def respond(self, g: Array) -> Response:
        """Solve, then look at the training rows."""
        return respond_by_solving(self.problem, self.solve(g), g)
