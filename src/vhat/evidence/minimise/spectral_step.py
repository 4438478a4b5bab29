"""One trust-region step from all eigenvalues of the Hessian: exact, also at saddles, for small p."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import brentq

from vhat.evidence.minimise.steihaug_step import Step
from vhat.linalg.curvature import assemble
from vhat.models.problem import Array, Problem

__all__ = ["Spectral"]

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Spectral:
    """The global minimiser of the model in the metric ``diag(s^2)``, from all eigenvalues of ``A`` (small p).

    Let ``diag(1/s) A diag(1/s) = Q diag(mu) Q'`` with mu ascending. In the basis Q the step is
    ``-(mu + sigma)^-1 Q'(g/s)`` for the smallest ``sigma >= max(0, -mu_1)`` at which it is not longer than the radius.
    In the hard case, for example at a saddle, it is shorter than the radius for every such sigma although ``mu_1 < 0``:
    a multiple of the eigenvector of ``mu_1`` is then added that leads to the boundary.

    Attributes:
        problem: The problem at the point.
        gradient: ``g``, p-space (p,).
        scale: ``s``, p-space (p,).
    """

    problem: Problem
    gradient: Array
    scale: Array

    @cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The eigenvalues mu, the eigenvectors Q, and the gradient in their basis, b."""
        s = self.problem.numpy(self.scale)
        mu, Q = eigh(assemble(self.problem, "hessian") / s / s[:, None])
        return mu, Q, Q.T @ (self.problem.numpy(self.gradient) / s)

    def step(self, radius: float) -> Step:
        """Return the step within ``radius``."""
        fresh = "_spectrum" not in self.__dict__  # the matrix is formed once for all radii
        mu, Q, b = self._spectrum
        floor = _EPS * float(np.max(np.abs(mu)))
        inside = bool(mu[0] > floor and np.linalg.norm(b / mu) <= radius)
        c = -b / mu if inside else _on_boundary(mu, b, radius, floor)  # the step in the basis Q
        length = float(np.linalg.norm(c))
        d = self.problem.native((Q @ c) / self.problem.numpy(self.scale))
        decrease = -float(b @ c) - 0.5 * float(mu @ c**2)
        products = self.problem.p if fresh else 0
        return Step(d, length, decrease, not inside, bool(mu[0] < -floor), products)


def _on_boundary(mu: np.ndarray, b: np.ndarray, radius: float, floor: float) -> np.ndarray:
    """Return ``-(mu + sigma)^-1 b`` of norm ``radius``, or the step of the hard case.

    Args:
        mu: Eigenvalues, ascending, (p,).
        b: The gradient in the basis of the eigenvectors, (p,).
        radius: The trust radius.
        floor: Size of rounding in mu.
    """
    low = max(0.0, -float(mu[0])) + floor
    inside = -b / (mu + low)
    short = radius**2 - float(inside @ inside)
    if short >= 0:  # the hard case
        sign = -1.0 if b[0] > 0 else 1.0
        inside[0] = sign * (inside[0] ** 2 + short) ** 0.5
        return inside
    # The norm of the step falls as sigma grows. Its inverse is nearly linear in sigma, so that the search is short.
    high = low + 2 * float(np.linalg.norm(b)) / radius
    sigma = brentq(lambda t: 1.0 / radius - 1.0 / np.linalg.norm(b / (mu + t)), low, high, xtol=floor + 1e-300)
    return -b / (mu + sigma)
