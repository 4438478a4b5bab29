"""Conjugate gradients preconditioned by a kernel; every row is verified by its true residual."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from array_api_compat import array_namespace

from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Jacobi
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.cg_loop import Iteration
from vhat.linalg.solvers.interface import FromImages, Response, Solution, Status, Stopped, metric_norm
from vhat.linalg.solvers.softest_direction import Preconditioner, SoftDirection
from vhat.models.problem import Array, Curvature, Problem

__all__ = ["ACCEPTED", "Preconditioned", "replace_solutions", "status_and_residual"]

ACCEPTED = 1e-6
"""Relative residual in the unit-free scale above which a row is not converged, whatever its residual in the norm of the
kernel."""
_UNPRECONDITIONED_RTOL = 1e-8
"""Relative residual for rows that are solved again without the kernel."""
_RESUMES = 4
"""How often a row that stopped too early is resumed."""
_RESUME_RTOL = 1e-2
"""Factor by which a resume reduces the residual of a row that stopped too early."""


@dataclass(frozen=True)
class Preconditioned(FromImages):
    """Conjugate gradients preconditioned by a kernel; every row is verified by its true residual.

    Attributes:
        options: Tolerance, steps and block size.
        problem: The training problem.
        curvature: The matrix: exact Hessian or Gauss-Newton.
        kernel: The preconditioner, from all training rows or a sample.
        scale: The unit of each parameter, in which the true residuals are measured.
        name: The solver's name in results.
        soft: The direction of least curvature, if known.
    """

    options: CG
    problem: Problem
    curvature: Curvature
    kernel: Preconditioner = field(repr=False)
    scale: Array = field(repr=False)
    name: str
    soft: SoftDirection | None = field(default=None, repr=False)

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self._solve(g, for_norm=False)

    def respond(self, g: Array) -> Response:
        """Solve, and return the images over the training rows."""
        iteration = self._iteration(self.kernel, self.options)
        try:
            return iteration.response(g, self._solve(g, for_norm=True))
        except Stopped as stop:
            raise Stopped(stop.rows, iteration.response(g[stop.rows], stop.partial)) from None

    def _solve(self, g: Array, *, for_norm: bool) -> Solution:
        """Solve for each row; rows in which the kernel does not help are solved again without it.

        Raises:
            Stopped: On Ctrl-C, with the solutions of the rows that are finished.
        """
        xp = array_namespace(g)
        finite = np.isfinite(self.problem.numpy(g)).all(axis=1)
        # Rows that are not finite are solved as zeros; their status is set at the end.
        g = xp.where(self.problem.native(finite[:, None].astype(float)) > 0, g, xp.zeros_like(g))
        try:
            claimed = self._iteration(self.kernel, self.options).solve(g, for_norm=for_norm)
        except Stopped as stop:
            partial = self._verify(g[stop.rows], stop.partial)
            raise _stopped(stop.rows, _mark_not_finite(partial, finite[stop.rows])) from None
        found = self._verify(g, claimed)
        try:
            # Converged in the norm of the kernel, but not in the unit-free scale: continue from where they stopped.
            for _ in range(_RESUMES):
                early = (claimed.status == Status.CONVERGED) & (found.status == Status.NOT_CONVERGED)
                found = self._resume(g, found, np.flatnonzero(early))
            failed = np.flatnonzero(found.status == Status.NOT_CONVERGED)
            found = self._solve_unpreconditioned(g, found, failed, for_norm)
        except KeyboardInterrupt:
            raise _stopped(np.arange(len(finite)), _mark_not_finite(found, finite)) from None
        return _mark_not_finite(found, finite)

    def _iteration(self, metric: Preconditioner, options: CG) -> Iteration:
        return Iteration(options, self.problem, self.curvature, metric, self.soft, strict=True)

    def _verify(self, g: Array, found: Solution) -> Solution:
        """Return the solutions with true residuals; a row stays converged only if it is so in the unit-free scale."""
        r = g - Operator(self.problem, self.curvature)(found.h)
        status, residual = status_and_residual(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)
        status = np.where(found.status == Status.CONVERGED, status, found.status)
        return replace(found, status=status, residual=residual)

    def _resume(self, g: Array, found: Solution, rows: np.ndarray) -> Solution:
        """Reduce the residuals of rows that stopped too early in the norm of the kernel."""
        if not rows.size:
            return found
        g = g[rows]
        h = found.h[rows]
        r = g - Operator(self.problem, self.curvature)(h)
        more = self._iteration(self.kernel, replace(self.options, rtol=_RESUME_RTOL)).solve(r)
        more = replace(more, h=h + more.h, steps=found.steps[rows] + more.steps)
        return replace_solutions(self.problem, found, rows, self._verify(g, more))

    def _solve_unpreconditioned(self, g: Array, found: Solution, rows: np.ndarray, for_norm: bool) -> Solution:
        """Solve rows again, with the diagonal preconditioner: a kernel that has lost too many digits does not help."""
        if not rows.size:
            return found
        options = CG(rtol=min(_UNPRECONDITIONED_RTOL, self.options.rtol), block=self.options.block)
        more = self._iteration(Jacobi(self.scale), options).solve(g[rows], for_norm=for_norm)
        more = replace(more, steps=found.steps[rows] + more.steps)
        return replace_solutions(self.problem, found, rows, self._verify(g[rows], more))


def _mark_not_finite(found: Solution, finite: np.ndarray) -> Solution:
    """Return the solutions with the status ``not finite`` for rows that were not finite and were solved as zeros."""
    return replace(found, status=np.where(finite, found.status, Status.NOT_FINITE.value))


def replace_solutions(problem: Problem, found: Solution, rows: np.ndarray, better: Solution) -> Solution:
    """Return ``found`` with some of its rows replaced by ``better``."""
    columns = {name: getattr(found, name).copy() for name in ("status", "residual", "steps")}
    for name, column in columns.items():
        column[rows] = getattr(better, name)
    h = problem.numpy(found.h).copy()
    h[rows] = problem.numpy(better.h)
    return Solution(problem.native(h), **columns)


def _stopped(rows: np.ndarray, found: Solution) -> KeyboardInterrupt:
    """Return the exception for Ctrl-C, with the solutions of the rows that are finished."""
    done = np.flatnonzero(found.status != Status.NOT_CONVERGED)
    if not done.size:
        return KeyboardInterrupt()
    partial = Solution(found.h[done], found.status[done], found.residual[done], found.steps[done])
    return Stopped(rows[done], partial)


def status_and_residual(problem: Problem, r: Array, size: np.ndarray, scale: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return status and relative residual of each row, in the unit-free scale.

    Args:
        problem: The training problem.
        r: Residuals, (k, p).
        size: Norms of the right-hand sides, (k,).
        scale: The unit of each parameter.
    """
    norms = metric_norm(problem, r, scale)
    with np.errstate(invalid="ignore"):  # rows that are not finite
        residual = np.divide(norms, size, out=np.zeros_like(norms), where=size > 0)
    status = np.where(residual <= ACCEPTED, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
    return np.where(np.isfinite(norms), status, Status.NOT_FINITE.value), residual
