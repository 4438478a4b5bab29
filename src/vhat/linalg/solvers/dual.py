"""Every test point through one n x n factorisation: Gauss-Newton directly, the exact Hessian in a few corrections.

In single precision the factorisation takes half of the memory, and answers are refined against blocks of the kernel
that are computed again in double precision (:mod:`vhat.linalg.solvers.single_kernel`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vhat.checks import check_choice
from vhat.errors import ConditioningWarning, outside
from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Metric
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
from vhat.linalg.solvers.cost import Cost, Work, points_together
from vhat.linalg.solvers.factorised import FactorMetric
from vhat.linalg.solvers.interface import FromImages, Prepared, Response, Solution, Status, metric_norm
from vhat.linalg.solvers.jacobian_factors import find_structure
from vhat.linalg.solvers.jacobian_svd import Orthogonal
from vhat.linalg.solvers.kernel import Kernel, Seen, fitting_rows, kernel_bytes
from vhat.linalg.solvers.nystrom import Nystrom
from vhat.linalg.solvers.preconditioned_cg import Preconditioned, judged
from vhat.linalg.solvers.single_kernel import (
    SingleKernel,
    fitting_rows_single,
    point_bytes,
    points_refined,
    single_bytes,
)
from vhat.linalg.solvers.softest_direction import find_soft
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["ROUNDED", "Dual", "GaussNewton"]

_EPS = float(np.finfo(float).eps)
_DIRECT = 1e-8
"""Relative error of a direct solution, in the metric of P, to which it is refined."""
_REFINEMENTS = 2
"""Of a direct solution: each costs one product, and takes off what rounding in the kernel has left."""
ROUNDED = 1e-5
"""Relative error of a Gauss-Newton answer above which conjugate gradients take over. A decay 1e-10 times the largest
curvature leaves an error of 1e-6 to any solver in double precision, for the derivatives themselves are rounded."""
_SQUARED = 1e-3
"""Rounding in the kernel beside the 1 that is added to it, above which neither it nor a solver that multiplies with P
can be relied on: both square the Jacobian."""
_LOST = 1e8
"""By how much rounding may be magnified in ``g'h`` before it is summed up from what is positive."""
_GRADIENTS = 4.0
"""Gradients of the loss for one point under the exact Hessian; a nearly singular Hessian takes more."""
_GRADIENTS_GGN = 0.3
"""The same under Gauss-Newton: the gradient of the point, and its share of the check."""
_VECTORS = 12
"""Of length p for each row that is corrected."""
_IMAGES = 8
"""Of n numbers an output for each row that is corrected."""
_SETUP_GRADIENTS = 4.0
"""Gradients of the loss before the first point, in single precision: the compressed rows, and products that verify."""
_REFINED_TWICE = 2.0
"""Products with the kernel that it commonly takes to refine the answers of many points together."""


