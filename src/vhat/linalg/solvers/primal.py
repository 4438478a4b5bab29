"""Solve through one p x p factorisation, for any number of training rows.

Gauss-Newton is solved directly, the exact Hessian with a few corrections per point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Metric
from vhat.linalg.solvers.cluster import check_engine
from vhat.linalg.solvers.corrected import GRADIENTS_PER_POINT, Corrected, CorrectedSolver
from vhat.linalg.solvers.cost import Cost, Work
from vhat.linalg.solvers.direct_gauss_newton import DirectGaussNewton
from vhat.linalg.solvers.factorised import FactorMetric
from vhat.linalg.solvers.gram import Gram, GramSolution, gram_bytes, gram_flops
from vhat.linalg.solvers.interface import Prepared, Solution
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
class PrimalGaussNewton(DirectGaussNewton):
    """``P^-1`` through its p x p factorisation.

    Attributes:
        factor: The p x p matrix, factorised.
    """

    factor: Gram = field(repr=False)
    name: str = "primal"

    def solve_together(self, g: Array) -> Solution:
        """Solve for many rows, verified together by one random combination; one by one if that fails."""
        found, good = self._solve_and_verify(g)
        if not good.all():
            return self.solve(g)
        return Solution(self.problem.native(found.image[:, 0]), found.status, found.residual, found.steps)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Function from ``g`` to ``L^-1 g``, (k, p), with ``P = L L'``."""
        return self.factor.half

    def _errors(self, g: np.ndarray, z: GramSolution) -> np.ndarray:
        """Return a bound on the error of ``s'J h`` in each row, (k,): ``sqrt(r'P^-1 r)`` with ``r = g - P h``."""
        h = self.problem.native(self.factor.lift(z))
        r = self.problem.native(g) - Operator(self.problem, "ggn")(h)
        found: np.ndarray = self.factor.solve_implicit(self.problem.numpy(r)).size
        return found
