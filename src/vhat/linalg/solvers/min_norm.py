"""Minimum-norm solutions for fits without weight decay and with more parameters than data.

With ``G = C^1/2 J / sqrt(n) = U S W'`` the Gauss-Newton matrix is ``A = W S^2 W'``. Its pseudo-inverse acts on the span
of the training gradients: ``h = W S^-2 W'g`` is the shortest solution of ``A h = W W'g``. At an interpolating fit the
residuals are zero and A is the Hessian. The minima then form a surface, and ``h`` is the direction in which gradient
descent, which stays in that span, moves when a response changes. In this case V is ``g'h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from vhat.checks import check_tolerance
from vhat.errors import InputError, MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.memory import in_words
from vhat.linalg.solvers.cost import Cost, Work
from vhat.linalg.solvers.curvature_root import EIGENVALUE_ROUNDING
from vhat.linalg.solvers.interface import FromImages, Norms, Response, Solution, Status, contract, respond_by_solving
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["MinimumNorm", "PseudoInverse"]

_COPIES = 3
"""Matrices of the size of J in memory during the decomposition: the scaled J, LAPACK's copy, the right vectors."""
_BLOCK_BYTES = 2**27
"""Bytes of the gradients of one block of training rows, 128 MB."""
_EPS = float(np.finfo(np.float64).eps)


def _bytes(problem: Problem) -> int:
    """Return the peak memory of the decomposition in bytes."""
    rows = problem.n * problem.outputs
    return 8 * (_COPIES * rows * problem.p + 4 * min(rows, problem.p) ** 2)


