"""One step of a trust-region method from products alone: minimise ``g'd + d'Ad/2`` over ``|d|_M <= radius``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vhat.curvature import Operator
from vhat.curvature.metric import Metric
from vhat.problem import Array, Problem

__all__ = ["Model", "Steihaug", "Step"]

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Step:
    """A step and what the quadratic model says of it.

    Attributes:
        direction: ``d``, p-space (p,).
        length: ``|d|_M``.
        decrease: ``-(g'd + d'Ad/2)``, never negative.
        boundary: Whether the radius cut the step short.
        negative: Whether negative curvature was met.
        products: Hessian products used.
    """

    direction: Array
    length: float
    decrease: float
    boundary: bool
    negative: bool
    products: int


class Model(Protocol):
    """The quadratic model at one point; a refused step asks it again with a smaller radius."""

    def step(self, radius: float) -> Step:
        """Return the step within ``radius``."""


@dataclass(frozen=True)
class Steihaug:
    """Truncated conjugate gradients in the metric ``M`` (Steihaug, Toint).

    It stops at the boundary, at the first direction of negative curvature (followed to the boundary), or when the
    residual has fallen by ``forcing`` in the norm of ``M^-1``.

    Attributes:
        problem: The problem at the point.
        gradient: ``g``, p-space (p,).
        metric: ``M``, the preconditioner and the shape of the region.
        forcing: The relative residual at which the step is good enough.
        max_steps: The most products a step.
    """

    problem: Problem
    gradient: Array
    metric: Metric
    forcing: float
    max_steps: int

    def step(self, radius: float) -> Step:
        """Return the step within ``radius``."""
        A = Operator(self.problem, "hessian")
        d, Ad, r = 0.0 * self.gradient, 0.0 * self.gradient, self.gradient
        z = self.metric.solve(r)
        rz = float(r @ z)
        q, target, norm = -z, rz * self.forcing**2, 0.0
        dd, dq, qq = 0.0, 0.0, rz  # d'Md, d'Mq, q'Mq by recurrence: no product with M
        for k in range(1, self.max_steps + 1):
            Aq = A(q[None, :])[0]
            curvature = float(q @ Aq)
            norm = max(norm, abs(curvature) / qq)
            flat = abs(curvature) <= _EPS * norm * qq  # rounding: neither sign can be believed
            alpha = rz / curvature if curvature > 0 and not flat else np.inf
            if flat and k > 1:
                break
            if np.isinf(alpha) or dd + 2 * alpha * dq + alpha**2 * qq >= radius**2:
                tau = _to_boundary(dd, dq, qq, radius)
                return self._made(d + tau * q, Ad + tau * Aq, radius, True, curvature < 0 and not flat, k)
            d, Ad, r = d + alpha * q, Ad + alpha * Aq, r + alpha * Aq
            dd, z = dd + 2 * alpha * dq + alpha**2 * qq, self.metric.solve(r)
            rz, beta = float(r @ z), float(r @ z) / rz
            if rz <= target:
                break
            q, dq, qq = beta * q - z, beta * (dq + alpha * qq), rz + beta**2 * qq
        return self._made(d, Ad, max(dd, 0.0) ** 0.5, False, False, k)

    def _made(self, d: Array, Ad: Array, length: float, boundary: bool, negative: bool, products: int) -> Step:
        decrease = -float(self.gradient @ d) - 0.5 * float(d @ Ad)
        return Step(d, length, decrease, boundary, negative, products)


def _to_boundary(dd: float, dq: float, qq: float, radius: float) -> float:
    """Return the positive ``tau`` with ``|d + tau q|_M = radius``, without cancellation."""
    room = max(radius**2 - dd, 0.0)
    root = (dq**2 + qq * room) ** 0.5
    return room / (dq + root) if dq > 0 else (root - dq) / qq
