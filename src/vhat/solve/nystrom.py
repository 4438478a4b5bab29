"""Conjugate gradients in the metric of a few training rows, for problems whose own kernel would not fit.

The Gauss-Newton matrix of m rows drawn at random (:mod:`vhat.solve.sample`) is solved exactly through its m x m kernel
and stands for that of all, the more rows the better: it only steers the iteration, and every row is judged by its own
residual under all the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from array_api_compat import array_namespace

from vhat.checks import check_count, check_tolerance
from vhat.curvature import Operator
from vhat.problem import Array, Curvature, Problem
from vhat.solve.cg import CG
from vhat.solve.contract import Response, Solution, Status, Stopped, metric_norm, respond_by_solving
from vhat.solve.dual import judged
from vhat.solve.kernel import Kernel
from vhat.solve.loop import Iteration, Jacobi, Preconditioner
from vhat.solve.sample import sample_kernel

__all__ = ["NYSTROM_VECTORS", "Nystrom", "Sampled", "nystrom_block"]

NYSTROM_VECTORS = 32
"""Of length p for each row: those of conjugate gradients and those that pass through the kernel of the sample."""
_VECTORS_SHARE = 0.4

_PLAIN_RTOL = 1e-8
"""Of the rows that the sample is no help to."""
_ROUNDS = 4
_ROUND_RTOL = 1e-2
"""By which a row goes on that the metric of the sample called converged too early."""


@dataclass(frozen=True)
class Nystrom:
    """Let a random sample of the training rows precondition: for data too many for :class:`vhat.Dual`.

    The rows are sampled, as in Nystrom's method for kernels, and their Gauss-Newton matrix, factorised in the space of
    the sample, preconditions conjugate gradients on all the data: the sample changes how soon a row arrives, not where.

    Attributes:
        rows: How many training rows; None for as many as 30% of the memory budget hold and as pay for themselves.
        rtol: A row stops when its residual, in the metric of the sample, has fallen by this factor.
        max_steps: Iterations after which a row is taken up by plain conjugate gradients.
        block: How many right-hand sides are iterated together.
        seed: Draws the rows.

    Examples:
        >>> Nystrom(rows=2_000).seed
        0
        >>> Nystrom(rows=0)
        Traceback (most recent call last):
        vhat.errors.InputError: rows=0 is not a whole number of at least 1.
    """

    rows: int | None = None
    rtol: float = 1e-7
    max_steps: int = 2000
    block: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rows is not None:
            check_count("rows", self.rows, least=1)
        check_tolerance("rtol", self.rtol)
        check_count("max_steps", self.max_steps, least=1)
        check_count("block", self.block, least=1)
        check_count("seed", self.seed)

    @property
    def name(self) -> str:
        """The name that results carry."""
        return "nystrom"

    def sample(self, problem: Problem, scale: Array) -> Kernel:
        """Draw rows and factorise their kernel, which serves both curvatures.

        Raises:
            MemoryBudgetError: When the kernel of that many rows does not fit.
        """
        return sample_kernel(problem, scale, self.rows, self.seed)

    def prepare(self, problem: Problem, curvature: Curvature, scale: Array, kernel: Kernel | None = None) -> Sampled:
        """Take the kernel of a sample that is at hand, or draw one.

        Raises:
            MemoryBudgetError: When the kernel of that many rows does not fit.
        """
        kernel = self.sample(problem, scale) if kernel is None else kernel
        options = CG(rtol=self.rtol, max_steps=self.max_steps, block=nystrom_block(problem, self.block))
        return Sampled(options, problem, curvature, kernel, scale)


def nystrom_block(problem: Problem, most: int) -> int:
    """How many rows are iterated together beside the sample, within the budget."""
    return max(1, min(most, int(_VECTORS_SHARE * problem.memory // (8 * NYSTROM_VECTORS * problem.p))))


@dataclass(frozen=True)
class Sampled:
    """Conjugate gradients in the metric of the sample, every row judged by its true residual: see :class:`Nystrom`."""

    options: CG
    problem: Problem
    curvature: Curvature
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    name: str = "nystrom"

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g."""
        return self._solve(g, for_norm=False)

    def respond(self, g: Array) -> Response:
        """Solve, then look at the training rows."""
        try:
            solution = self._solve(g, for_norm=True)
        except Stopped as stop:
            raise Stopped(stop.rows, respond_by_solving(self.problem, stop.partial, g[stop.rows])) from None
        return respond_by_solving(self.problem, solution, g)

    def _solve(self, g: Array, *, for_norm: bool) -> Solution:
        """Solve for each row; one that the sample leads nowhere goes on by plain conjugate gradients.

        Raises:
            Stopped: On Ctrl-C, with the solutions of the rows that are finished.
        """
        xp = array_namespace(g)
        finite = np.isfinite(self.problem.numpy(g)).all(axis=1)
        g = xp.where(self.problem.native(finite[:, None].astype(float)) > 0, g, xp.zeros_like(g))
        try:
            claimed = self._iteration(self.kernel, self.options).solve(g, for_norm=for_norm)
        except Stopped as stop:
            raise _stopped(stop.rows, self._judged(g[stop.rows], stop.partial)) from None
        found = self._judged(g, claimed)
        try:
            for _ in range(_ROUNDS):
                early = (claimed.status == Status.CONVERGED) & (found.status == Status.NOT_CONVERGED)
                found = self._improved(g, found, np.flatnonzero(early))
            found = self._plainly(g, found, np.flatnonzero(found.status == Status.NOT_CONVERGED), for_norm)
        except KeyboardInterrupt:
            raise _stopped(np.arange(len(finite)), found) from None
        return replace(found, status=np.where(finite, found.status, Status.NOT_FINITE.value))

    def _iteration(self, metric: Preconditioner, options: CG) -> Iteration:
        return Iteration(options, self.problem, self.curvature, metric, strict=True)

    def _judged(self, g: Array, found: Solution) -> Solution:
        """Call converged only what is so in the unit-free scale."""
        r = g - Operator(self.problem, self.curvature)(found.h)
        status, residual = judged(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)
        kept = np.where(found.status == Status.CONVERGED, status, found.status)
        return replace(found, status=kept, residual=residual)

    def _improved(self, g: Array, found: Solution, rows: np.ndarray) -> Solution:
        """Bring down what is left of rows that the metric of the sample called converged too early."""
        if not rows.size:
            return found
        g, h = g[rows], found.h[rows]
        r = g - Operator(self.problem, self.curvature)(h)
        more = self._iteration(self.kernel, replace(self.options, rtol=_ROUND_RTOL)).solve(r)
        more = replace(more, h=h + more.h, steps=found.steps[rows] + more.steps)
        return _replaced(self.problem, found, rows, self._judged(g, more))

    def _plainly(self, g: Array, found: Solution, rows: np.ndarray, for_norm: bool) -> Solution:
        """Begin again without the sample."""
        if not rows.size:
            return found
        options = CG(rtol=min(_PLAIN_RTOL, self.options.rtol), block=self.options.block)
        more = self._iteration(Jacobi(self.problem, self.scale), options).solve(g[rows], for_norm=for_norm)
        more = replace(more, steps=found.steps[rows] + more.steps)
        return _replaced(self.problem, found, rows, self._judged(g[rows], more))


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
