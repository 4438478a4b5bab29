"""What every solver promises: a solution, a status and a true residual for each row."""

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
    "DARK",
    "FromImages",
    "FromInputs",
    "Norms",
    "Prepared",
    "Record",
    "Response",
    "Solution",
    "Solver",
    "Status",
    "Stopped",
    "contract",
    "joined",
    "metric_norm",
    "pseudo_inverts",
    "put",
    "respond_by_solving",
    "taken",
]

DARK = 1e-6
"""A row of which the data hold less than this share is judged as if they held that much."""


class Status(StrEnum):
    """How the solve of one row ended; ``remedy`` says what to do about it."""

    CONVERGED = "converged"
    NOT_CONVERGED = "not converged"
    INDEFINITE = "indefinite"
    NOT_FINITE = "not finite"
    INTERRUPTED = "interrupted"

    @property
    def remedy(self) -> str:
        """What a user can do about a row with this status."""
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


@dataclass(frozen=True)
class Solution:
    """Solutions of ``A h = g`` for a block of rows.

    Attributes:
        h: The solutions, p-space (k, p). A row whose status is not ``converged`` must not be used.
        status: One :class:`Status` value a row, (k,) of str.
        residual: The true relative residual ``|g - A h| / |g|`` in the unit-free metric, (k,).
        steps: Iterations spent on each row, (k,).
    """

    h: Array
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class Response:
    """``h = A^-1 g`` as the training rows see it, for a block of rows, without h itself.

    Attributes:
        image: ``J h``, n-space (k, n, K).
        energy: ``g'h``, (k,).
        pull: ``h' b``, (k,), with the gradient b of the penalty: ``diag(lam) theta`` unless it is shifted.
        status: As in :class:`Solution`.
        residual: As in :class:`Solution`; from the dual, the estimated relative error of ``sqrt(V)``.
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
    """What an interval needs of ``h = A^-1 g``, one number a row, (k,) each.

    Attributes:
        variance: ``1/n sum_ib sigma_ib^2 u_ib^2`` with ``u = (J h)' d2l/df dy``.
        supported: ``h'J'CJ h / n``: the part of ``g'h`` that training rows hold.
        energy: ``g'h``.
        pull: ``h' b`` with the gradient b of the penalty.
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
        """Read the norms off images.

        Args:
            problem: The training problem.
            found: What the training rows see of the solutions.
            sigma: Noise of each training response, (n, K).
        """
        loss = problem.loss_derivatives
        u = contract(found.image, loss.cross)
        held = contract(found.image, loss.curvature) * found.image
        return Norms(
            variance=np.sum((sigma * u) ** 2, axis=(1, 2)) / problem.n,
            supported=np.sum(held, axis=(1, 2)) / problem.n,
            energy=found.energy,
            pull=found.pull,
            # grad L = J' l' / n, so that the image J h meets the slopes of the loss.
            slope=np.sum(found.image * loss.first, axis=(1, 2)) / problem.n,
            status=found.status,
            residual=found.residual,
            steps=found.steps,
        )


class Stopped(KeyboardInterrupt):
    """Ctrl-C in the middle of many rows, on its way to the one who asked; what is finished travels with it.

    Attributes:
        rows: Which rows of the block are finished.
        partial: What the interrupted call would have returned, for these rows alone.
    """

    def __init__(self, rows: np.ndarray, partial: Any) -> None:
        super().__init__(rows, partial)
        self.rows, self.partial = rows, partial

    def __str__(self) -> str:
        return f"{self.rows.size} rows were finished"


Record = TypeVar("Record", Response, Norms)
"""A dataclass whose fields are arrays with one entry, or one slice, a row."""


def joined(parts: list[Record]) -> Record:
    """Put the records of consecutive blocks together."""
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def taken(record: Record, rows: np.ndarray) -> Record:
    """Return some of the rows of a record."""
    return type(record)(*(getattr(record, field.name)[rows] for field in fields(record)))


