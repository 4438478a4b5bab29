"""Minimum-norm solutions for fits without weight decay that more parameters than data leave undetermined.

With ``G = C^1/2 J / sqrt(n) = U S W'`` the Gauss-Newton matrix is ``W S^2 W'``. Its pseudo-inverse acts on the span of
the training gradients alone: ``h = W S^-2 W'g`` has the least length of all that solve ``A h = W W'g``. At a fit that
interpolates, the residuals vanish and A is the Hessian. Minima then form a surface; ``h`` is how gradient descent,
which never leaves that span, moves along when a response changes. There ``g'h`` is V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from vhat.checks import check_tolerance
from vhat.errors import InputError, MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.memory import in_words
from vhat.linalg.solvers.cost import Cost, Work
from vhat.linalg.solvers.interface import FromImages, Norms, Response, Solution, Status, contract, respond_by_solving
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["MinimumNorm", "PseudoInverse"]

_COPIES = 3
"""Matrices of the size of J that a decomposition holds: the scaled J, LAPACK's own copy, the right vectors."""
_EPS = float(np.finfo(np.float64).eps)


def _bytes(problem: Problem) -> int:
    rows = problem.n * problem.outputs
    return 8 * (_COPIES * rows * problem.p + 4 * min(rows, problem.p) ** 2)


