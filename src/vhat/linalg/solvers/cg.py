"""Preconditioned conjugate gradients: the options, and one step on a block of rows as two pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from vhat.checks import check_count, check_tolerance
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.solvers.cost import IMAGES, Cost, Work
from vhat.linalg.solvers.interface import Prepared
from vhat.linalg.solvers.softest_direction import find_softest_direction
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["CG", "descend", "redirect"]

_STEPS = 200
"""Planned steps per row; ill-conditioned problems take more."""
_VECTORS = 28
"""Vectors of length p per row: those of the iteration, old and new, and those within a product."""


@dataclass(frozen=True)
class CG:
    """Conjugate gradients with Hessian-vector products, preconditioned by the Gauss-Newton diagonal.

    Attributes:
        rtol: Relative residual, in the norm of the preconditioner, at which a row stops.
        max_steps: Iterations after which a row stops as ``not converged``.
        restarts: How often a row is restarted if its true residual is above ``rtol``.
        block: Right-hand sides per block.

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
        """The solver's name in results."""
        return "cg"

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: no."""
        return False

    def cost(self, problem: Problem, curvature: str) -> Cost:  # noqa: ARG002  (a product costs about the same)
        """Return the cost: two gradients of the loss per step."""
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
        """Return the iteration for this problem."""
        from vhat.linalg.solvers.cg_loop import Iteration

        return Iteration(self, work.problem, curvature, Jacobi(work.scale()), find_softest_direction(work, curvature))


def descend(x: Array, r: Array, q: Array, Aq: Array, rho: Array, active: Array) -> tuple[Array, Array, Array]:
    """Move along ``q`` to the minimum of ``h'Ah / 2 - g'h``; rows that are not active do not move.

    Args:
        x: Iterates (k, p).
        r: Residuals (k, p).
        q: Search directions (k, p).
        Aq: ``A q``.
        rho: ``r' M^-1 r``, (k, 1).
        active: One for active rows, zero for the others, (k, 1).

    Returns:
        New x, new r, and the curvature ``q'Aq`` (k, 1). A row whose curvature is not positive did not move.
    """
    xp = array_namespace(x)
    curvature = xp.sum(q * Aq, axis=1, keepdims=True)
    # Selection by `where`, with a safe divisor, because a compiled function has no branches per row.
    downhill = curvature > 0
    step = xp.where(downhill, rho / xp.where(downhill, curvature, xp.ones_like(curvature)), xp.zeros_like(rho))
    step = step * active
    return x + step * q, r - step * Aq, curvature


def redirect(r: Array, z: Array, q: Array, rho: Array) -> tuple[Array, Array]:
    """Compute the next conjugate direction: ``q <- z + (rho_new / rho) q`` with ``z = M^-1 r``.

    Returns:
        The new direction and ``rho_new = r'z``, (k, 1).
    """
    xp = array_namespace(r)
    rho_new = xp.sum(r * z, axis=1, keepdims=True)
    positive = rho > 0
    beta = xp.where(positive, rho_new / xp.where(positive, rho, xp.ones_like(rho)), xp.zeros_like(rho))
    return z + beta * q, rho_new
