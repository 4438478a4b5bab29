"""What is asked of a factorised Gauss-Newton matrix ``P = J'CJ/n + Lam``, from the n x n side or the p x p side.

:class:`vhat.linalg.solvers.kernel.Kernel` factorises an n x n matrix and never forms a solution of length p unless it
must; :class:`vhat.linalg.solvers.gram.Gram` factorises P itself. What both solve the exact Hessian with
(:mod:`vhat.linalg.solvers.corrected`) is written once, over this protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np

from vhat.linalg.solvers.interface import Norms, Response
from vhat.models.problem import Array, Problem

__all__ = ["FactorMetric", "Factorised", "SeenRows"]

_ROUNDING = 16 * np.finfo(float).eps
"""Relative error of a sum of squares, with room for its length."""


class SeenRows(ABC):
    """``z = P^-1 r`` for a block of rows, in whatever form the factorisation has it: a dataclass of arrays, row first.

    Attributes:
        cross: What another right-hand side can be looked at with more cheaply, (k, any).
        image: What the length of ``s'J z`` is read off, (k, any, any).
        energy: ``r'z``, (k,).
        lost: By how much rounding in ``energy`` is magnified, (k,).
    """

    cross: np.ndarray
    image: np.ndarray
    energy: np.ndarray
    lost: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """``sqrt(r' P^-1 r)``, (k,), with what rounding may have taken from it."""
        return np.sqrt(np.abs(self.energy) * (1.0 + _ROUNDING * self.lost))

    def take(self, rows: np.ndarray) -> Self:
        """Return some of the rows."""
        return type(self)(*(getattr(self, each.name)[rows] for each in _columns(self)))

    def copy(self) -> Self:
        """Return the same in memory of its own."""
        return type(self)(*(getattr(self, each.name).copy() for each in _columns(self)))

    def put(self, rows: np.ndarray, other: Self) -> None:
        """Write other rows into these, in place."""
        for each in _columns(self):
            getattr(self, each.name)[rows] = getattr(other, each.name)

    @abstractmethod
    def times(self, weights: np.ndarray) -> Self:
        """Multiply each row by a number."""

    @abstractmethod
    def combined(self, weights: np.ndarray) -> Self:
        """Return the one row ``sum_i weights_i z_i``; its energy is not known."""


def _columns(record: Any) -> Any:
    return fields(record)


class Factorised(Protocol):
    """``P = J'CJ/n + Lam``, factorised. Arrays are NumPy's; rows are right-hand sides, (k, p)."""

    @property
    def problem(self) -> Problem:
        """The training problem."""

    @property
    def exact(self) -> bool:
        """Whether P is the Gauss-Newton matrix itself: no negative curvature weight was taken for zero."""

    @property
    def penalty_slope(self) -> np.ndarray:
        """The gradient of the penalty, (p,)."""

    def look(self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None) -> Any:
        """Solve ``P z = r`` for each row and return it in the form that is cheapest, a :class:`SeenRows`."""

    def lift(self, seen: Any) -> np.ndarray:
        """Return z itself, (k, p)."""

    def pull(self, seen: Any) -> np.ndarray:
        """Return ``z' b`` with the gradient b of the penalty, (k,)."""

    def cross(self, r: np.ndarray, *, single: bool = False) -> np.ndarray:
        """Return the ``cross`` of right-hand sides."""

    def lengths(self, image: np.ndarray) -> np.ndarray:
        """Return ``|s'J z|`` from images, (k,)."""

    def apart(self, h: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return by how much images differ from those of ``h``, as lengths, (k,)."""

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return ``P v`` for each row of v."""

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows."""

    def probe(self, seed: int) -> np.ndarray:
        """Return ``J'z`` for random signs z, (1, p): a right-hand side that the data see."""

    def draw(self, seed: int) -> np.ndarray:
        """Return a normal vector with covariance ``P^-1``, (1, p)."""

    def norms(self, found: Response, sigma: np.ndarray) -> Norms:
        """Read norms off answers whose images are in the factorisation's own form."""

    def response(self, found: Response) -> Response:
        """Return answers with the images ``J h`` over the training rows."""


@dataclass(frozen=True)
class FactorMetric:
    """``P`` as the inner product of p-space: see :class:`vhat.linalg.curvature.inner_product.Metric`."""

    factor: Factorised

    def apply(self, v: Array) -> Array:
        """Return ``P v``."""
        problem = self.factor.problem
        return problem.native(self.factor.apply(problem.numpy(v)[None, :]))[0, :]

    def solve(self, v: Array) -> Array:
        """Return ``P^-1 v``, for one vector or for each of some rows."""
        if v.ndim > 1:
            return self.factor.solve(v)
        return self.factor.solve(v[None, :])[0, :]

    def draw(self, problem: Problem, seed: int) -> Array:
        """Return a normal vector with covariance ``P^-1``."""
        return problem.native(self.factor.draw(seed))[0, :]
