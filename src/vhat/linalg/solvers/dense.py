"""Form the full matrix and factorise it once for all points: exact, for models of moderate size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from vhat.checks import check_tolerance
from vhat.errors import MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.linalg.memory import in_words
from vhat.linalg.solvers.alike_rows import Basis, make_basis, rows_alike
from vhat.linalg.solvers.cost import Cost, Work
from vhat.linalg.solvers.interface import (
    FromImages,
    Norms,
    Response,
    Solution,
    Status,
    replace_rows,
    respond_by_solving,
)
from vhat.linalg.solvers.outer_product_forms import OuterProductForms, make_forms
from vhat.models.problem import Array, Curvature, Problem
from vhat.models.protocols import Lazy

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["Dense", "Factor", "dense_bytes"]

_MAX_BASIS_RESIDUAL = 1e-9
"""Bound on the relative residual of :class:`Basis` up to which norms are computed from it, without single solves."""


def dense_bytes(p: int) -> int:
    """Return the bytes for forming and factorising a (p, p) matrix: the matrix, its scaled copy and a transpose."""
    return 3 * 8 * p * p


@dataclass(frozen=True)
class Dense:
    """Form ``A`` column by column and factorise it once.

    Attributes:
        rtol: Relative residual, in unit-free terms, above which a row is not converged. Rounding alone leaves about
            1e-16 times the condition number.
    """

    rtol: float = 1e-7

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol)

    @property
    def name(self) -> str:
        """The solver's name in results."""
        return "dense"

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: yes."""
        return True

    def cost(self, problem: Problem, curvature: str) -> Cost:  # noqa: ARG002  (both are formed by products)
        """Return the cost: p products with ``A``, one factorisation, and per point one pass over the training rows."""
        p = problem.p
        setup = Work(gradients=2.0 * p, products=p**3 / 3)
        return Cost(setup, Work(gradients=1.0, products=6.0 * p**2), fixed=dense_bytes(p))

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:  # noqa: ARG002  (the matrix is at hand)
        """Return the unit-free scale."""
        return Jacobi(work.scale())

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Factor:
        """Form the matrix and factorise it.

        Raises:
            MemoryBudgetError: When three p x p matrices exceed the budget.
            NotPositiveDefinite: When the matrix is not positive definite.
        """
        problem = work.problem
        need = dense_bytes(problem.p)
        if need > problem.memory:
            raise MemoryBudgetError(
                f"vhat.Dense() needs {in_words(need)} for p = {problem.p} parameters; the budget is "
                f"{in_words(problem.memory)}. Use solver='auto', which takes what fits, or raise memory=."
            )
        matrix = work.matrix(curvature)
        unit = problem.numpy(work.scale())
        try:
            factor = scipy.linalg.cholesky(matrix / np.outer(unit, unit), lower=True, overwrite_a=True)
        except (np.linalg.LinAlgError, ValueError) as error:
            kind = "the exact Hessian" if curvature == "hessian" else "the Gauss-Newton matrix"
            raise NotPositiveDefinite(
                f"{kind} plus weight decay is not positive definite at these parameters ({error})."
            ) from error
        basis = Lazy(lambda: make_basis(problem, matrix, factor, unit, _data_part(work)))
        forms = Lazy(lambda: make_forms(problem, basis.result))
        return Factor(problem, matrix, factor, unit, self.rtol, basis, forms)


def _data_part(work: SolverWorkspace) -> np.ndarray:
    """Return the Gauss-Newton matrix without weight decay."""
    return work.matrix("ggn") - np.diag(work.problem.numpy(work.problem.decay))


@dataclass(frozen=True)
class Factor(FromImages):
    """The factorised ``A`` of :class:`Dense`.

    Attributes:
        problem: The training problem.
        matrix: ``A``, (p, p).
        factor: Lower Cholesky factor of ``diag(1/s) A diag(1/s)``, (p, p).
        unit: The scale s, (p,).
        rtol: Relative residual above which a row is not converged.
        basis: Basis for the norms of rows with equal weights, made on first use.
        forms: The same norms from the factors of a gradient, for a network with one hidden layer; made on first use.
        name: The solver's name in results.
    """

    problem: Problem
    matrix: np.ndarray = field(repr=False)
    factor: np.ndarray = field(repr=False)
    unit: np.ndarray = field(repr=False)
    rtol: float
    basis: Lazy[Basis] = field(repr=False)
    forms: Lazy[OuterProductForms | None] = field(repr=False)
    name: str = "dense"

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the scalars that intervals need; without single solves if all training rows have equal weights."""
        if self._has_basis(sigma):
            found = self.basis.result.norms(self.problem, self.problem.numpy(g), sigma)
            if found is not None:
                return found
        return super().norms(g, sigma)

    def norms_at(self, inputs: Any, sigma: np.ndarray) -> Norms:
        """Return the norms for the predictions at checked inputs; without their gradients where that is accurate."""
        problem = self.problem
        forms = self.forms.result if self._has_basis(sigma) else None
        if forms is None:
            return self.norms(problem.gradients(inputs), sigma)
        X = inputs if problem.scaling is None else problem.scaling.inputs(inputs)
        quadratic, linear, accurate = forms.at(X)
        found = self.basis.result.norms_of_forms(problem, quadratic, linear, sigma)
        inaccurate = np.flatnonzero(~accurate)
        if inaccurate.size:
            by_gradients = self.norms(problem.gradients(inputs[inaccurate]), sigma)
            found = replace_rows(found, inaccurate, by_gradients)
        return found

    def _has_basis(self, sigma: np.ndarray) -> bool:
        """Return whether the rows have equal weights under this noise, and the basis is accurate."""
        return rows_alike(self.problem, sigma) and self.basis.result.residual <= _MAX_BASIS_RESIDUAL

    def solve(self, g: Array) -> Solution:
        """Solve for each row of g, with one step of iterative refinement."""
        rhs = self.problem.numpy(g)
        with np.errstate(over="ignore"):  # such a row is not finite
            size = np.linalg.norm(rhs / self.unit, axis=1)
        finite = np.isfinite(size)
        rhs = np.where(finite[:, None], rhs, 0.0)
        h = self._solve_once(rhs)
        h += self._solve_once(rhs - h @ self.matrix)
        norms = np.linalg.norm((rhs - h @ self.matrix) / self.unit, axis=1)
        residual = np.divide(norms, size, out=np.zeros_like(norms), where=finite & (size > 0))
        status = np.where(residual <= self.rtol, Status.CONVERGED.value, Status.NOT_CONVERGED.value)
        status = np.where(finite & np.isfinite(norms), status, Status.NOT_FINITE.value)
        return Solution(self.problem.native(h), status, residual, np.ones(len(size), dtype=int))

    def respond(self, g: Array) -> Response:
        """Solve, and return the images over the training rows."""
        return respond_by_solving(self.problem, self.solve(g), g)

    def _solve_once(self, rhs: np.ndarray) -> np.ndarray:
        """Return ``A^-1`` times each row, without refinement."""
        return scipy.linalg.cho_solve((self.factor, True), (rhs / self.unit).T).T / self.unit

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Function from ``g`` to ``L^-1 g / s``, (k, p), so that ``g_a' A^-1 g_b`` is a plain inner product."""
        return self._half

    def _half(self, g: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_triangular(self.factor, (g / self.unit).T, lower=True).T
