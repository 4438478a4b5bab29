"""A descent by L-BFGS that starts from the metric in the place of the Hessian: gradients and solves, no products."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from vhat.evidence.minimise.newton import Descent, MetricMaker, Observer
from vhat.evidence.minimise.stationarity import Point, Units, decrease, evaluate
from vhat.models.problem import Array

__all__ = ["quasi_newton"]

_MEMORY = 20
_REFRESH = 50
"""Steps after which scales and metric are computed anew."""
_TRIALS = 30
_ENOUGH = 1e-4
"""The share of the decrease which the slope promises that is asked of a step."""
_FLATTER = 0.9
"""The share of the slope that may be left at its end."""


@dataclass(frozen=True)
class _Pair:
    """A step ``s`` and the change of gradient ``y`` along it, NumPy (p,)."""

    s: np.ndarray
    y: np.ndarray

    @property
    def curvature(self) -> float:
        """``s'y``."""
        return float(self.s @ self.y)


def quasi_newton(
    start: Descent, *, gtol: float, max_steps: int, metric: MetricMaker, observe: Observer | None = None
) -> tuple[Descent, int]:
    """Lower the penalised objective by at most ``max_steps`` steps of L-BFGS in the metric.

    With the Gauss-Newton matrix as its metric, L-BFGS has only to learn how the Hessian differs from it: a few dozen
    directions in a narrow valley. A step costs about one gradient and one solve.

    Args:
        start: Where to begin.
        gtol: Relative gradient at which to stop.
        max_steps: The most steps.
        metric: Makes a metric at a problem's parameters.
        observe: Called after each step.

    Returns:
        The end, its radius as far as the last steps have led, and the steps taken.
    """
    now, taken, stride = start, 0, 1.0
    pairs: deque[_Pair] = deque(maxlen=_MEMORY)
    while taken < max_steps and now.relative > gtol:
        direction = _direction(now, pairs)
        found, stride = _search(now.point, direction, min(1.0, 2.0 * stride), now.measured)
        if found is None and not pairs:
            break
        if found is None:
            pairs.clear()
            continue
        pair = _pair(now.point, found)
        if pair.curvature > 0:
            pairs.append(pair)
        now, taken = replace(now, point=found), taken + 1
        if observe is not None:
            observe(found, now.relative)
        if taken % _REFRESH == 0:
            now = now.refreshed(metric)
    now = now.refreshed(metric) if taken % _REFRESH else now
    return replace(now, radius=_reach(now, pairs)), taken


def _direction(now: Descent, pairs: deque[_Pair]) -> Array:
    """Return ``-B g`` by the two-loop recursion, ``B`` being ``M^-1`` corrected by the pairs."""
    problem = now.point.problem
    q, weights = problem.numpy(now.point.gradient), []
    for pair in reversed(pairs):
        weights.append(float(pair.s @ q) / pair.curvature)
        q = q - weights[-1] * pair.y
    z = problem.numpy(now.metric.solve(problem.native(q)))
    for pair, weight in zip(pairs, reversed(weights), strict=True):
        z = z + (weight - float(pair.y @ z) / pair.curvature) * pair.s
    return problem.native(-z)


def _search(start: Point, d: Array, first: float, measured: Units) -> tuple[Point | None, float]:
    """Find a step length for which the weak conditions of Wolfe hold, by bisection.

    Returns:
        The point and its ``t``; None and 1 where no ``t`` was found that lowers the objective enough.
    """
    problem, slope = start.problem, float(start.gradient @ d)
    low, high, t = 0.0, np.inf, first
    best: tuple[Point | None, float] = (None, 1.0)
    for _ in range(_TRIALS if slope < 0 else 0):
        trial = evaluate(problem.at(problem.theta + t * d))
        if not decrease(start, trial, -t * slope, measured) >= -_ENOUGH * t * slope:
            high = t
            t = 0.5 * (low + high) if low else max(0.1 * t, _vertex(start, trial, slope, t))
            continue
        best = (trial, t)
        if float(trial.gradient @ d) >= _FLATTER * slope:
            break
        low = t
        t = 2.0 * t if np.isinf(high) else 0.5 * (low + high)
    return best


def _vertex(start: Point, trial: Point, slope: float, t: float) -> float:
    """Return where the parabola through both objectives, with the slope at the start, is lowest; at most ``t/2``."""
    rise = trial.objective - start.objective - slope * t
    return min(-slope * t**2 / (2 * rise), 0.5 * t) if np.isfinite(rise) and rise > 0 else 0.5 * t


def _pair(start: Point, end: Point) -> _Pair:
    numpy = start.problem.numpy
    return _Pair(numpy(end.problem.theta - start.problem.theta), numpy(end.gradient - start.gradient))


def _reach(now: Descent, pairs: deque[_Pair]) -> float:
    """Return the length ``|d|_M`` of the last steps together, the radius as it was if there are none."""
    if not pairs:
        return now.radius
    d = now.point.problem.native(np.sum([pair.s for pair in pairs], axis=0))
    return float(d @ now.metric.apply(d)) ** 0.5