@dataclass(frozen=True)
class MinimumNorm:
    """Decompose the training Jacobian and invert the Gauss-Newton matrix on the span of the training gradients.

    For fits without weight decay whose data do not determine every parameter, above all those that interpolate. The
    length of a parameter vector depends on the units of the parameters, and so does this solution.

    Attributes:
        threshold: Singular values of the Jacobian below this share of the largest count as zero; None takes
            ``max(rows, p)`` roundings, as numpy.linalg.matrix_rank does.
        rtol: Relative error of the root of V above which a row is not called converged.
    """

    threshold: float | None = None
    rtol: float = 1e-6

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_tolerance("threshold", self.threshold)
        check_tolerance("rtol", self.rtol)

    @property
    def name(self) -> str:
        """The name that results carry."""
        return "minimum norm"

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: no."""
        return False

    @property
    def pseudo_inverse(self) -> bool:
        """Whether ``A`` may be singular: yes."""
        return True

    def cost(self, problem: Problem, curvature: str) -> Cost:  # noqa: ARG002  (there is one)
        """Return what it takes: one decomposition of the Jacobian, and two products with its basis a point."""
        rows, p = problem.n * problem.outputs, problem.p
        setup = Work(gradients=1.0, products=10.0 * rows * p * min(rows, p))
        return Cost(
            setup,
            Work(gradients=2.0, products=4.0 * min(rows, p) * p),
            fixed=_bytes(problem),
            remedy="It keeps the Jacobian of all training rows: use fewer, give weight decay, or raise memory=.",
        )

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:  # noqa: ARG002  (there is one)
        """Return the unit-free scale."""
        return Jacobi(work.scale())

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> PseudoInverse:
        """Decompose.

        Raises:
            InputError: When there is weight decay, or the exact Hessian is asked for.
            MemoryBudgetError: When some matrices of the size of the Jacobian exceed the budget.
            NotPositiveDefinite: When the loss has negative curvature in some row, or no parameter moves a prediction.
        """
        problem = work.problem
        if np.any(problem.numpy(problem.decay) != 0):
            raise InputError(
                "vhat.MinimumNorm() is for fits without weight decay: with it the minimum is one point, and "
                "solver='auto' finds it."
            )
        if curvature == "hessian" and not problem.linear:
            raise InputError("vhat.MinimumNorm() inverts the Gauss-Newton matrix: leave curvature='auto' or 'ggn'.")
        need = _bytes(problem)
        if need > problem.memory:
            raise MemoryBudgetError(
                f"vhat.MinimumNorm() needs {in_words(need)} for the Jacobian of {problem.n} rows and {problem.p} "
                f"parameters; the budget is {in_words(problem.memory)}. Use fewer rows, give weight decay, or raise "
                "memory=."
            )
        root = _curvature_root(problem)
        G = _scaled_jacobian(problem, root)
        left, sizes, right = scipy.linalg.svd(G, full_matrices=False, overwrite_a=True, check_finite=False)
        if not sizes[0] > 0:
            raise NotPositiveDefinite("no parameter moves any training prediction: there is nothing to invert.")
        share = max(G.shape) * _EPS if self.threshold is None else self.threshold
        rank = int(np.sum(sizes > share * sizes[0]))
        return PseudoInverse(
            problem, root, left[:, :rank].copy(), sizes[:rank].copy(), right[:rank].copy(), self.rtol, self.name
        )


def _curvature_root(problem: Problem) -> np.ndarray:
    """Return ``(C/n)^1/2`` of every row, (n, K) or (n, K, K), the first index that of a prediction."""
    C = problem.loss_derivatives.curvature
    if C.ndim == 2:
        _require_nonnegative(C)
        return np.sqrt(C / problem.n)
    values, vectors = np.linalg.eigh(C)
    _require_nonnegative(values)
    return np.asarray(vectors * np.sqrt(values / problem.n)[:, None, :])


def _require_nonnegative(curvature: np.ndarray) -> None:
    if np.any(curvature < 0):
        raise NotPositiveDefinite("the loss has negative curvature in some training row: its matrix has no root.")


def _scaled_jacobian(problem: Problem, root: np.ndarray) -> np.ndarray:
    """Return ``(C/n)^1/2 J``, (n K, p), made in blocks of 128 MB."""
    n, K, p = problem.n, problem.outputs, problem.p
    G = np.empty((n, K, p))
    step = max(1, 2**27 // (8 * p * K))
    for start in range(0, n, step):
        block = slice(start, min(start + step, n))
        J = problem.numpy(problem.gradients(problem.take(problem.X, block.start, block.stop))).reshape(-1, K, p)
        if root.ndim == 2:
            G[block] = J * root[block, :, None]
        else:
            G[block] = np.einsum("iap,iab->ibp", J, root[block])
    return G.reshape(n * K, p)


@dataclass(frozen=True, eq=False)
class PseudoInverse(FromImages):
    """The pseudo-inverse of the Gauss-Newton matrix: see :class:`MinimumNorm`.

    Attributes:
        problem: The training problem.
        root: ``(C/n)^1/2`` of every training row.
        left: ``U``, (n K, rank), orthonormal columns.
        sizes: ``S``, (rank,), falling.
        basis: ``W'``, (rank, p), orthonormal rows.
        rtol: Relative error of the root of V above which a row is not called converged.
        name: The name that results carry.
    """

    problem: Problem
    root: np.ndarray = field(repr=False)
    left: np.ndarray = field(repr=False)
    sizes: np.ndarray = field(repr=False)
    basis: np.ndarray = field(repr=False)
    rtol: float
    name: str

    @property
    def rank(self) -> int:
        """How many directions the training rows see."""
        return len(self.sizes)

    def solve(self, g: Array) -> Solution:
        """Solve ``A h = W W'g`` for each row of g.

        The residual compares the image ``C^1/2 J h`` of the front end's own derivatives with ``U S^-1 W'g``, relative:
        it is the error of the root of V.
        """
        rhs = self.problem.numpy(g)
        finite = np.isfinite(rhs).all(axis=1)
        along = np.where(finite[:, None], rhs, 0.0) @ self.basis.T / self.sizes
        h = self.problem.native((along / self.sizes) @ self.basis)
        image = contract(self.problem.jvp(h), self.root).reshape(len(rhs), -1)
        size = np.linalg.norm(along, axis=1)
        apart = np.linalg.norm(image - along @ self.left.T, axis=1)
        residual = np.divide(apart, size, out=np.zeros_like(size), where=size > 0)
        status = np.where(residual <= self.rtol, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        status = np.where(finite & np.isfinite(residual), status, Status.NOT_FINITE.value)
        return Solution(h, status, residual, np.ones(len(size), dtype=int))

    def respond(self, g: Array) -> Response:
        """Solve, then look at the training rows."""
        return respond_by_solving(self.problem, self.solve(g), g)

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the norms; what lies outside the span of the training gradients counts as unsupported.

        As the decay goes to zero ``g'h`` grows without bound for such a g, and ``1 - V/g'h`` goes to 1. Here ``g'h``
        holds the part in the span alone, and the share of ``|g|^2`` outside of it takes the place of that limit.
        """
        found = super().norms(g, sigma)
        rows = self.problem.numpy(g)
        with np.errstate(invalid="ignore"):  # rows that are not finite have their status
            whole = np.sum(rows**2, axis=1)
            seen = np.sum((rows @ self.basis.T) ** 2, axis=1)
        share = np.divide(seen, whole, out=np.ones_like(whole), where=whole > 0)
        # 1 - rounding is 1: a gradient in the span is supported
        share = np.where(share > 1 - self.basis.shape[1] * _EPS, 1.0, share)
        supported = found.energy * share
        return Norms(
            variance=found.variance,
            supported=supported,
            energy=found.energy,
            pull=found.pull,
            slope=found.slope,
            status=found.status,
            residual=found.residual,
            steps=found.steps,
        )

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """``g`` to ``W S^-1 W'g``, (k, p): ``g_a' A^+ g_b`` is then a plain inner product."""
        return self._half

    def _half(self, g: np.ndarray) -> np.ndarray:
        return ((g @ self.basis.T) / self.sizes) @ self.basis
