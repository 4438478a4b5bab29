"""L-BFGS with the metric as the initial Hessian: a step takes gradients and solves, and no Hessian product."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from vhat.evidence.minimise.newton import Descent, MetricMaker, Observer
from vhat.evidence.minimise.stationarity import Point, Units, decrease, evaluate
from vhat.models.problem import Array

__all__ = ["quasi_newton"]

_MEMORY = 20
"""Pairs (s, y) that are kept."""
_REFRESH = 50
"""Steps after which scales and metric are recomputed."""
_TRIALS = 30
"""Largest number of step lengths that a line search tries."""
_SUFFICIENT_DECREASE = 1e-4
"""Constant of the first Wolfe condition: share of the decrease promised by the slope that a step must reach."""
_CURVATURE = 0.9
"""Constant of the second (weak) Wolfe condition: share of the initial slope that may remain at the end of a step."""


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

    With the Gauss-Newton matrix as the metric, the pairs only have to represent its difference from the Hessian, which
    takes a few dozen directions in a narrow valley. A step costs about one gradient and one solve.

    Args:
        start: Where to begin.
        gtol: Relative gradient at which to stop.
        max_steps: Largest number of steps.
        metric: Makes a metric at a problem's parameters.
        observe: Called after each step.

    Returns:
        The final state, with the length of the last steps as its radius, and the number of steps taken.
    """
    now = start
    taken = 0
    length = 1.0
    pairs: deque[_Pair] = deque(maxlen=_MEMORY)
    while taken < max_steps and now.relative > gtol:
        direction = _direction(now, pairs)
        found, length = _search(now.point, direction, min(1.0, 2.0 * length), now.measured)
        if found is None and not pairs:
            break
        if found is None:  # try again along the preconditioned gradient
            pairs.clear()
            continue
        pair = _pair(now.point, found)
        if pair.curvature > 0:  # else B would not stay positive definite
            pairs.append(pair)
        now = replace(now, point=found)
        taken += 1
        if observe is not None:
            observe(found, now.relative)
        if taken % _REFRESH == 0:
            now = now.refreshed(metric)
    if taken % _REFRESH:
        now = now.refreshed(metric)
    return replace(now, radius=_length_of(now, pairs)), taken


def _direction(now: Descent, pairs: deque[_Pair]) -> Array:
    """Return ``-B g`` by the two-loop recursion. B is the inverse of the metric M, updated by the pairs."""
    problem = now.point.problem
    q = problem.numpy(now.point.gradient)
    weights: list[float] = []
    for pair in reversed(pairs):
        weights.append(float(pair.s @ q) / pair.curvature)
        q = q - weights[-1] * pair.y
    z = problem.numpy(now.metric.solve(problem.native(q)))
    for pair, weight in zip(pairs, reversed(weights), strict=True):
        z = z + (weight - float(pair.y @ z) / pair.curvature) * pair.s
    return problem.native(-z)


def _search(start: Point, d: Array, first: float, measured: Units) -> tuple[Point | None, float]:
    """Find a step length t that satisfies the weak Wolfe conditions, by bisection.

    Args:
        start: The point to start from.
        d: The direction, (p,).
        first: The first length tried.
        measured: The scales at ``start``.

    Returns:
        The point and its t. Where no t satisfies both conditions, the last one that lowers the objective enough; None
        and 1 where there is none.
    """
    problem = start.problem
    slope = float(start.gradient @ d)
    best: tuple[Point | None, float] = (None, 1.0)
    if not slope < 0:
        return best
    low, high = 0.0, np.inf  # bracket of t: too short below, too long above
    t = first
    for _ in range(_TRIALS):
        trial = evaluate(problem.at(problem.theta + t * d))
        enough = decrease(start, trial, -t * slope, measured) >= -_SUFFICIENT_DECREASE * t * slope
        if not enough:
            high = t
            t = 0.5 * (low + high) if low else max(0.1 * t, _vertex(start, trial, slope, t))
            continue
        best = (trial, t)
        if float(trial.gradient @ d) >= _CURVATURE * slope:
            break
        low = t
        t = 2.0 * t if np.isinf(high) else 0.5 * (low + high)
    return best


def _vertex(start: Point, trial: Point, slope: float, t: float) -> float:
    """Return the minimum of the parabola through both objectives with the slope at the start, at most ``t/2``."""
    rise = trial.objective - start.objective - slope * t
    if not (np.isfinite(rise) and rise > 0):
        return 0.5 * t
    return min(-slope * t**2 / (2 * rise), 0.5 * t)


def _pair(start: Point, end: Point) -> _Pair:
    numpy = start.problem.numpy
    return _Pair(numpy(end.problem.theta - start.problem.theta), numpy(end.gradient - start.gradient))


def _length_of(now: Descent, pairs: deque[_Pair]) -> float:
    """Return the length ``|d|_M`` of the sum of the last steps; the radius as it was if there are none."""
    if not pairs:
        return now.radius
    d = now.point.problem.native(np.sum([pair.s for pair in pairs], axis=0))
    return float(d @ now.metric.apply(d)) ** 0.5
