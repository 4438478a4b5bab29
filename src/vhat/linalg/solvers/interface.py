"""What every solver promises: a solution, a status and a true residual for each row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from vhat.models.problem import Array, Curvature, Problem

__all__ = [
    "Prepared",
    "Response",
    "Solution",
    "Solver",
    "Status",
    "Stopped",
    "joined",
    "metric_norm",
    "respond_by_solving",
]


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
            Status.INDEFINITE: "the parameters are not a minimum: call fitted.polish(), or use curvature='ggn'",
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
    """What a norm needs of ``h = A^-1 g``, for a block of rows, without h itself.

    Attributes:
        image: ``J h``, n-space (k, n, K).
        energy: ``g'h``, (k,).
        pull: ``h' diag(lam) theta``, (k,).
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

    def take(self, rows: np.ndarray) -> Response:
        """Return some of the rows."""
        return Response(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def put(self, rows: np.ndarray, other: Response) -> None:
        """Write other rows into these, in place."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[rows] = getattr(other, name)


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


def joined(parts: list[Response]) -> Response:
    """Put responses of consecutive blocks together."""
    return Response(*(np.concatenate([getattr(p, name) for p in parts]) for name in Response.__dataclass_fields__))


class Prepared(Protocol):
    """A solver made ready for one problem and one curvature."""

    @property
    def name(self) -> str:
        """The name that results carry."""

    def solve(self, g: Array) -> Solution:
        """Solve ``A h = g`` for each row of g, p-space (k, p)."""

    def respond(self, g: Array) -> Response:
        """Return what a norm needs of the solutions, by the shortest way that the solver has."""


class Solver(Protocol):
    """Options of a solver; frozen, comparable, hashable."""

    @property
    def name(self) -> str:
        """The name that results carry."""

    def prepare(self, problem: Problem, curvature: Curvature, scale: Array) -> Prepared:
        """Do once what all right-hand sides share (factorise, precondition)."""


DARK = 1e-6
"""A row of which the data hold less than this share is judged as if they held that much."""
IMAGES = 4
"""Of a solution, ``J h``, that exist at once."""


def points_together(problem: Problem) -> int:
    """How many test points are worked on at once: forty vectors of length p for each fit, or twice its images."""
    each = 8 * (40 * problem.p + 2 * IMAGES * problem.n * problem.outputs)
    return max(1, min(256, int(problem.memory // (each * problem.outputs))))


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
        pull=problem.numpy(xp.sum(h * (problem.decay * problem.theta), axis=1)).copy(),
        status=solution.status,
        residual=solution.residual,
        steps=solution.steps,
    )
