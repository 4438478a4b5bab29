"""One step of a trust-region method from products alone: minimise ``g'd + d'Ad/2`` over ``|d|_M <= radius``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Metric
from vhat.models.problem import Array, Problem

__all__ = ["Model", "Steihaug", "Step"]

_APART = 1.25
"""An iterate is remembered when it is this many times as far out as the last one that is."""
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
class _Place:
    """A point ``d`` of the region, with ``A d`` and ``M d``."""

    d: Array
    Ad: Array
    Md: Array

    @property
    def square(self) -> float:
        """``|d|_M^2``."""
        return max(float(self.d @ self.Md), 0.0)

    def plus(self, t: float, other: _Place) -> _Place:
        """Return the point ``d + t other``."""
        return _Place(self.d + t * other.d, self.Ad + t * other.Ad, self.Md + t * other.Md)

    def until(self, radius: float, q: _Place) -> _Place:
        """Return the point of ``|d|_M = radius`` in the direction ``q``."""
        return self.plus(_to_boundary(self.square, float(self.d @ q.Md), q.square, radius), q)


@dataclass(frozen=True)
class Steihaug:
    """Truncated conjugate gradients in the metric ``M`` (Steihaug, Toint).

    It stops at the boundary, at the first direction of negative curvature (followed to the boundary), or when the
    residual has fallen by ``forcing`` in the norm of ``M^-1``. The iterates move outwards all the way, and some of
    them are remembered: a smaller radius is answered from these, on the line between two, without another product.

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
    _path: list[_Place] = field(default_factory=list, init=False, repr=False, compare=False)

    def step(self, radius: float) -> Step:
        """Return the step within ``radius``."""
        for inner, outer in zip(self._path, self._path[1:], strict=False):
            if outer.square >= radius**2:
                return self._made(inner.until(radius, outer.plus(-1.0, inner)), radius, True, False, 0)
        return self._iterate(radius)

    def _iterate(self, radius: float) -> Step:
        A = Operator(self.problem, "hessian")
        r, z = self.gradient, self.metric.solve(self.gradient)
        at = _Place(0.0 * r, 0.0 * r, 0.0 * r)
        self._path[:] = [at]
        p, Mp, rz, norm = -z, -r, float(r @ z), 0.0  # M p by recurrence: no product with M
        target = rz * self.forcing**2
        for k in range(1, self.max_steps + 1):
            q = _Place(p, A(p[None, :])[0], Mp)
            curvature, size = float(p @ q.Ad), q.square
            norm = max(norm, abs(curvature) / size)
            flat = abs(curvature) <= _EPS * norm * size  # rounding: neither sign can be believed
            if flat and k > 1:
                break
            alpha = rz / curvature if curvature > 0 and not flat else np.inf
            if np.isinf(alpha) or at.plus(alpha, q).square >= radius**2:
                at = at.until(radius, q)
                self._path.append(at)
                return self._made(at, radius, True, curvature < 0 and not flat, k)
            at = at.plus(alpha, q)
            if at.square > _APART**2 * self._path[-1].square:
                self._path.append(at)
            r = r + alpha * q.Ad
            z = self.metric.solve(r)
            rz, beta = float(r @ z), float(r @ z) / rz
            if rz <= target:
                break
            p, Mp = beta * p - z, beta * Mp - r
        self._path.append(at)
        return self._made(at, at.square**0.5, False, False, k)

    def _made(self, at: _Place, length: float, boundary: bool, negative: bool, products: int) -> Step:
        decrease = -float(self.gradient @ at.d) - 0.5 * float(at.d @ at.Ad)
        return Step(at.d, length, decrease, boundary, negative, products)


def _to_boundary(dd: float, dq: float, qq: float, radius: float) -> float:
    """Return the positive ``tau`` with ``|d + tau q|_M = radius``, without cancellation."""
    room = max(radius**2 - dd, 0.0)
    root = (dq**2 + qq * room) ** 0.5
    return room / (dq + root) if dq > 0 else (root - dq) / qq
