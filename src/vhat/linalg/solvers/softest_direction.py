"""The direction of least curvature, in which a small residual may leave a large error."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from array_api_compat import array_namespace

from vhat.errors import ConditioningWarning, outside
from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Jacobi
from vhat.models.problem import Array, Curvature, Problem

if TYPE_CHECKING:
    from vhat.linalg.workspace import SolverWorkspace

__all__ = ["Preconditioner", "SoftDirection", "find_softest_direction"]


class Preconditioner(Protocol):
    """A positive definite ``M``; residuals are measured in the norm of ``M^-1``."""

    def solve(self, r: Array) -> Array:
        """Return ``M^-1 r`` for each row, (k, p)."""


@dataclass(frozen=True)
class SoftDirection:
    """The direction of least curvature, and its curvature.

    Attributes:
        vector: ``u``, p-space (p,): the direction of least curvature in the solver's metric.
        image: ``A u``, (p,).
        quadratic: ``u'Au``.
        against_data: The smallest ``x'Ax / x'Px``, with P the Gauss-Newton matrix plus decay. It is known if matrices
            are formed or the kernel has all rows; otherwise the quotient of u.
        preconditioner: ``M``, with respect to which the smallest eigenvalue of A was computed.
        smallest: That eigenvalue, the smallest ``x'Ax / x'Mx``.
    """

    vector: Array = field(repr=False)
    image: Array = field(repr=False)
    quadratic: float
    against_data: float
    preconditioner: Preconditioner = field(repr=False)
    smallest: float

    @staticmethod
    def of(
        problem: Problem, curvature: Curvature, vector: Array, preconditioner: Preconditioner, smallest: float
    ) -> SoftDirection:
        """Return a direction, with its own quotient ``u'Au / u'Pu`` for ``against_data``."""
        u = problem.numpy(vector)
        image = Operator(problem, curvature)(vector[None])[0]
        gauss_newton_image = Operator(problem, "ggn")(vector[None])[0]
        quadratic = float(u @ problem.numpy(image))
        of_data = float(u @ problem.numpy(gauss_newton_image))
        against_data = quadratic / of_data if of_data > 0 else 1.0
        return SoftDirection(vector, image, quadratic, against_data, preconditioner, smallest)

    def image_error_bound(self, problem: Problem, r: Array) -> np.ndarray:
        """Return an upper bound of the error in ``|s'J h|`` caused by the residuals ``r = g - A h``, (k, p): (k,).

        The error ``e = A^-1 r`` satisfies ``e'Pe <= r'A^-1 r / min(A/P) <= r'M^-1 r / (min(A/P) min(A/M))``, where
        ``min(A/P)`` is the smallest ``x'Ax / x'Px``. The error in ``|s'J h|``, the square root of V, is at most
        ``sqrt(e'Pe)``.
        """
        # r'M^-1 r; negative values mean that rounding has made M indefinite there, and no bound is known.
        squares = problem.numpy(array_namespace(r).sum(r * self.preconditioner.solve(r), axis=1))
        least = math.sqrt(_clipped(self.against_data)) * math.sqrt(_clipped(self.smallest))
        return np.sqrt(np.where(squares >= 0, squares, np.nan)) / least

    def deflate(self, h: Array, r: Array) -> tuple[Array, Array]:
        """Return ``h`` and its residual ``r = g - A h``, (k, p), solved along the direction: ``u'r`` becomes zero."""
        if not self.quadratic > 0:
            return h, r
        # One exact line search along u: the minimum of h'Ah / 2 - g'h is at the step u'r / u'Au.
        step = array_namespace(r).sum(r * self.vector, axis=1, keepdims=True) / self.quadratic
        return h + step * self.vector, r - step * self.image


def _clipped(quotient: float) -> float:
    """Return a quotient clipped to (0, 1]."""
    return min(max(quotient, float(np.finfo(np.float64).tiny)), 1.0)


def find_softest_direction(
    work: SolverWorkspace,
    curvature: Curvature,
    *,
    against_data: bool = False,
    preconditioner: Preconditioner | None = None,
) -> SoftDirection | None:
    """Return the direction of least curvature of ``A`` for a solver; None if A is indefinite.

    None also for the Gauss-Newton matrix: its directions of little curvature do not move training predictions.

    Args:
        work: The problem and the factorisations that its solvers share.
        curvature: The matrix ``A``: exact Hessian or Gauss-Newton.
        against_data: Whether the solver's preconditioner is close to the Gauss-Newton matrix. The direction is then the
            softest with respect to that matrix, and otherwise the softest in the unit-free scale.
        preconditioner: The solver's preconditioner, if it is the Gauss-Newton matrix of all the data.

    Warns:
        ConditioningWarning: Once, if the smallest eigenvalue did not converge.
    """
    if curvature == "ggn":
        return None
    found = work.definiteness(curvature)
    if found.verdict == "indefinite":  # the status of the rows will say so
        return None
    if found.verdict == "undecided" and not found.singular and work.first("warned softness"):
        warnings.warn(
            f"the smallest eigenvalue of H + lam did not converge (last value {found.value:.1e} without unit): V may "
            "lack a part along a direction of so little curvature. Give more memory, raise weight_decay, or use "
            'curvature="ggn".',
            ConditioningWarning,
            stacklevel=outside(),
        )
    # Only Lanczos computes the eigenvalue in the metric of the plan; a formed matrix gives it in the unit-free scale.
    metric = work.solver.metric(work, curvature) if found.method == "lanczos" else Jacobi(work.scale())
    formed = work.softest_against_data(curvature)
    if formed is None:
        return SoftDirection.of(work.problem, curvature, found.vector, metric, found.value)
    smallest, direction = formed
    vector = direction if against_data else found.vector
    soft = SoftDirection.of(work.problem, curvature, vector, metric, found.value)
    if preconditioner is not None:
        soft = replace(soft, preconditioner=preconditioner, smallest=smallest)
    return replace(soft, against_data=smallest)
