"""Every test point through one p x p factorisation, for any number of rows; the exact Hessian in a few corrections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Metric
from vhat.linalg.solvers.cluster import check_engine
from vhat.linalg.solvers.corrected import (
    Corrected,
    CorrectedSolver,
    combination,
    finished,
    rows_and_finite,
    verified,
    weights_of,
)
from vhat.linalg.solvers.correction_loop import Correction
from vhat.linalg.solvers.cost import Cost, Work
from vhat.linalg.solvers.factorised import FactorMetric
from vhat.linalg.solvers.gram import Gram, Solved, gram_bytes, gram_flops
from vhat.linalg.solvers.interface import Norms, Prepared, Response, Solution, Status, metric_norm
from vhat.linalg.solvers.preconditioned_cg import Preconditioned, judged
from vhat.linalg.solvers.softest_direction import find_soft
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["Primal", "PrimalGaussNewton"]

_DIRECT = 1e-8
"""Relative error of a direct solution, in the metric of P, to which it is refined."""
_REFINEMENTS = 2
"""Of a direct solution by products of the front end: each takes off what rounding in P has left."""
_ROUNDED = 1e-5
"""Relative error of a norm above which conjugate gradients take over: as in :mod:`vhat.linalg.solvers.dual`."""
_GRADIENTS = 4.0
"""Gradients of the loss for one point under the exact Hessian; a nearly singular Hessian takes more."""
_GRADIENTS_GGN = 0.01
"""The same under Gauss-Newton: its share of the check of a block. No training row is looked at for a point."""
_VECTORS = 14
"""Of length p for each row that is corrected."""
_SOLVES = 4
"""Solves and products with P for each right-hand side, at ``2 p^2`` flops."""


@dataclass(frozen=True)
class Primal(CorrectedSolver):
    """Sum up and factorise the p x p Gauss-Newton matrix once, for any number of rows; correct to the exact Hessian.

    Attributes:
        rtol: A row of the exact Hessian stops when the estimated relative error of ``sqrt(V)`` is below this.
        max_steps: Corrections, at most 200, after which a row is left to conjugate gradients without the factorisation.
        block: How many right-hand sides are corrected together.
        engine: A ``distributed.Client``: the workers of its Dask cluster sum up the matrix, block of rows by block of
            rows. Corrections to the exact Hessian are computed here.

    Examples:
        >>> Primal(rtol=1e-5).max_steps
        500
    """

    engine: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_engine(self.engine)

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return what it takes: the matrix, then triangular solves and, for the exact Hessian, corrections a row."""
        # The rows of the Jacobian cost about as much as one gradient of each output.
        setup = Work(gradients=float(problem.outputs), products=gram_flops(problem))
        gradients = _GRADIENTS_GGN if curvature == "ggn" else _GRADIENTS
        return Cost(
            setup,
            Work(gradients, products=_SOLVES * 2.0 * float(problem.p) ** 2),
            fixed=gram_bytes(problem),
            held=8 * 3 * problem.p,
            iterated=8 * _VECTORS * problem.p,
            block=self.block,
        )

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:  # noqa: ARG002  (one for both)
        """Return the metric of the Gauss-Newton matrix."""
        return FactorMetric(work.gram(self.engine))

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Factorise, or take the factorisation that is at hand.

        Raises:
            MemoryBudgetError: When the matrix does not fit.
            NotPositiveDefinite: When data and decay do not determine every parameter.
        """
        gram = work.gram(self.engine)
        soft = find_soft(work, curvature, against_data=True, measure=gram)
        careful = self.careful(work, curvature, gram, soft)
        # The Hessian of a linear model is its Gauss-Newton matrix.
        if (curvature == "ggn" or work.problem.linear) and gram.exact:
            return PrimalGaussNewton(work.problem, gram, work.scale(), careful, self.block)
        return Corrected.make(gram, careful, soft, self)


@dataclass(frozen=True)
class PrimalGaussNewton:
    """``P^-1`` through its p x p factorisation.

    Attributes:
        problem: The training problem.
        gram: The factorisation.
        scale: The unit of each parameter.
        careful: What answers rows that the factorisation has lost.
        block: How many rows are verified one by one together, where all at once did not do.
        name: Of the solver that made it.
    """

    problem: Problem
    gram: Gram = field(repr=False)
    scale: Array = field(repr=False)
    careful: Preconditioned = field(repr=False)
    block: int
    name: str = "primal"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row, refined by products of the front end, which the matrix never saw."""
        rows, finite = rows_and_finite(self.problem, g)
        if not finite.all():
            return self.careful.solve(g)
        operator, seen = Operator(self.problem, "ggn"), self.gram.look(rows)
        h, size = self.gram.lift(seen), np.sqrt(np.abs(seen.energy))
        for step in range(1 + _REFINEMENTS):
            r = g - operator(self.problem.native(h))
            left = self.gram.look(self.problem.numpy(r))
            enough = _DIRECT if step < _REFINEMENTS else _ROUNDED
            if np.all(left.size <= enough * size):
                residual = judged(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)[1]
                status = np.full(len(h), Status.CONVERGED.value)
                return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + step))
            h = h + self.gram.lift(left)
        return self.careful.solve(g)

    def solve_together(self, g: Array) -> Solution:
        """Solve for each row of many, verified by one random combination of them; one by one where that fails."""
        found, good = self._answer(g)
        if not good.all():
            return self.solve(g)
        return Solution(self.problem.native(found.image[:, 0]), found.status, found.residual, found.steps)

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return what intervals need of the solutions, by p x p algebra."""
        found, good = self._answer(g)
        return finished(self.gram.norms(found, sigma), good, g, partial(self.careful.norms, sigma=sigma))

    def respond(self, g: Array) -> Response:
        """Return what the training rows see of the solutions."""
        found, good = self._answer(g)
        return finished(self.gram.response(found), good, g, self.careful.respond)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """``g`` to ``L^-1 g``, (k, p), with ``P = L L'``."""
        return self.gram.half

    def _answer(self, g: Array) -> tuple[Response, np.ndarray]:
        """Solve, and verify one random combination of the rows by the front end; all of them where that fails.

        Returns:
            The answer, its images h in the form of the matrix, and which of its rows are good, (k,) of bool.
        """
        rows, finite = rows_and_finite(self.problem, g)
        seen = self.gram.look(rows)
        answer = Correction.none(self.gram, seen)
        weights = weights_of(self.gram, answer)
        together = combination(weights, answer.image)
        error = self._errors((together @ rows)[None], seen.combined(together))
        if error[0] <= _ROUNDED:
            return verified(answer, finite, error), np.ones(len(rows), dtype=bool)
        errors = []
        for start in range(0, len(rows), self.block):
            at = np.arange(start, min(start + self.block, len(rows)))
            errors.append(self._errors(weights[at, None] * rows[at], seen.take(at).times(weights[at])))
        error = np.concatenate(errors)
        return verified(answer, finite, error), error <= _ROUNDED

    def _errors(self, g: np.ndarray, seen: Solved) -> np.ndarray:
        """Return how far ``s'J h`` of each row may be off, (k,): ``sqrt(r'P^-1 r)`` of what is left of the equation."""
        h = self.problem.native(self.gram.lift(seen))
        left = self.problem.native(g) - Operator(self.problem, "ggn")(h)
        found: np.ndarray = self.gram.look(self.problem.numpy(left)).size
        return found
