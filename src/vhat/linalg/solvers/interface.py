"""The interface of all solvers: each row gets a solution, a status and a true residual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from array_api_compat import array_namespace

from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.curvature.inner_product import Metric
    from vhat.linalg.solvers.cost import Cost
    from vhat.linalg.workspace import SolverWorkspace

__all__ = [
    "STATUS_DTYPE",
    "SUPPORT_FLOOR",
    "FromImages",
    "FromInputs",
    "Norms",
    "NormsFromInputs",
    "Prepared",
    "Record",
    "Response",
    "Solution",
    "Solver",
    "Status",
    "Stopped",
    "concatenate",
    "contract",
    "metric_norm",
    "pseudo_inverts",
    "replace_rows",
    "respond_by_solving",
    "take_rows",
]

SUPPORT_FLOOR = 1e-6
"""Floor for the length of ``s'J h`` in a relative error, as a share of ``sqrt(g'h)``. Below the floor the training data
hardly support the prediction, and an error relative to its tiny length would never become small."""


class Status(StrEnum):
    """Outcome of the solve of one row; ``remedy`` says what to do about it."""

    CONVERGED = "converged"
    NOT_CONVERGED = "not converged"
    INDEFINITE = "indefinite"
    NOT_FINITE = "not finite"
    INTERRUPTED = "interrupted"

    @property
    def remedy(self) -> str:
        """Advice to the user for a row with this status."""
        return {
            Status.CONVERGED: "nothing to do",
            Status.NOT_CONVERGED: "max_steps or float64 did not allow it: ask another solver, vhat.Dense() if it fits, "
            "or raise weight_decay",
            Status.INDEFINITE: "the parameters are not a minimum: use curvature='ggn', take the model as it is by "
            "fitted.linearised(validation=(X, y)), or go on to a minimum by fitted.polish()",
            Status.NOT_FINITE: "the gradient of the prediction or a curvature product overflows there: check the "
            "model at this input",
            Status.INTERRUPTED: "Ctrl-C came before this row was finished: ask for it again",
        }[self]


STATUS_DTYPE = np.dtype(f"<U{max(len(status) for status in Status)}")
"""dtype of an array of statuses that is written to: a narrower one would cut the longer values off."""


@dataclass(frozen=True)
class Solution:
    """Solutions of ``A h = g`` for a block of rows.

    Attributes:
        h: The solutions, p-space (k, p). A row whose status is not ``converged`` must not be used.
        status: One :class:`Status` value per row, (k,) of str.
        residual: The true relative residual ``|g - A h| / |g|`` in the unit-free metric, (k,).
        steps: Iterations for each row, (k,).
    """

    h: Array
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class Response:
    """Images of ``h = A^-1 g`` over the training rows, for a block of rows, without h itself.

    Attributes:
        image: ``J h``, n-space (k, n, K).
        energy: ``g'h``, (k,).
        pull: ``h' b``, (k,), with b the gradient of the penalty: ``diag(lam) theta`` unless the penalty is shifted.
        status: As in :class:`Solution`.
        residual: As in :class:`Solution`; the dual solver gives the estimated relative error of ``sqrt(V)``.
        steps: As in :class:`Solution`.
    """

    image: np.ndarray
    energy: np.ndarray
    pull: np.ndarray
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class Norms:
    """Scalars of ``h = A^-1 g`` that an interval needs, one per row, (k,) each.

    Attributes:
        variance: ``1/n sum_ib sigma_ib^2 u_ib^2`` with ``u = (J h)' d2l/df dy``.
        supported: ``h'J'CJ h / n``: the part of ``g'h`` that comes from the training data, without the decay.
        energy: ``g'h``.
        pull: ``h' b`` with b the gradient of the penalty.
        slope: ``h' grad L``.
        status: As in :class:`Solution`.
        residual: As in :class:`Response`.
        steps: As in :class:`Solution`.
    """

    variance: np.ndarray
    supported: np.ndarray
    energy: np.ndarray
    pull: np.ndarray
    slope: np.ndarray
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray

    @staticmethod
    def of(problem: Problem, found: Response, sigma: np.ndarray) -> Norms:
        """Compute the norms from images ``J h``.

        Args:
            problem: The training problem.
            found: The images of the solutions over the training rows.
            sigma: Noise of each training response, (n, K).
        """
        loss = problem.loss_derivatives
        u = contract(found.image, loss.cross)
        quadratic = contract(found.image, loss.curvature) * found.image
        return Norms(
            variance=np.sum((sigma * u) ** 2, axis=(1, 2)) / problem.n,
            supported=np.sum(quadratic, axis=(1, 2)) / problem.n,
            energy=found.energy,
            pull=found.pull,
            # grad L = J' l' / n, and therefore h' grad L = (J h)' l' / n.
            slope=np.sum(found.image * loss.first, axis=(1, 2)) / problem.n,
            status=found.status,
            residual=found.residual,
            steps=found.steps,
        )


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a solve of many rows; carries the results of the rows that are finished.

    Attributes:
        rows: Indices of the finished rows within the block.
        partial: The result of the interrupted call for these rows alone.
    """

    def __init__(self, rows: np.ndarray, partial: Any) -> None:
        super().__init__(rows, partial)
        self.rows = rows
        self.partial = partial

    def __str__(self) -> str:
        return f"{self.rows.size} rows were finished"


