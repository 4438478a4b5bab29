"""The direction of least curvature, which residuals hardly show."""

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

__all__ = ["Measure", "Soft", "find_soft"]


class Measure(Protocol):
    """A positive definite ``M`` in which residuals are measured."""

    def solve(self, r: Array) -> Array:
        """Return ``M^-1 r`` for each row, (k, p)."""


@dataclass(frozen=True)
class Soft:
    """The direction of least curvature, and how little curvature there is.

    Attributes:
        vector: ``u``, p-space (p,), softest in the metric that the solver iterates in.
        image: ``A u``, (p,).
        bend: ``u'Au``.
        against_data: The smallest ``x'Ax / x'Px``, with the Gauss-Newton matrix plus decay for P: known where matrices
            are formed or the kernel of all rows is, elsewhere the quotient of u.
        measure: The ``M`` in which the smallest eigenvalue of A was found.
        smallest: That eigenvalue, the least ``x'Ax / x'Mx``.
    """

    vector: Array = field(repr=False)
    image: Array = field(repr=False)
    bend: float
    against_data: float
    measure: Measure = field(repr=False)
    smallest: float

    @staticmethod
    def of(problem: Problem, curvature: Curvature, vector: Array, measure: Measure, smallest: float) -> Soft:
        """Return a direction with its own quotient against the data."""
        u = problem.numpy(vector)
        image, plain = (Operator(problem, each)(vector[None])[0] for each in (curvature, "ggn"))
        bend, of_data = (float(u @ problem.numpy(each)) for each in (image, plain))
        return Soft(vector, image, bend, bend / of_data if of_data > 0 else 1.0, measure, smallest)

    def reach(self, problem: Problem, r: Array) -> np.ndarray:
        """By how much what is left of rows, ``r = g - A h``, (k, p), may move ``J h`` at the very most, (k,).

        The error ``e = A^-1 r`` has ``e'Pe <= r'A^-1 r / least(A/P) <= r'M^-1 r / (least(A/P) least(A/M))``, and the
        length of ``J h``, the root of V, is off by no more than the root of it.
        """
        squares = problem.numpy(array_namespace(r).sum(r * self.measure.solve(r), axis=1))
        least = math.sqrt(_share(self.against_data)) * math.sqrt(_share(self.smallest))
        return np.sqrt(np.where(squares >= 0, squares, np.nan)) / least

    def solved(self, h: Array, r: Array) -> tuple[Array, Array]:
        """Return ``h`` and what is left of the rows, ``r = g - A h``, (k, p), with nothing left along the direction."""
        if not self.bend > 0:
            return h, r
        share = array_namespace(r).sum(r * self.vector, axis=1, keepdims=True) / self.bend
        return h + share * self.vector, r - share * self.image


def _share(quotient: float) -> float:
    return min(max(quotient, float(np.finfo(np.float64).tiny)), 1.0)


def find_soft(
    work: SolverWorkspace, curvature: Curvature, *, against_data: bool = False, measure: Measure | None = None
) -> Soft | None:
    """Find the direction of least curvature for a solver; None where A is not positive.

    Gauss-Newton has none that data would meet.

    Args:
        work: The problem, with what its solvers share.
        curvature: Which matrix ``A``.
        against_data: Whether the solver iterates in a metric near that of the data, so that the direction which is
            softest against it serves better than the one which is softest in the unit-free scale.
        measure: The metric of all the data, where the solver iterates in it.

    Warns:
        ConditioningWarning: Where the smallest eigenvalue did not settle, once.
    """
    if curvature == "ggn":
        return None
    found = work.definiteness(curvature)
    if found.verdict == "indefinite":  # rows will meet negative curvature and say so
        return None
    if found.verdict == "undecided" and not found.singular and work.first("warned softness"):
        warnings.warn(
            f"the smallest eigenvalue of H + lam did not settle (last value {found.value:.1e} without unit): rows "
            "that hardly meet a direction of so little curvature may end without it, and V with it. Give more "
            'memory, raise weight_decay, or ask for curvature="ggn".',
            ConditioningWarning,
            stacklevel=outside(),
        )
    # The smallest eigenvalue of a formed matrix is one in the unit-free scale, whatever metric the plan has.
    metric = work.solver.metric(work, curvature) if found.method == "lanczos" else Jacobi(work.scale())
    formed = work.softest_against_data(curvature)
    if formed is None:
        return Soft.of(work.problem, curvature, found.vector, metric, found.value)
    least, direction = formed
    vector = direction if against_data else found.vector
    soft = Soft.of(work.problem, curvature, vector, metric, found.value)
    if measure is not None:
        soft = replace(soft, measure=measure, smallest=least)
    return replace(soft, against_data=least)