@dataclass(frozen=True)
class Dual(CorrectedSolver):
    """Factorise the n x n kernel ``J lam^-1 J'`` once; it answers Gauss-Newton, and preconditions the exact Hessian.

    Attributes:
        rtol: A row of the exact Hessian stops when the estimated relative error of ``sqrt(V)`` is below this.
        max_steps: Corrections, at most 200, after which a row is left to conjugate gradients without the factorisation.
        block: How many right-hand sides are corrected together.
        precision: ``"double"``, or ``"single"`` for a factorisation in float32, of half the size. Answers are refined
            to ``rtol`` of ``sqrt(V)`` against the kernel in double precision, whose blocks are computed again; where
            the kernel is too ill-conditioned for that, :class:`vhat.Nystrom` takes over, with a warning.

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
        """The name that results carry."""
        return "dual, single precision" if self.precision == "single" else "dual"

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return what it takes: the kernel, then a triangular solve and, for the exact Hessian, corrections a row."""
        if self.precision == "single":
            return self._cost_in_single(problem, curvature)
        N = problem.n * problem.outputs
        structure = find_structure(problem)
        setup = Work(products=float(N) ** 2 * structure.numbers + float(N) ** 3 / 3)
        each = Work(_GRADIENTS_GGN if curvature == "ggn" else _GRADIENTS, products=2.0 * float(N) ** 2)
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
        N = problem.n * problem.outputs
        structure = find_structure(problem)
        blocks = float(N) ** 2 * structure.numbers
        # a flop in single precision takes half the time
        setup = Work(_SETUP_GRADIENTS, products=(blocks + float(N) ** 3 / 3) / 2)
        solves = (1 + _REFINED_TWICE) * 2.0 * float(N) ** 2
        fixed = single_bytes(problem, structure)
        remedy = (
            f"That is enough for about {fitting_rows_single(problem, structure):,} rows. Use solver='auto', which "
            "takes what fits, or raise memory=."
        )
        if curvature == "ggn":
            points = points_refined(problem, structure)
            # the blocks are computed again for each set of points; a point itself is compressed like a training row
            each = Work(products=solves + 2.0 * N * structure.numbers + _REFINED_TWICE * blocks / points)
            return Cost(setup, each, fixed, held=point_bytes(problem), remedy=remedy, points=points)
        # each correction is refined as well, through the space of parameters
        each = Work(_GRADIENTS, products=solves + _GRADIENTS * _REFINED_TWICE * 4.0 * N * problem.p)
        iterated = 8 * (_VECTORS * problem.p + _IMAGES * N)
        return Cost(setup, each, fixed, 8 * 3 * problem.p, iterated, self._block_in_single(problem), remedy)

    def _block_in_single(self, problem: Problem) -> int:
        """Return how many right-hand sides are corrected together, of those that fit beside the kernel."""
        held = 8 * 3 * problem.p * points_together(problem) * problem.outputs
        left = problem.memory - single_bytes(problem, find_structure(problem)) - held
        iterated = 8 * (_VECTORS * problem.p + _IMAGES * problem.n * problem.outputs)
        return int(max(1, min(self.block, left // iterated)))

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:
        """Return the metric of the Gauss-Newton matrix."""
        if self.precision == "double":
            return FactorMetric(work.kernel())
        kernel = self._single(work)
        return Nystrom().metric(work, curvature) if kernel is None else FactorMetric(kernel)

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Factorise, or take the factorisation that is at hand.

        Raises:
            MemoryBudgetError: When the kernel does not fit.
            NotPositiveDefinite: When parameters without decay are not determined by the data.
        """
        if self.precision == "single":
            return self._prepare_in_single(work, curvature)
        problem, kernel = work.problem, work.kernel()
        soft = find_soft(work, curvature, against_data=True, measure=kernel)
        careful = self.careful(work, curvature, kernel, soft)
        if kernel.root.hides(problem.loss_derivatives.cross):
            return careful
        if curvature == "ggn" and kernel.exact:
            hopeless = not kernel.structure.free.size and _EPS * float(np.sum(kernel.diagonal)) > _SQUARED
            if hopeless and Orthogonal.fits(kernel):
                return Orthogonal(kernel)
            return GaussNewton(problem, kernel, work.scale(), None if hopeless else careful, self.block)
        return Corrected.make(kernel, careful, soft, self)

    def _prepare_in_single(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        from vhat.linalg.solvers.refined_gauss_newton import RefinedGaussNewton

        kernel = self._single(work)
        if kernel is None:
            return Nystrom().prepare(work, curvature)
        options = replace(self, block=self._block_in_single(work.problem))
        soft = find_soft(work, curvature, against_data=True, measure=kernel)
        careful = options.careful(work, curvature, kernel, soft)
        if kernel.root.hides(work.problem.loss_derivatives.cross):
            return careful
        if curvature == "ggn" and kernel.exact:
            return RefinedGaussNewton(work.problem, kernel, work.scale(), careful, options.block, self.name, self.rtol)
        return Corrected.make(kernel, careful, soft, options)

    def _single(self, work: SolverWorkspace) -> SingleKernel | None:
        """Return the kernel in single precision; None, with a warning, where that cannot hold it."""
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


@dataclass(frozen=True)
class GaussNewton(FromImages):
    """``P^-1`` through the kernel; a response needs no vector of length p but the right-hand side.

    Attributes:
        problem: The training problem.
        kernel: The factorisation.
        scale: The unit of each parameter.
        careful: What answers rows that the kernel has lost; None where nothing would.
        block: How many rows are lifted to the space of parameters together.
        name: Of the solver that made it.
    """

    problem: Problem
    kernel: Kernel = field(repr=False)
    scale: Array = field(repr=False)
    careful: Preconditioned | None = field(repr=False)
    block: int
    name: str = "dual"

    def solve(self, g: Array) -> Solution:
        """Solve ``P h = g`` for each row; where the kernel has lost digits it is a preconditioner and no more."""
        rows, finite = rows_and_finite(self.problem, g)
        if self.careful is not None and not finite.all():
            return self.careful.solve(g)
        operator, seen = Operator(self.problem, "ggn"), self.kernel.look(rows)
        h, size = self.kernel.lift(seen), np.sqrt(np.abs(seen.energy))
        for step in range(1 + _REFINEMENTS):
            r = g - operator(self.problem.native(h))
            left = self.kernel.look(self.problem.numpy(r))
            enough = _DIRECT if step < _REFINEMENTS else ROUNDED
            if np.all(left.size <= enough * size):
                residual = judged(self.problem, r, metric_norm(self.problem, g, self.scale), self.scale)[1]
                status = np.full(len(h), Status.CONVERGED.value)
                return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + step))
            h = h + self.kernel.lift(left)
        if self.careful is not None:
            return self.careful.solve(g)
        status = np.where(finite, Status.NOT_CONVERGED.value, Status.NOT_FINITE.value)
        residual = np.divide(left.size, size, out=np.zeros_like(size), where=size > 0)
        return Solution(self.problem.native(h), status, residual, np.full(len(h), 1 + _REFINEMENTS))

    def respond(self, g: Array) -> Response:
        """Answer from the data's side; one random combination of the rows is verified by the front end."""
        rows, finite = rows_and_finite(self.problem, g)
        seen = self._settled(self.kernel.look(rows, g if finite.all() else None))
        answer = Correction.none(self.kernel, seen)
        weights = weights_of(self.kernel, answer)
        together = combination(weights, answer.image)
        error = self._errors((together @ rows)[None], seen.combined(together))
        if error[0] <= ROUNDED:
            return verified(answer, finite, error)
        parts = self._parts(np.arange(len(rows)))
        alone = [self._errors(weights[at, None] * rows[at], seen.take(at).times(weights[at])) for at in parts]
        error = np.concatenate(alone)
        careful = None if self.careful is None else self.careful.respond
        return finished(verified(answer, finite, error), error <= ROUNDED, g, careful)

    def _parts(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Cut rows into as many as are lifted to the space of parameters together."""
        return (rows[start : start + self.block] for start in range(0, len(rows), self.block))

    def _settled(self, seen: Seen) -> Seen:
        """Return the same with ``g'h = |s'J h|^2 + h'Lam h`` where as a difference it has lost digits."""
        energy, kernel = seen.energy.copy(), self.kernel
        for rows in self._parts(np.flatnonzero(seen.lost > _LOST)):
            part = seen.take(rows)
            held, pulled = kernel.root.times(part.image), kernel.root_decay * kernel.lift(part)
            energy[rows] = np.sum(held**2, axis=(1, 2)) + np.sum(pulled**2, axis=1)
        return replace(seen, energy=energy)

    def _errors(self, g: np.ndarray, seen: Seen) -> np.ndarray:
        """Return how far ``s'J h`` of each row is off, (k,), by derivatives of the front end that the kernel never saw.

        ``u = s'J P^-1 g`` is right if ``h = Lam^-1 (g - J's u)`` has ``u`` for its image, and ``s'J h - u = B d`` for
        ``u + d`` that is. The residual of h in the space of parameters would tell less: a small decay magnifies what
        rounding leaves of h in directions that no row sees, and V does not see them either.
        """
        problem, kernel, free = self.problem, self.kernel, self.kernel.structure.free
        rest = g - problem.numpy(problem.vjp(seen.pushed.reshape(seen.image.shape)))
        h = rest * kernel.inverse_root**2
        h[:, free] = seen.free
        r = np.zeros_like(rest)
        r[:, free] = rest[:, free]
        apart = problem.jvp(problem.native(h)) - seen.image
        d = kernel.look(r, cross=apart.reshape(len(g), -1)).image
        return kernel.lengths(d)