def put(record: Record, rows: np.ndarray, other: Record) -> Record:
    """Return a record with some of its rows replaced; arrays that may be written to are reused."""
    columns = []
    for field in fields(record):
        column = getattr(record, field.name)
        if not column.flags.writeable:  # a view of a framework's own memory
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
    """A solver made ready for one problem and one curvature."""

    @property
    def name(self) -> str:
        """The name that results carry."""

    def solve(self, g: Array) -> Solution:
        """Solve ``A h = g`` for each row of g, p-space (k, p)."""

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return what intervals need of the solutions, by the shortest way that the solver has.

        Args:
            g: Right-hand sides, p-space (k, p).
            sigma: Noise of each training response, (n, K).
        """

    def respond(self, g: Array) -> Response:
        """Return what the training rows see of the solutions: n numbers an output for each right-hand side."""

    @property
    def half(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """``g`` to ``L^-1 g``, (k, p), with ``A = L L'``; None where A is not factorised.

        ``g_a' A^-1 g_b`` is then a plain inner product, and traces are exact.
        """


@runtime_checkable
class FromInputs(Protocol):
    """A prepared solver that answers predictions from their inputs, without gradients of length p."""

    @property
    def inputs_together(self) -> int:
        """How many points are answered together."""

    def respond_at(self, inputs: Any) -> Response:
        """Return what the training rows see of the solutions for the predictions at checked inputs."""


class FromImages(ABC):
    """The norms of a solver whose answers are what the training rows see."""

    problem: Problem

    @abstractmethod
    def respond(self, g: Array) -> Response:
        """Return what the training rows see of the solutions."""

    def norms(self, g: Array, sigma: np.ndarray) -> Norms:
        """Return what intervals need of the solutions, read off their images.

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
        """The name that results carry."""

    @property
    def forms_matrix(self) -> bool:
        """Whether ``A`` itself is formed: its eigenvalues and the traces of the smoother then cost little more."""

    def prepare(self, work: SolverWorkspace, curvature: Curvature) -> Prepared:
        """Do once what all right-hand sides share (factorise, precondition).

        Args:
            work: The problem, with what its solvers share.
            curvature: Which matrix ``A``.

        Raises:
            MemoryBudgetError: When it does not fit.
            NotPositiveDefinite: When ``A``, or what stands for it, cannot be factorised.
        """

    def cost(self, problem: Problem, curvature: str) -> Cost:
        """Return what it takes, from the sizes of the problem alone.

        Args:
            problem: The training problem.
            curvature: ``"ggn"``, or the cost is that of the exact Hessian.
        """

    def metric(self, work: SolverWorkspace, curvature: Curvature) -> Metric:
        """Return the inner product in which the spectrum of ``A`` is narrowest, of those that this solver has."""


def pseudo_inverts(solver: object) -> bool:
    """Return whether a solver answers for a singular ``A``, on the span of the training gradients alone."""
    return bool(getattr(solver, "pseudo_inverse", False))


def metric_norm(problem: Problem, v: Array, scale: Array) -> np.ndarray:
    """Return ``|v / s|`` for each row of a gradient-like block, (k,): free of the units of the parameters."""
    return np.linalg.norm(problem.numpy(v / scale), axis=1)


def respond_by_solving(problem: Problem, solution: Solution, g: Array) -> Response:
    """Read a response off full solutions."""
    xp = array_namespace(g)
    h = solution.h
    with np.errstate(invalid="ignore"):  # a row that is not finite has no energy; its status says so
        energy = problem.numpy(xp.sum(g * h, axis=1)).copy()
    return Response(
        image=problem.jvp(h),
        energy=energy,
        pull=problem.numpy(xp.sum(h * problem.penalty_gradient(), axis=1)).copy(),
        status=solution.status,
        residual=solution.residual,
        steps=solution.steps,
    )
