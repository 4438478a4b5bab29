"""Preconditioned conjugate gradients: the options and the two halves of one pure step on a block of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from vhat.checks import check_count, check_tolerance
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.solvers.cost import IMAGES, Cost, Work
from vhat.linalg.solvers.interface import Prepared
from vhat.linalg.solvers.softest_direction import find_soft
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["CG", "descend", "redirect"]

_STEPS = 200
"""Steps that a row is planned to take; ill-conditioned problems take more."""
_VECTORS = 28
"""Of length p for each row that is iterated: those of the iteration, old and new, and those within a product."""


@dataclass(frozen=True)
class CG:
    """Conjugate gradients with Hessian-vector products, preconditioned by the Gauss-Newton diagonal.

    Attributes:
        rtol: A row stops when its residual, in the metric of the preconditioner, has fallen by this factor.
        max_steps: Iterations after which a row is given up as ``not converged``.
        restarts: How often a row is taken up again when its true residual turns out above ``rtol``.
        block: How many right-hand sides are iterated together.

    Examples:
        >>> CG(rtol=1e-6).max_steps
        5000
        >>> CG(max_steps=0)
        Traceback (most recent call last):
        vhat.errors.InputError: max_steps=0 is not a whole number of at least 1.
    """

    rtol: float = 1e-8
    max_steps: int = 5000
    restarts: int = 2
    block: int = 64

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol)
        check_count("max_steps", self.max_steps, least=1)
        check_count("restarts", self.restarts)
        check_count("block", self.block, least=1)

    @property
    def name(self) -> str:
        """The name that results carry."""
        return "cg"

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: no."""
        return False

    def cost(self, problem: Problem, curvature: str) -> Cost:  # noqa: ARG002  (a product costs about the same)
        """Return what it takes: two gradients a step."""
        return Cost(
            setup=Work(),
            each=Work(gradients=2.0 * min(_STEPS, problem.p)),
            fixed=0,
            held=8 * (3 * problem.p + IMAGES * problem.n * problem.outputs),
            iterated=8 * _VECTORS * problem.p,
            block=self.block,
        )

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:  # noqa: ARG002  (one for both)
        """Return the unit-free scale."""
        return Jacobi(work.scale())

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Return a solver that iterates on this problem."""
        from vhat.linalg.solvers.cg_loop import Iteration

        return Iteration(self, work.problem, curvature, Jacobi(work.scale()), find_soft(work, curvature))


def descend(x: Array, r: Array, q: Array, Aq: Array, rho: Array, active: Array) -> tuple[Array, Array, Array]:
    """Move along ``q`` to the minimum of the quadratic; rows that are not active stand still.

    Args:
        x: Iterates (k, p).
        r: Residuals (k, p).
        q: Search directions (k, p).
        Aq: ``A q``.
        rho: ``r' M^-1 r``, (k, 1).
        active: One for rows that still move, zero for the rest, (k, 1).

    Returns:
        New x, new r, and the curvature ``q'Aq`` (k, 1); where it is not positive the row did not move.
    """
    xp = array_namespace(x)
    curvature = xp.sum(q * Aq, axis=1, keepdims=True)
    downhill = curvature > 0
    step = xp.where(downhill, rho / xp.where(downhill, curvature, xp.ones_like(curvature)), xp.zeros_like(rho))
    step = step * active
    return x + step * q, r - step * Aq, curvature


def redirect(r: Array, z: Array, q: Array, rho: Array) -> tuple[Array, Array]:
    """Make the next direction conjugate: ``q <- z + (rho_new / rho) q`` with ``z = M^-1 r``.

    Returns:
        The new direction and ``rho_new = r'z``, (k, 1).
    """
    xp = array_namespace(r)
    rho_new = xp.sum(r * z, axis=1, keepdims=True)
    positive = rho > 0
    beta = xp.where(positive, rho_new / xp.where(positive, rho, xp.ones_like(rho)), xp.zeros_like(rho))
    return z + beta * q, rho_new
