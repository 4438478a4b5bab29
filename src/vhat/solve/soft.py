"""The direction of least curvature, which residuals hardly show."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from array_api_compat import array_namespace

from vhat.curvature import Operator
from vhat.problem import Array, Curvature, Problem

__all__ = ["Soft"]


@dataclass(frozen=True)
class Soft:
    """The direction of least curvature.

    Attributes:
        vector: ``u``, p-space (p,), softest in the metric that the solver iterates in.
        image: ``A u``, (p,).
        bend: ``u'Au``.
        smallest: The smallest ``x'Ax / x'Px`` as far as it is known, with the Gauss-Newton matrix plus decay for P.
    """

    vector: Array = field(repr=False)
    image: Array = field(repr=False)
    bend: float
    smallest: float

    @staticmethod
    def of(problem: Problem, curvature: Curvature, vector: Array) -> Soft:
        """Return a direction with its own quotient for the smallest."""
        u = problem.numpy(vector)
        image, plain = (Operator(problem, each)(vector[None])[0] for each in (curvature, "ggn"))
        bend, of_data = (float(u @ problem.numpy(each)) for each in (image, plain))
        return Soft(vector, image, bend, bend / of_data if of_data > 0 else 1.0)

    @property
    def magnified(self) -> float:
        """By how much more ``J h`` may move with what is left of a row than it would if the data alone were curved."""
        return 1.0 / min(max(self.smallest, float(np.finfo(np.float64).tiny)), 1.0)

    def solved(self, h: Array, r: Array) -> tuple[Array, Array]:
        """Return ``h`` and what is left of the rows, ``r = g - A h``, (k, p), with nothing left along the direction."""
        if not self.bend > 0:
            return h, r
        share = array_namespace(r).sum(r * self.vector, axis=1, keepdims=True) / self.bend
        return h + share * self.vector, r - share * self.image
