"""One trust-region step from Hessian products: minimise ``g'd + d'Ad/2`` over ``|d|_M <= radius``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vhat.linalg.curvature import Operator
from vhat.linalg.curvature.inner_product import Metric
from vhat.models.problem import Array, Problem

__all__ = ["Model", "Steihaug", "Step"]

_APART = 1.25
"""Factor on the length at which the next iterate is kept."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Step:
    """A step and the decrease that the quadratic model predicts for it.

    Attributes:
        direction: ``d``, p-space (p,).
        length: ``|d|_M``.
        decrease: The predicted decrease ``-(g'd + d'Ad/2)``, never negative.
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
    """The quadratic model at one point. After a rejected step it is minimised again within a smaller radius."""

    def step(self, radius: float) -> Step:
        """Return the step within ``radius``."""


@dataclass(frozen=True)
class _Iterate:
    """A vector ``d``, with ``A d`` and ``M d``."""

    d: Array
    Ad: Array
    Md: Array

    @property
    def square(self) -> float:
        """``|d|_M^2``."""
        return max(float(self.d @ self.Md), 0.0)

    def plus(self, t: float, other: _Iterate) -> _Iterate:
        """Return ``d + t other``."""
        return _Iterate(self.d + t * other.d, self.Ad + t * other.Ad, self.Md + t * other.Md)

    def extended(self, radius: float, q: _Iterate) -> _Iterate:
        """Return the point ``d + tau q`` of the boundary ``|d + tau q|_M = radius``, with ``tau >= 0``."""
        return self.plus(_to_boundary(self.square, float(self.d @ q.Md), q.square, radius), q)


@dataclass(frozen=True)
class Steihaug:
    """Truncated conjugate gradients in the metric ``M`` (Steihaug, Toint).

    The iteration stops at the boundary, at the first direction of negative curvature (which it follows to the
    boundary), or when the residual has fallen by the factor ``forcing`` in the norm of ``M^-1``. The length ``|d|_M``
    of its iterates increases from step to step. Some of them are kept: the step within a smaller radius lies on the
    line between two of them and needs no further product.

    Attributes:
        problem: The problem at the point.
        gradient: ``g``, p-space (p,).
        metric: ``M``, the preconditioner and the shape of the region.
        forcing: Relative residual at which the iteration stops.
        max_steps: Largest number of products of one step.
    """

    problem: Problem
    gradient: Array
    metric: Metric
    forcing: float
    max_steps: int
    _path: list[_Iterate] = field(default_factory=list, init=False, repr=False, compare=False)

    def step(self, radius: float) -> Step:
        """Return the step within ``radius``."""
        for inner, outer in zip(self._path, self._path[1:], strict=False):
            if outer.square >= radius**2:
                end = inner.extended(radius, outer.plus(-1.0, inner))
                return self._step(end, radius, boundary=True, negative=False, products=0)
        return self._iterate(radius)

    def _iterate(self, radius: float) -> Step:
        """Run preconditioned conjugate gradients from zero."""
        A = Operator(self.problem, "hessian")
        r = self.gradient  # gradient of the model at the iterate
        z = self.metric.solve(r)
        at = _Iterate(0.0 * r, 0.0 * r, 0.0 * r)
        self._path[:] = [at]
        p = -z  # search direction
        Mp = -r  # M p, by the same recurrence as p, so that no product with M is needed
        rz = float(r @ z)
        largest = 0.0  # largest |curvature| seen, the unit of rounding
        target = rz * self.forcing**2
        for k in range(1, self.max_steps + 1):
            q = _Iterate(p, A(p[None, :])[0], Mp)
            curvature = float(p @ q.Ad)
            size = q.square
            largest = max(largest, abs(curvature) / size)
            flat = abs(curvature) <= _EPS * largest * size  # the sign is that of rounding
            if flat and k > 1:
                break
            alpha = rz / curvature if curvature > 0 and not flat else np.inf
            if np.isinf(alpha) or at.plus(alpha, q).square >= radius**2:
                at = at.extended(radius, q)
                self._path.append(at)
                return self._step(at, radius, boundary=True, negative=curvature < 0 and not flat, products=k)
            at = at.plus(alpha, q)
            if at.square > _APART**2 * self._path[-1].square:
                self._path.append(at)
            r = r + alpha * q.Ad
            z = self.metric.solve(r)
            rz_before = rz
            rz = float(r @ z)
            beta = rz / rz_before
            if rz <= target:
                break
            p = beta * p - z
            Mp = beta * Mp - r
        self._path.append(at)
        return self._step(at, at.square**0.5, boundary=False, negative=False, products=k)

    def _step(self, at: _Iterate, length: float, *, boundary: bool, negative: bool, products: int) -> Step:
        decrease = -float(self.gradient @ at.d) - 0.5 * float(at.d @ at.Ad)
        return Step(at.d, length, decrease, boundary, negative, products)


def _to_boundary(dd: float, dq: float, qq: float, radius: float) -> float:
    """Return the positive ``tau`` with ``|d + tau q|_M = radius``, without cancellation."""
    room = max(radius**2 - dd, 0.0)
    root = (dq**2 + qq * room) ** 0.5
    return room / (dq + root) if dq > 0 else (root - dq) / qq
