"""Conjugate gradients in the metric of a kernel, slow and sure: every row ends with its true residual."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from array_api_compat import array_namespace

from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Jacobi
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.cg_loop import Iteration
from vhat.linalg.solvers.interface import FromImages, Response, Solution, Status, Stopped, metric_norm
from vhat.linalg.solvers.softest_direction import Measure, Soft
from vhat.models.problem import Array, Curvature, Problem

__all__ = ["ACCEPTED", "Preconditioned", "judged"]

ACCEPTED = 1e-6
"""A relative residual above this, in the unit-free scale, is not converged, whatever the kernel's own metric says."""
_PLAIN_RTOL = 1e-8
"""Of the rows that the kernel is no help to."""
_ROUNDS = 4
"""How often a row that stopped too early is taken up again."""
_ROUND_RTOL = 1e-2
"""By which a row goes on that the metric of the kernel called converged too early."""


@dataclass(frozen=True)
class Preconditioned(FromImages):
    """Conjugate gradients in the metric of a kernel, every row judged by its true residual.

    Attributes:
        options: When to stop, and how many rows go together.
        problem: The training problem.
        curvature: Which matrix.
        kernel: The metric: of all training rows or of some.
        scale: The unit of each parameter, in which residuals are judged.
        name: Of the solver that made it.
        soft: The direction of least curvature, if it is known.
    """

    options: CG
    problem: Problem
    curvature: Curvature
    kernel: Measure = field(repr=False)
    scale: Array = field(repr=False)
    name: str
    soft: Soft | None = field(default=None, repr=False)

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self._solve(g, for_norm=False)

    def respond(self, g: Array) -> Response:
        """Solve, then look at the training rows."""
        iteration = self._iteration(self.kernel, self.options)
        try:
            return iteration.response(g, self._solve(g, for_norm=True))
        except Stopped as stop:
            raise Stopped(stop.rows, iteration.response(g[stop.rows], stop.partial)) from None

    def _solve(self, g: Array, *, for_norm: bool) -> Solution:
        """Solve for each row; one that the kernel leads nowhere goes on by plain conjugate gradients.

        Raises:
            Stopped: On Ctrl-C, with the solutions of the rows that are finished.
        """
        xp = array_namespace(g)
        finite = np.isfinite(self.problem.numpy(g)).all(axis=1)
        g = xp.where(self.problem.native(finite[:, None].astype(float)) > 0, g, xp.zeros_like(g))
        try:
            claimed = self._iteration(self.kernel, self.options).solve(g, for_norm=for_norm)
        except Stopped as stop:
            judged_rows = self._judged(g[stop.rows], stop.partial)
            raise _stopped(stop.rows, _marked(judged_rows, finite[stop.rows])) from None
        found = self._judged(g, claimed)
        try:
            for _ in range(_ROUNDS):
                early = (claimed.status == Status.CONVERGED) & (found.status == Status.NOT_CONVERGED)
                found = self._improved(g, found, np.flatnonzero(early))
            found = self._plainly(g, found, np.flatnonzero(found.status == Status.NOT_CONVERGED), for_norm)
        except KeyboardInterrupt:
            raise _stopped(np.arange(len(finite)), _marked(found, finite)) from None
        return _marked(found, finite)

    def _iteration(self, metric: Measure, options: CG) -> Iteration:
        return Iteration(options, self.problem, self.curvature, metric, self.soft, strict=True)

    def _judged(self, g: Array, found: Solution) -> Solution:
        """Call converged only what is so in the unit-free scale."""
        r = g - Operator(self.problem, self.curvature)(found.h)
        status, residual = judged(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)
        kept = np.where(found.status == Status.CONVERGED, status, found.status)
        return replace(found, status=kept, residual=residual)

    def _improved(self, g: Array, found: Solution, rows: np.ndarray) -> Solution:
        """Bring down what is left of rows that the metric of the kernel called converged too early."""
        if not rows.size:
            return found
        g, h = g[rows], found.h[rows]
        r = g - Operator(self.problem, self.curvature)(h)
        more = self._iteration(self.kernel, replace(self.options, rtol=_ROUND_RTOL)).solve(r)
        more = replace(more, h=h + more.h, steps=found.steps[rows] + more.steps)
        return _replaced(self.problem, found, rows, self._judged(g, more))

    def _plainly(self, g: Array, found: Solution, rows: np.ndarray, for_norm: bool) -> Solution:
        """Begin again without the kernel: one that has lost too many digits is no preconditioner."""
        if not rows.size:
            return found
        options = CG(rtol=min(_PLAIN_RTOL, self.options.rtol), block=self.options.block)
        more = self._iteration(Jacobi(self.scale), options).solve(g[rows], for_norm=for_norm)
        more = replace(more, steps=found.steps[rows] + more.steps)
        return _replaced(self.problem, found, rows, self._judged(g[rows], more))


def _marked(found: Solution, finite: np.ndarray) -> Solution:
    """Return solutions in which the rows that were not finite, and were solved as zeros, say so."""
    return replace(found, status=np.where(finite, found.status, Status.NOT_FINITE.value))


def _replaced(problem: Problem, found: Solution, rows: np.ndarray, better: Solution) -> Solution:
    """Return ``found`` with some of its rows taken from ``better``."""
    columns = {name: getattr(found, name).copy() for name in ("status", "residual", "steps")}
    for name, column in columns.items():
        column[rows] = getattr(better, name)
    h = problem.numpy(found.h).copy()
    h[rows] = problem.numpy(better.h)
    return Solution(problem.native(h), **columns)


def _stopped(rows: np.ndarray, found: Solution) -> KeyboardInterrupt:
    """Say which of these rows were finished when Ctrl-C came."""
    done = np.flatnonzero(found.status != Status.NOT_CONVERGED)
    if not done.size:
        return KeyboardInterrupt()
    partial = Solution(found.h[done], found.status[done], found.residual[done], found.steps[done])
    return Stopped(rows[done], partial)


def judged(problem: Problem, r: Array, size: np.ndarray, scale: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return a status and a relative residual for each row, in the unit-free scale and not the kernel's own metric."""
    left = metric_norm(problem, r, scale)
    with np.errstate(invalid="ignore"):  # of rows that are not finite
        residual = np.divide(left, size, out=np.zeros_like(left), where=size > 0)
    status = np.where(residual <= ACCEPTED, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
    return np.where(np.isfinite(left), status, Status.NOT_FINITE.value), residual
