"""Conjugate gradients preconditioned by a sample of the training rows, for problems whose own kernel does not fit.

The preconditioner is the Gauss-Newton matrix of m randomly drawn rows (:mod:`vhat.linalg.solvers.nystrom_sample`),
solved exactly through its m x m kernel. The more rows, the better it approximates the matrix of all rows. It only
changes the number of iterations: every row is verified by its residual under all the data.

The alternative was a randomised sketch of the Gauss-Newton matrix, of rank r (Frangella, Tropp and Udell, 2023). On one
core, d = 10, n = 10,000, with steps and seconds for each point after the set-up:

    problem                          plain      rows                          sketch
    1024 ReLU, lam 1e-3, Hessian     802, 58 s  3700: 42, 3.4 s, set-up 4 s   203: 47, 3.4 s, set-up 17 s
    136 x 136 tanh, lam 1e-4, GGN    -          5000: 42, 4.1 s, set-up 5 s   256: 41, 3.1 s, set-up 17 s
    the same, n = 20,000             -          6754: 40, 7.3 s, set-up 8 s   256: 41, 5.5 s, set-up 35 s

The sketch needs a tenth of the memory (in 20 MB: 47 steps at rank 203, against 119 with 666 rows) and is up to a
quarter faster per point. Its set-up takes r products with all the data, which pays off from about fifteen points. The
sample of rows is faster for fewer points, its set-up costs a few per cent of the sketch's, and it allows losses with
negative curvature weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vhat.checks import check_count, check_tolerance
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.solvers.cg import CG
from vhat.linalg.solvers.cost import IMAGES, Cost, Work
from vhat.linalg.solvers.factorised import FactorMetric
from vhat.linalg.solvers.jacobian_factors import find_structure
from vhat.linalg.solvers.kernel import Kernel
from vhat.linalg.solvers.nystrom_sample import affordable_rows, most_rows, sample_bytes, sample_flops, sample_kernel
from vhat.linalg.solvers.preconditioned_cg import Preconditioned
from vhat.linalg.solvers.softest_direction import find_softest_direction
from vhat.models.problem import Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["Nystrom"]

_GRADIENTS = 60.0
"""Cost per point under the exact Hessian, in gradients of the loss (about 40 CG steps in a block)."""
_GRADIENTS_GGN = 40.0
"""Cost per point under Gauss-Newton, whose products need no second derivative."""
_VECTORS = 32
"""Vectors of length p per row: those of conjugate gradients and those of solves with the kernel of the sample."""
_VECTORS_SHARE = 0.4
"""Share of the memory budget for these vectors."""


@dataclass(frozen=True)
class Nystrom:
    """Precondition conjugate gradients by a random sample of the training rows: for more rows than :class:`vhat.Dual`.

    The rows are sampled as in Nystrom's method for kernels. Their Gauss-Newton matrix, factorised in the space of the
    sample, preconditions conjugate gradients on all the data. The sample changes the number of steps, not the solution.

    Attributes:
        rows: Size of the sample; None for as many rows as fit into 30% of the memory budget and reduce the total cost.
        rtol: Relative residual, in the norm of the preconditioner, at which a row stops.
        max_steps: Iterations after which a row is passed to plain conjugate gradients.
        block: Right-hand sides per block.
        seed: Seed of the sample.

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
        """The solver's name in results."""
        return "nystrom"

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: no."""
        return False

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return the cost: the kernel of the sample, then about forty steps per row."""
        rows = self.sampled_rows(problem)
        numbers = find_structure(problem).numbers
        return Cost(
            setup=Work(products=sample_flops(problem, rows, numbers)),
            each=Work(_GRADIENTS_GGN if curvature == "ggn" else _GRADIENTS),
            fixed=sample_bytes(problem, rows, numbers),
            held=8 * (3 * problem.p + IMAGES * problem.n * problem.outputs),
            iterated=8 * _VECTORS * problem.p,
            block=nystrom_block(problem, self.block),
            remedy=f"That is enough for {most_rows(problem, numbers, problem.memory):,} rows: ask for fewer rows, use "
            "solver=vhat.CG(), or raise memory=.",
        )

    def sampled_rows(self, problem: Problem) -> int:
        """Return the size of the sample."""
        if self.rows is not None:
            return min(self.rows, problem.n)
        return affordable_rows(problem, find_structure(problem).numbers)

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:
        """Return the metric of the sample."""
        if curvature == "ggn":  # positive definite by construction: no eigenvalue has to be computed with a sample
            return Jacobi(work.scale())
        return FactorMetric(self.sample(work))

    def sample(self, work: SolverWorkspace) -> Kernel:
        """Return the kernel of the sample, which serves both curvatures.

        Raises:
            MemoryBudgetError: When the kernel of that many rows does not fit.
        """
        return work.keep(("sample", self), lambda: sample_kernel(work.problem, work.scale(), self.rows, self.seed))

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Preconditioned:
        """Draw the sample and factorise its kernel, or use the cached one.

        Raises:
            MemoryBudgetError: When the kernel of that many rows does not fit.
        """
        problem = work.problem
        kernel = self.sample(work)
        options = CG(rtol=self.rtol, max_steps=self.max_steps, block=nystrom_block(problem, self.block))
        soft = find_softest_direction(work, curvature, against_data=True)
        return Preconditioned(options, problem, curvature, kernel, work.scale(), self.name, soft)


def nystrom_block(problem: Problem, most: int) -> int:
    """Return how many right-hand sides are iterated together within the memory budget."""
    return max(1, min(most, int(_VECTORS_SHARE * problem.memory // (8 * _VECTORS * problem.p))))