@dataclass(frozen=True)
class MinimumNorm:
    """Decompose the training Jacobian and invert the Gauss-Newton matrix on the span of the training gradients.

    For fits without weight decay whose data do not determine every parameter, above all interpolating fits. The length
    of a parameter vector depends on the units of the parameters, and so does this solution.

    Attributes:
        threshold: Singular values of the Jacobian below this share of the largest count as zero; None for
            ``max(rows, p)`` machine epsilons, as in numpy.linalg.matrix_rank.
        rtol: Relative error of the square root of V above which a row is not converged.
    """

    threshold: float | None = None
    rtol: float = 1e-6

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_tolerance("threshold", self.threshold)
        check_tolerance("rtol", self.rtol)

    @property
    def name(self) -> str:
        """The solver's name in results."""
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
        """Return the cost: one decomposition of the Jacobian, and two products with its basis per point."""
        rows = problem.n * problem.outputs
        p = problem.p
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
        """Decompose the training Jacobian.

        Raises:
            InputError: When there is weight decay, or the exact Hessian is requested.
            MemoryBudgetError: When three matrices of the size of the Jacobian exceed the budget.
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
        # G = U S W', with S decreasing; directions below the threshold are not determined by the data.
        left, sizes, right = scipy.linalg.svd(G, full_matrices=False, overwrite_a=True, check_finite=False)
        if not sizes[0] > 0:
            raise NotPositiveDefinite("no parameter moves any training prediction: there is nothing to invert.")
        threshold = max(G.shape) * _EPS if self.threshold is None else self.threshold
        rank = int(np.sum(sizes > threshold * sizes[0]))
        return PseudoInverse(
            problem=problem,
            root=root,
            left=left[:, :rank].copy(),
            sizes=sizes[:rank].copy(),
            basis=right[:rank].copy(),
            rtol=self.rtol,
            name=self.name,
        )


def _curvature_root(problem: Problem) -> np.ndarray:
    """Return ``(C/n)^1/2`` of every row, (n, K) or (n, K, K); the first output index is that of the prediction."""
    loss = problem.loss_derivatives
    C = loss.curvature / problem.n
    if C.ndim == 2:
        _require_nonnegative(C)
        return np.sqrt(C)
    # Each output in the unit in which its largest curvature is one, so that the tolerance is free of units.
    largest = loss.own_curvature.max(axis=0) / problem.n
    unit = np.sqrt(np.where(largest > 0, largest, 1.0))
    values, vectors = np.linalg.eigh(C / (unit[:, None] * unit))
    # Rounding turns a zero eigenvalue of a singular block into a tiny one of either sign. The root of a positive one
    # would be 1e-8, far above the threshold for singular values, and its direction would count as determined.
    tiny = EIGENVALUE_ROUNDING * np.abs(values).max()
    values = np.where(np.abs(values) <= tiny, 0.0, values)
    _require_nonnegative(values)
    return np.asarray(unit[:, None] * vectors * np.sqrt(values)[:, None, :])


def _require_nonnegative(curvature: np.ndarray) -> None:
    if np.any(curvature < 0):
        raise NotPositiveDefinite("the loss has negative curvature in some training row: its matrix has no root.")


def _scaled_jacobian(problem: Problem, root: np.ndarray) -> np.ndarray:
    """Return ``(C/n)^1/2 J``, (n K, p), computed in blocks of training rows."""
    n = problem.n
    K = problem.outputs
    p = problem.p
    G = np.empty((n, K, p))
    step = max(1, _BLOCK_BYTES // (8 * p * K))
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
        left: ``U``, (n K, rank), with orthonormal columns.
        sizes: ``S``, (rank,), decreasing.
        basis: ``W'``, (rank, p), with orthonormal rows.
        rtol: Relative error of the square root of V above which a row is not converged.
        name: The solver's name in results.
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
        """Dimension of the span of the training gradients."""
        return len(self.sizes)

    def solve(self, g: Array) -> Solution:
        """Solve ``A h = W W'g`` for each row of g.

        The residual is the relative difference between the image ``C^1/2 J h``, by the framework's derivatives, and
        ``U S^-1 W'g``: the relative error of the square root of V.
        """
        rhs = self.problem.numpy(g)
        finite = np.isfinite(rhs).all(axis=1)
        along = np.where(finite[:, None], rhs, 0.0) @ self.basis.T / self.sizes  # S^-1 W'g
        h = self.problem.native((along / self.sizes) @ self.basis)
        image = contract(self.problem.jvp(h), self.root).reshape(len(rhs), -1)
        size = np.linalg.norm(along, axis=1)
        difference = np.linalg.norm(image - along @ self.left.T, axis=1)
        residual = np.divide(difference, size, out=np.zeros_like(size), where=size > 0)
        status = np.where(residual <= self.rtol, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        status = np.where(finite & np.isfinite(residual), status, Status.NOT_FINITE.value)
        return Solution(h, status, residual, np.ones(len(size), dtype=int))

    def respond(self, g: Array) -> Response:
        """Solve, and return the images over the training rows."""
        return respond_by_solving(self.problem, self.solve(g), g)

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the norms; the part of g outside the span of the training gradients counts as unsupported.

        For such a g, ``g'h`` grows without bound as the decay goes to zero, and the unsupported share ``1 - V/g'h``
        goes to 1. Here ``g'h`` contains only the part in the span, and the unsupported share is defined as the share
        of ``|g|^2`` outside of it.
        """
        found = super().norms(g, sigma)
        rows = self.problem.numpy(g)
        with np.errstate(invalid="ignore"):  # rows that are not finite have their own status
            total = np.sum(rows**2, axis=1)
            in_span = np.sum((rows @ self.basis.T) ** 2, axis=1)
        share = np.divide(in_span, total, out=np.ones_like(total), where=total > 0)
        # A gradient in the span up to rounding is fully supported.
        share = np.where(share > 1 - self.basis.shape[1] * _EPS, 1.0, share)
        return replace(found, supported=found.energy * share)

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Function from ``g`` to ``W S^-1 W'g``, (k, p), so that ``g_a' A^+ g_b`` is a plain inner product."""
        return self._half

    def _half(self, g: np.ndarray) -> np.ndarray:
        return ((g @ self.basis.T) / self.sizes) @ self.basis
