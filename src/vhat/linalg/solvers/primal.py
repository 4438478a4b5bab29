"""Solve through one p x p factorisation, for any number of training rows.

Gauss-Newton is solved directly, the exact Hessian with a few corrections per point.
"""

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
    GRADIENTS_PER_POINT,
    Corrected,
    CorrectedSolver,
    error_weights,
    finite_rows,
    random_combination,
    verified_response,
    with_fallback,
)
from vhat.linalg.solvers.correction_loop import Correction
from vhat.linalg.solvers.cost import Cost, Work
from vhat.linalg.solvers.factorised import ACCEPTED_ERROR, DIRECT_RTOL, MAX_REFINEMENTS, FactorMetric
from vhat.linalg.solvers.gram import Gram, GramSolution, gram_bytes, gram_flops
from vhat.linalg.solvers.interface import Norms, Prepared, Response, Solution, Status, metric_norm
from vhat.linalg.solvers.preconditioned_cg import Preconditioned, status_and_residual
from vhat.linalg.solvers.softest_direction import find_softest_direction
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["Primal", "PrimalGaussNewton"]

_GRADIENTS_GGN = 0.01
"""Planned cost per point under Gauss-Newton, in gradients of the loss: its share of the check of a block. The solve
itself does not use the training rows."""
_VECTORS = 14
"""Vectors of length p per row that is corrected."""
_SOLVES = 4
"""Solves and products with P per right-hand side, ``2 p^2`` flops each."""


@dataclass(frozen=True)
class Primal(CorrectedSolver):
    """Factorise the p x p Gauss-Newton matrix once, for any number of rows; it preconditions the exact Hessian.

    Attributes:
        rtol: A row of the exact Hessian stops when the estimated relative error of ``sqrt(V)`` is below this.
        max_steps: Corrections, at most 200, after which a row is passed to plain conjugate gradients.
        block: How many right-hand sides are corrected together.
        engine: A ``distributed.Client``. The workers of its Dask cluster sum the matrix over blocks of training rows;
            corrections to the exact Hessian are computed in this process.

    Examples:
        >>> Primal(rtol=1e-5).max_steps
        500
    """

    engine: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_engine(self.engine)

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return the cost: the matrix, then per row triangular solves, and corrections for the exact Hessian."""
        # The rows of the Jacobian cost about as much as one gradient of each output.
        setup = Work(gradients=float(problem.outputs), products=gram_flops(problem))
        gradients = _GRADIENTS_GGN if curvature == "ggn" else GRADIENTS_PER_POINT
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
        """Factorise the matrix, or use the cached factorisation.

        Raises:
            MemoryBudgetError: When the matrix does not fit.
            NotPositiveDefinite: When data and decay do not determine every parameter.
        """
        gram = work.gram(self.engine)
        soft = find_softest_direction(work, curvature, against_data=True, preconditioner=gram)
        fallback = self.fallback(work, curvature, gram, soft)
        # The Hessian of a linear model is its Gauss-Newton matrix.
        if (curvature == "ggn" or work.problem.linear) and gram.exact:
            return PrimalGaussNewton(work.problem, gram, work.scale(), fallback, self.block)
        return Corrected.make(gram, fallback, soft, self)


@dataclass(frozen=True)
class PrimalGaussNewton:
    """``P^-1`` through its p x p factorisation.

    Attributes:
        problem: The training problem.
        gram: The factorisation.
        scale: The unit of each parameter.
        fallback: Solver for rows in which the factorisation is not accurate enough.
        block: Rows per product when rows are verified one by one.
        name: The solver's name in results.
    """

    problem: Problem
    gram: Gram = field(repr=False)
    scale: Array = field(repr=False)
    fallback: Preconditioned = field(repr=False)
    block: int
    name: str = "primal"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row, with iterative refinement by products of the framework."""
        rows, finite = finite_rows(self.problem, g)
        if not finite.all():
            return self.fallback.solve(g)
        operator = Operator(self.problem, "ggn")
        z = self.gram.solve_implicit(rows)
        h = self.gram.lift(z)
        size = np.sqrt(np.abs(z.energy))
        for step in range(1 + MAX_REFINEMENTS):
            r = g - operator(self.problem.native(h))
            correction = self.gram.solve_implicit(self.problem.numpy(r))
            tolerance = DIRECT_RTOL if step < MAX_REFINEMENTS else ACCEPTED_ERROR
            if np.all(correction.size <= tolerance * size):
                residual = status_and_residual(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)[1]
                status = np.full(len(h), Status.CONVERGED.value)
                return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + step))
            h = h + self.gram.lift(correction)
        return self.fallback.solve(g)

    def solve_together(self, g: Array) -> Solution:
        """Solve for many rows, verified together by one random combination; one by one if that fails."""
        found, good = self._solve_and_verify(g)
        if not good.all():
            return self.solve(g)
        return Solution(self.problem.native(found.image[:, 0]), found.status, found.residual, found.steps)

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the scalars that intervals need, by p x p algebra."""
        found, good = self._solve_and_verify(g)
        return with_fallback(self.gram.norms(found, sigma), good, g, partial(self.fallback.norms, sigma=sigma))

    def respond(self, g: Array) -> Response:
        """Return the images of the solutions over the training rows."""
        found, good = self._solve_and_verify(g)
        return with_fallback(self.gram.response(found), good, g, self.fallback.respond)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Function from ``g`` to ``L^-1 g``, (k, p), with ``P = L L'``."""
        return self.gram.half

    def _solve_and_verify(self, g: Array) -> tuple[Response, np.ndarray]:
        """Solve, and verify one random combination of the rows; each row if that fails.

        Returns:
            The response, with h for its images, and which of its rows are good, (k,) of bool.
        """
        rows, finite = finite_rows(self.problem, g)
        z = self.gram.solve_implicit(rows)
        answer = Correction.direct(self.gram, z)
        weights = error_weights(self.gram, answer)
        signs = random_combination(weights, answer.image)
        error = self._errors((signs @ rows)[None], z.combined(signs))
        if error[0] <= ACCEPTED_ERROR:
            return verified_response(answer, finite, error), np.ones(len(rows), dtype=bool)
        errors = []
        for start in range(0, len(rows), self.block):
            at = np.arange(start, min(start + self.block, len(rows)))
            errors.append(self._errors(weights[at, None] * rows[at], z.take(at).times(weights[at])))
        error = np.concatenate(errors)
        return verified_response(answer, finite, error), error <= ACCEPTED_ERROR

    def _errors(self, g: np.ndarray, z: GramSolution) -> np.ndarray:
        """Return a bound on the error of ``s'J h`` in each row, (k,): ``sqrt(r'P^-1 r)`` with ``r = g - P h``."""
        h = self.problem.native(self.gram.lift(z))
        r = self.problem.native(g) - Operator(self.problem, "ggn")(h)
        found: np.ndarray = self.gram.solve_implicit(self.problem.numpy(r)).size
        return found
