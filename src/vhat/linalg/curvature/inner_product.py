"""Inner products on p-space: a positive definite ``M`` that approximates ``H + lam``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vhat.linalg.curvature.operator import scale
from vhat.models.problem import Array, Problem

__all__ = ["Jacobi", "Metric", "jacobi"]


class Metric(Protocol):
    """A symmetric positive definite matrix ``M`` with the units of ``H + lam``, applied to p-space vectors (p,).

    The norm of a step is ``|d|_M`` and that of a gradient ``|g|_{M^-1}``. Both have the square root of the unit of the
    objective and do not depend on the units of the parameters. The closer ``M`` is to ``H + lam``, the fewer products
    an iteration needs.
    """

    def apply(self, v: Array) -> Array:
        """Return ``M v``."""

    def solve(self, v: Array) -> Array:
        """Return ``M^-1 v``, for one vector (p,) or for each of several rows (k, p)."""

    def draw(self, problem: Problem, seed: int) -> Array:
        """Return a random x with ``E xx' = M^-1``, isotropic in the norm of M."""


@dataclass(frozen=True)
class Jacobi:
    """``M = diag(s^2)``.

    Attributes:
        scale: ``s``, p-space (p,), from :func:`vhat.linalg.curvature.scale`.
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
