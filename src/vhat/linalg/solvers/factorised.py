"""Interface of a factorised Gauss-Newton matrix ``P = J'CJ/n + Lam``, dual (n x n) or primal (p x p).

:class:`vhat.linalg.solvers.kernel.Kernel` factorises an n x n matrix and forms solutions of length p only on request.
:class:`vhat.linalg.solvers.gram.Gram` factorises P itself. The solver for the exact Hessian
(:mod:`vhat.linalg.solvers.corrected`) is written over this protocol and works with both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np

from vhat.linalg.solvers.interface import Norms, Response
from vhat.models.problem import Array, Problem

__all__ = ["ACCEPTED_ERROR", "DIRECT_RTOL", "MAX_REFINEMENTS", "FactorMetric", "Factorised", "ImplicitSolution"]

DIRECT_RTOL = 1e-8
"""Relative error, in the metric of P, to which a direct Gauss-Newton solution is refined."""
MAX_REFINEMENTS = 2
"""Steps of iterative refinement of a direct solution, one product of the framework each."""
ACCEPTED_ERROR = 1e-5
"""Relative error of a Gauss-Newton solution above which conjugate gradients take over. With a decay of 1e-10 times the
largest curvature, the rounding of the derivatives alone leaves an error of 1e-6 in any solver in double precision."""
_ROUNDING = 16 * np.finfo(float).eps
"""Relative rounding error of a long sum of squares: 16 machine epsilons."""


class ImplicitSolution(ABC):
    """``z = P^-1 r`` for a block of rows, in the factorisation's own form: a dataclass of arrays, first axis the rows.

    Attributes:
        cross: Form of the right-hand side that makes a further solve cheaper, (k, any).
        image: Form of z from which ``|s'J z|`` is computed, (k, any, any).
        energy: ``r'z``, (k,).
        cancellation: Factor by which rounding in ``energy`` is magnified, (k,).
    """

    cross: np.ndarray
    image: np.ndarray
    energy: np.ndarray
    cancellation: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """``sqrt(r' P^-1 r)``, (k,), enlarged by the possible loss through rounding."""
        return np.sqrt(np.abs(self.energy) * (1.0 + _ROUNDING * self.cancellation))

    def take(self, rows: np.ndarray) -> Self:
        """Return some of the rows."""
        return type(self)(*(getattr(self, each.name)[rows] for each in _fields(self)))

    def copy(self) -> Self:
        """Return a copy with memory of its own."""
        return type(self)(*(getattr(self, each.name).copy() for each in _fields(self)))

    def put(self, rows: np.ndarray, other: Self) -> None:
        """Overwrite some rows by those of ``other``, in place."""
        for each in _fields(self):
            getattr(self, each.name)[rows] = getattr(other, each.name)

    @abstractmethod
    def times(self, weights: np.ndarray) -> Self:
        """Return each row multiplied by its weight."""

    @abstractmethod
    def combined(self, weights: np.ndarray) -> Self:
        """Return the single row ``sum_i weights_i z_i``, without its energy (NaN)."""


def _fields(record: Any) -> Any:
    return fields(record)


class Factorised(Protocol):
    """``P = J'CJ/n + Lam``, factorised. Arrays are NumPy's; rows are right-hand sides, (k, p)."""

    @property
    def problem(self) -> Problem:
        """The training problem."""

    @property
    def exact(self) -> bool:
        """Whether P is the Gauss-Newton matrix itself: no negative curvature weight was replaced by zero."""

    @property
    def penalty_gradient(self) -> np.ndarray:
        """The gradient b of the penalty, (p,)."""

    def solve_implicit(self, r: np.ndarray, gradients: Array | None = None, cross: np.ndarray | None = None) -> Any:
        """Solve ``P z = r`` for each row; z comes as an :class:`ImplicitSolution`, the cheapest form."""

    def lift(self, z: Any) -> np.ndarray:
        """Return z as vectors, (k, p)."""

    def pull(self, z: Any) -> np.ndarray:
        """Return ``z' b`` with b the gradient of the penalty, (k,)."""

    def cross(self, r: np.ndarray, *, single: bool = False) -> np.ndarray:
        """Return the ``cross`` of right-hand sides: see :class:`ImplicitSolution`."""

    def lengths(self, image: np.ndarray) -> np.ndarray:
        """Return ``|s'J z|`` from images, (k,)."""

    def image_discrepancy(self, h: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return the length ``|s'J e|`` of the difference e between images and those of ``h``, (k,)."""

    def apply(self, v: np.ndarray) -> np.ndarray:
        """Return ``P v`` for each row of v."""

    def solve(self, r: Array) -> Array:
        """Return ``P^-1 r`` for p-space rows."""

    def probe(self, seed: int) -> np.ndarray:
        """Return ``J'z`` for random signs z, (1, p): a random right-hand side in the span of the training gradients."""

    def draw(self, seed: int) -> np.ndarray:
        """Return a normal vector with covariance ``P^-1``, (1, p)."""

    def norms(self, found: Response, sigma: np.ndarray) -> Norms:
        """Return the norms of responses whose images are in the factorisation's own form."""

    def response(self, found: Response) -> Response:
        """Return responses with the images ``J h`` over the training rows."""


@dataclass(frozen=True)
class FactorMetric:
    """``P`` as an inner product on p-space: see :class:`vhat.linalg.curvature.inner_product.Metric`."""

    factor: Factorised

    def apply(self, v: Array) -> Array:
        """Return ``P v``."""
        problem = self.factor.problem
        return problem.native(self.factor.apply(problem.numpy(v)[None, :]))[0, :]

    def solve(self, v: Array) -> Array:
        """Return ``P^-1 v``, for one vector (p,) or for each of several rows (k, p)."""
        if v.ndim > 1:
            return self.factor.solve(v)
        return self.factor.solve(v[None, :])[0, :]

    def draw(self, problem: Problem, seed: int) -> Array:
        """Return a normal vector with covariance ``P^-1``."""
        return problem.native(self.factor.draw(seed))[0, :]
