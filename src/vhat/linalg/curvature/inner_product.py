"""The inner product in which p-space is measured: a positive definite ``M`` that stands for ``H + lam``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vhat.linalg.curvature.operator import scale
from vhat.models.problem import Array, Problem

__all__ = ["Jacobi", "Metric", "jacobi"]


class Metric(Protocol):
    """A symmetric positive definite matrix ``M`` with the units of ``H + lam``, applied to p-space vectors (p,).

    Steps are measured by ``|d|_M`` and gradients by ``|g|_{M^-1}``; both have the root unit of the objective, so
    neither depends on the units of the parameters. The nearer ``M`` is to ``H + lam``, the fewer products are needed.
    """

    def apply(self, v: Array) -> Array:
        """Return ``M v``."""

    def solve(self, v: Array) -> Array:
        """Return ``M^-1 v``, for one vector (p,) or for each of some rows (k, p)."""

    def draw(self, problem: Problem, seed: int) -> Array:
        """Return a random x with ``E xx' = M^-1``: measured by M it leans on no direction more than on another."""


@dataclass(frozen=True)
class Jacobi:
    """``M = diag(s^2)``.

    Attributes:
        scale: ``s``, p-space (p,), as :func:`vhat.linalg.curvature.scale` gives it.
    """

    scale: Array

    def apply(self, v: Array) -> Array:
        """Return ``s^2 v``."""
        return self.scale * (self.scale * v)

    def solve(self, v: Array) -> Array:
        """Return ``v / s^2``."""
        return (v / self.scale) / self.scale

    def draw(self, problem: Problem, seed: int) -> Array:
        """Return ``z / s`` for standard normal z."""
        return problem.native(np.random.default_rng(seed).standard_normal(problem.p)) / self.scale


def jacobi(problem: Problem) -> Jacobi:
    """Return the metric ``diag(J'CJ/n) + lam`` at the problem's parameters."""
    return Jacobi(scale(problem))
