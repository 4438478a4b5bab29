"""Solve through one n x n factorisation: Gauss-Newton directly, the exact Hessian with a few corrections per point.

In single precision the factorisation takes half the memory. Solutions are then refined with blocks of the kernel
recomputed in double precision (:mod:`vhat.linalg.solvers.single_kernel`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vhat.checks import check_choice
from vhat.errors import ConditioningWarning, outside
from vhat.linalg.curvature.inner_product import Metric
from vhat.linalg.solvers.corrected import GRADIENTS_PER_POINT, Corrected, CorrectedSolver
from vhat.linalg.solvers.cost import Cost, Work, points_together
from vhat.linalg.solvers.dual_gauss_newton import GaussNewton
from vhat.linalg.solvers.factorised import FactorMetric
from vhat.linalg.solvers.interface import Prepared
from vhat.linalg.solvers.jacobian_factors import find_structure
from vhat.linalg.solvers.jacobian_svd import JacobianSVD
from vhat.linalg.solvers.kernel import fitting_rows, kernel_bytes
from vhat.linalg.solvers.nystrom import Nystrom
from vhat.linalg.solvers.refined_gauss_newton import RefinedGaussNewton
from vhat.linalg.solvers.single_kernel import (
    SingleKernel,
    fitting_rows_single,
    point_bytes,
    points_refined,
    single_bytes,
)
from vhat.linalg.solvers.softest_direction import find_softest_direction
from vhat.models.problem import Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["Dual"]

_EPS = float(np.finfo(float).eps)
_MAX_KERNEL_ROUNDING = 1e-3
"""Rounding error of the kernel, relative to the identity added to it, above which the kernel is not accurate enough.
Neither is any solver that multiplies with P, because both square the Jacobian."""
_GRADIENTS_GGN = 0.3
"""Planned cost per point under Gauss-Newton, in gradients of the loss: its own gradient, and its share of the check."""
_VECTORS = 12
"""Vectors of length p per row that is corrected."""
_IMAGES = 8
"""Vectors of N numbers per row that is corrected."""
_SETUP_GRADIENTS = 4.0
"""Cost of the set-up in single precision, in gradients of the loss: the compressed rows and the check."""
_PRODUCTS_REFINED = 2.0
"""Products with the kernel usually needed to refine the solutions of many points together."""


@dataclass(frozen=True)
class Dual(CorrectedSolver):
    """Factorise the n x n kernel ``J lam^-1 J'`` once: solves Gauss-Newton, and preconditions the exact Hessian.

    Attributes:
        rtol: A row of the exact Hessian stops when the estimated relative error of ``sqrt(V)`` is below this.
        max_steps: Corrections, at most 200, after which a row is passed to plain conjugate gradients.
        block: How many right-hand sides are corrected together.
        precision: ``"double"``, or ``"single"`` for a factorisation in float32, which takes half the memory. Solutions
            are refined to a relative error ``rtol`` of ``sqrt(V)`` with blocks of the kernel recomputed in double
            precision. If the kernel is too ill-conditioned for that, :class:`vhat.Nystrom` is used, with a warning.

    Examples:
        >>> Dual(precision="single").name
        'dual, single precision'
        >>> Dual(precision="half")
        Traceback (most recent call last):
        vhat.errors.InputError: precision='half' is not known. Use one of 'double', 'single'.
    """

    precision: str = "double"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("precision", self.precision, ("double", "single"))

    @property
    def name(self) -> str:
        """The solver's name in results."""
        return "dual, single precision" if self.precision == "single" else "dual"

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return the cost: the kernel, then per row two triangular solves, and corrections for the exact Hessian."""
        if self.precision == "single":
            return self._cost_in_single(problem, curvature)
        N = problem.n * problem.outputs
        structure = find_structure(problem)
        setup = Work(products=float(N) ** 2 * structure.numbers + float(N) ** 3 / 3)
        each = Work(_GRADIENTS_GGN if curvature == "ggn" else GRADIENTS_PER_POINT, products=2.0 * float(N) ** 2)
        return Cost(
            setup,
            each,
            fixed=kernel_bytes(problem, structure),
            held=8 * 3 * problem.p,
            iterated=8 * (_VECTORS * problem.p + _IMAGES * N),
            block=self.block,
            remedy=f"That is enough for about {fitting_rows(problem, structure):,} rows. Use solver='auto', which "
            "takes what fits, or raise memory=.",
        )

    def _cost_in_single(self, problem: Problem, curvature: str) -> Cost:
        """Return the cost in single precision."""
        N = problem.n * problem.outputs
        structure = find_structure(problem)
        blocks = float(N) ** 2 * structure.numbers
        # A flop in single precision takes half the time.
        setup = Work(_SETUP_GRADIENTS, products=(blocks + float(N) ** 3 / 3) / 2)
        solves = (1 + _PRODUCTS_REFINED) * 2.0 * float(N) ** 2
        fixed = single_bytes(problem, structure)
        remedy = (
            f"That is enough for about {fitting_rows_single(problem, structure):,} rows. Use solver='auto', which "
            "takes what fits, or raise memory=."
        )
        if curvature == "ggn":
            points = points_refined(problem, structure)
            # Each set of points recomputes the blocks. A point itself is compressed like a training row.
            each = Work(products=solves + 2.0 * N * structure.numbers + _PRODUCTS_REFINED * blocks / points)
            return Cost(setup, each, fixed, held=point_bytes(problem), remedy=remedy, points=points)
        # Each correction is refined too, by products through the space of parameters.
        each = Work(
            GRADIENTS_PER_POINT, products=solves + GRADIENTS_PER_POINT * _PRODUCTS_REFINED * 4.0 * N * problem.p
        )
        return Cost(
            setup,
            each,
            fixed,
            held=8 * 3 * problem.p,
            iterated=8 * (_VECTORS * problem.p + _IMAGES * N),
            block=self._block_in_single(problem),
            remedy=remedy,
        )

    def _block_in_single(self, problem: Problem) -> int:
        """Return how many right-hand sides are corrected together within the memory that the kernel leaves."""
        held = 8 * 3 * problem.p * points_together(problem) * problem.outputs
        remaining = problem.memory - single_bytes(problem, find_structure(problem)) - held
        iterated = 8 * (_VECTORS * problem.p + _IMAGES * problem.n * problem.outputs)
        return int(max(1, min(self.block, remaining // iterated)))

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:
        """Return the metric of the Gauss-Newton matrix."""
        if self.precision == "double":
            return FactorMetric(work.kernel())
        kernel = self._single_kernel(work)
        if kernel is None:
            return Nystrom().metric(work, curvature)
        return FactorMetric(kernel)

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Factorise the kernel, or use the cached factorisation.

        Raises:
            MemoryBudgetError: When the kernel does not fit.
            NotPositiveDefinite: When the data do not determine the parameters without decay.
        """
        if self.precision == "single":
            return self._prepare_in_single(work, curvature)
        problem = work.problem
        kernel = work.kernel()
        soft = find_softest_direction(work, curvature, against_data=True, preconditioner=kernel)
        fallback = self.fallback(work, curvature, kernel, soft)
        if kernel.root.vanishes_where(problem.loss_derivatives.cross):
            return fallback
        if not (curvature == "ggn" and kernel.exact):
            return Corrected.make(kernel, fallback, soft, self)
        rounding = _EPS * float(np.sum(kernel.diagonal))
        if kernel.structure.free.size or not rounding > _MAX_KERNEL_ROUNDING:
            return GaussNewton(problem, kernel, work.scale(), fallback, self.block)
        # The kernel has lost too many digits. Conjugate gradients would lose as many, and are no fallback.
        if JacobianSVD.fits(kernel):
            return JacobianSVD(kernel)
        return GaussNewton(problem, kernel, work.scale(), None, self.block)

    def _prepare_in_single(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Prepare the solver with the kernel in single precision, or Nystrom if that is not accurate enough."""
        kernel = self._single_kernel(work)
        if kernel is None:
            return Nystrom().prepare(work, curvature)
        options = replace(self, block=self._block_in_single(work.problem))
        soft = find_softest_direction(work, curvature, against_data=True, preconditioner=kernel)
        fallback = options.fallback(work, curvature, kernel, soft)
        if kernel.root.vanishes_where(work.problem.loss_derivatives.cross):
            return fallback
        if curvature == "ggn" and kernel.exact:
            return RefinedGaussNewton(work.problem, kernel, work.scale(), fallback, options.block, self.name, self.rtol)
        return Corrected.make(kernel, fallback, soft, options)

    def _single_kernel(self, work: SolverWorkspace) -> SingleKernel | None:
        """Return the kernel in single precision; None, with a warning, if that is not accurate enough."""
        found = work.single_kernel()
        if isinstance(found, SingleKernel):
            return found
        if work.first("warned single precision"):
            warnings.warn(
                f"{self!r} could not be used: {found}. Conjugate gradients with a sample of the rows, vhat.Nystrom(), "
                "take its place. Raise weight_decay, or give the memory that vhat.Dual() needs.",
                ConditioningWarning,
                stacklevel=outside(),
            )
        return None