Record = TypeVar("Record", Response, Norms)
"""A dataclass whose fields are arrays with one entry, or one slice, per row."""


def concatenate(parts: list[Record]) -> Record:
    """Return one record with the rows of consecutive blocks."""
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def take_rows(record: Record, rows: np.ndarray) -> Record:
    """Return a record with some of the rows."""
    return type(record)(*(getattr(record, field.name)[rows] for field in fields(record)))


def replace_rows(record: Record, rows: np.ndarray, other: Record) -> Record:
    """Return a record with some of its rows replaced; writeable arrays are overwritten."""
    columns = []
    for field in fields(record):
        column = getattr(record, field.name)
        if not column.flags.writeable:  # a view of the framework's memory
            column = column.copy()
        column[rows] = getattr(other, field.name)
        columns.append(column)
    return type(record)(*columns)


def contract(t: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Multiply n-space blocks (k, n, K) by a loss derivative, (n, K) or (n, K, K), over its first output index."""
    if weight.ndim == 2:
        return t * weight
    return np.einsum("kia,iab->kib", t, weight)


class Prepared(Protocol):
    """A solver prepared for one problem and one curvature."""

    @property
    def name(self) -> str:
        """The solver's name in results."""

    def solve(self, g: Array) -> Solution:
        """Solve ``A h = g`` for each row of g, p-space (k, p)."""

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the scalars that intervals need, by the solver's cheapest computation.

        Args:
            g: Right-hand sides, p-space (k, p).
            sigma: Noise of each training response, (n, K).
        """

    def respond(self, g: Array) -> Response:
        """Return the images of the solutions over the training rows, (n, K) for each right-hand side."""

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Function from ``g`` to ``L^-1 g``, (k, p), with ``A = L L'``; None if A is not factorised.

        ``g_a' A^-1 g_b`` is then a plain inner product, and traces are exact.
        """


@runtime_checkable
class FromInputs(Protocol):
    """A prepared solver that takes the inputs of predictions, without gradients of length p."""

    @property
    def inputs_together(self) -> int:
        """Number of points solved together."""

    def respond_at(self, inputs: Any) -> Response:
        """Return the images of the solutions for the predictions at checked inputs."""


@runtime_checkable
class NormsFromInputs(Protocol):
    """A prepared solver that takes the inputs of predictions, and forms their gradients only where it needs them."""

    def norms_at(self, inputs: Any, sigma: np.ndarray) -> Norms:
        """Return the norms for the predictions at checked inputs.

        Args:
            inputs: Inputs of the points.
            sigma: Noise of each training response, (n, K).
        """


class FromImages(ABC):
    """Base class of a prepared solver that returns images ``J h``: computes the norms from them."""

    problem: Problem

    @abstractmethod
    def respond(self, g: Array) -> Response:
        """Return the images of the solutions over the training rows."""

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return the scalars that intervals need, computed from the images.

        Raises:
            Stopped: On Ctrl-C, with the norms of the rows that are finished.
        """
        try:
            return Norms.of(self.problem, self.respond(g), sigma)
        except Stopped as stop:
            raise Stopped(stop.rows, Norms.of(self.problem, stop.partial, sigma)) from None

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """None: A is not factorised."""
        return None


class Solver(Protocol):
    """Options of a solver; frozen, comparable, hashable."""

    @property
    def name(self) -> str:
        """The solver's name in results."""

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: its eigenvalues and the traces of the smoother then cost little extra."""

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Do the work that all right-hand sides share: factorise, build the preconditioner.

        Args:
            work: The problem and the factorisations that its solvers share.
            curvature: The matrix ``A``: exact Hessian or Gauss-Newton.

        Raises:
            MemoryBudgetError: When the solver does not fit.
            NotPositiveDefinite: When ``A``, or its preconditioner, cannot be factorised.
        """

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return work and memory, from the sizes of the problem alone.

        Args:
            problem: The training problem.
            curvature: ``"ggn"`` for Gauss-Newton; any other value for the exact Hessian.
        """

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:
        """Return the solver's best preconditioner: the inner product in which the spectrum of ``A`` is narrowest."""


def pseudo_inverts(solver: object) -> bool:
    """Return whether a solver accepts a singular ``A`` and solves on the span of the training gradients alone."""
    return bool(getattr(solver, "pseudo_inverse", False))


def metric_norm(problem: Problem, v: Array, scale: Array) -> np.ndarray:
    """Return ``|v / s|`` for each row of a block of gradients or residuals, (k,): free of the parameters' units."""
    return np.linalg.norm(problem.numpy(v / scale), axis=1)


def respond_by_solving(problem: Problem, solution: Solution, g: Array) -> Response:
    """Return the response of full solutions h, by one product with the Jacobian."""
    xp = array_namespace(g)
    h = solution.h
    with np.errstate(invalid="ignore"):  # rows that are not finite; their status says so
        energy = problem.numpy(xp.sum(g * h, axis=1)).copy()
    return Response(
        image=problem.jvp(h),
        energy=energy,
        pull=problem.numpy(xp.sum(h * problem.penalty_gradient(), axis=1)).copy(),
        status=solution.status,
        residual=solution.residual,
        steps=solution.steps,
    )
