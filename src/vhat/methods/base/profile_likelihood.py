"""The largest prediction over a region of parameters that fit nearly as well, by a search along its boundary.

The region is ``{E <= 1}`` with ``E = (L(theta) - L(theta_hat)) / beta``. At an extreme of the prediction, its gradient
g and the gradient e of E are parallel. The search starts at a point of the boundary. Each step follows the component
of g tangential to the boundary, in the metric of the Gauss-Newton matrix B at the current point::

    z = B^-1 (g - mu e),    mu = g'B^-1 e / e'B^-1 e,    theta <- theta + z/(mu damping), and back to the boundary

Here mu estimates the Lagrange multiplier. For a linear model the first point is already the extreme. The metric is
computed anew at every point because the regions are long and bent where only the decay determines a direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize

from vhat.linalg.curvature import assemble
from vhat.models.problem import Problem

__all__ = ["Region", "extreme_prediction"]

_PARALLEL = 1e-3
"""Sine of the angle between g and e at which the search ends. The prediction is then accurate to its square."""
_BOUNDARY_TOLERANCE = 1e-7
"""Largest ``|E - 1|`` of a point that counts as on the boundary."""
_MOST_STEPS = 300
"""Most steps along the boundary before the search gives up."""
_MOST_TRIALS = 30
"""Most lengths tried for one step, and for the first point of the boundary."""
_MOST_CORRECTIONS = 8
"""Most Newton corrections that bring one step back to the boundary."""
_LEAST_GAIN_RATIO = 0.1
"""Least ratio of actual to predicted gain for which a step is accepted."""
_LEAST_DAMPING = 0.25
"""Smallest damping: steps are at most four times as long as the metric suggests."""
_DAMPING_GROWTH = 2.5
"""Factor on the damping after a rejected step."""
_LEAST_MULTIPLIER = 0.1
"""Lower bound on mu in a step, in units of its value where g and e are parallel: keeps steps finite where mu is near
zero or negative."""


class _Point(NamedTuple):
    """A point on the boundary or near it.

    Attributes:
        problem: The problem at these parameters.
        theta: The parameters, (p,).
        excess: E, which is 1 on the boundary.
        normal: The gradient e of E, (p,).
    """

    problem: Problem
    theta: np.ndarray
    excess: float
    normal: np.ndarray


class _Metric(NamedTuple):
    """A Cholesky factor of the Gauss-Newton matrix in units of beta."""

    factor: Any

    def inverse(self, v: np.ndarray) -> np.ndarray:
        """Return ``B^-1 v``."""
        return np.asarray(linalg.cho_solve(self.factor, v))


class _SignedPrediction(NamedTuple):
    """The prediction and its gradient, both times the sign of the search, so that the search always maximises."""

    value: float
    slope: np.ndarray


@dataclass(frozen=True, eq=False)
class Region:
    """The parameters whose objective is at most ``beta`` above that of the fit.

    Attributes:
        problem: The problem at the fit.
        matrix: ``H + lam`` at the fit, positive definite, (p, p).
        beta: Largest excess of the objective, in its own units.
    """

    problem: Problem
    matrix: np.ndarray
    beta: float

    def at(self, theta: np.ndarray) -> _Point:
        """Evaluate E and its gradient at other parameters."""
        moved = self.problem.at(self.problem.native(theta))
        excess = (moved.objective() + moved.penalty() - self._least) / self.beta
        slope = moved.numpy(moved.gradient() + moved.penalty_gradient())
        return _Point(moved, theta, excess, slope / self.beta)

    def metric(self, point: _Point) -> _Metric | None:
        """Return the metric at a point; None if the Gauss-Newton matrix is singular there."""
        try:
            return _Metric(linalg.cho_factor(assemble(point.problem, "ggn") / self.beta))
        except (linalg.LinAlgError, ValueError):
            return None

    @property
    def theta(self) -> np.ndarray:
        """The parameters of the fit, (p,)."""
        return self.problem.numpy(self.problem.theta)

    @property
    def _least(self) -> float:
        """The penalised objective at the fit."""
        return self.problem.objective() + self.problem.penalty()


def extreme_prediction(region: Region, x: Any, output: int, sign: float) -> float:
    """Return the largest (``sign=1``) or smallest (``sign=-1``) prediction over the region; NaN if the search fails.

    Args:
        region: The region.
        x: One checked input.
        output: Number of the output.
        sign: 1 or -1.
    """

    def predict(problem: Problem) -> _SignedPrediction:
        slope = problem.numpy(problem.gradients(x))[output]
        return _SignedPrediction(sign * float(problem.predict(x)[0, output]), sign * slope)

    point = _first_point(region, predict(region.problem).slope)
    damping = 1.0
    for _ in range(_MOST_STEPS):
        if point is None:
            return math.nan
        metric = region.metric(point)
        if metric is None:
            return math.nan
        here = predict(point.problem)
        to_normal = metric.inverse(point.normal)
        to_slope = metric.inverse(here.slope)
        multiplier = float(here.slope @ to_normal) / float(point.normal @ to_normal)
        square = float(here.slope @ to_slope)  # g'B^-1 g
        direction = to_slope - multiplier * to_normal  # z
        # z'B z: the squared length of the tangential part. Rounding can make it slightly negative.
        tangential = max(float((here.slope - multiplier * point.normal) @ direction), 0.0)
        # A negative multiplier with parallel gradients is the opposite extreme, not the one searched for.
        if tangential <= _PARALLEL**2 * square and (multiplier > 0 or square == 0):
            return sign * here.value
        scale = max(multiplier, _LEAST_MULTIPLIER * math.sqrt(square / float(point.normal @ to_normal)))
        point, damping = _step(region, point, metric, predict, direction / scale, tangential / scale, damping)
    return math.nan


def _first_point(region: Region, slope: np.ndarray) -> _Point | None:
    """Return the boundary point on the ray of steepest growth of the prediction; None if the ray does not meet it."""
    metric = _Metric(linalg.cho_factor(region.matrix / region.beta))
    ray = metric.inverse(slope)
    square = float(slope @ ray)
    if not square > 0:  # no parameter changes the prediction here: any direction will do
        slope = np.sqrt(np.diag(region.matrix))
        ray = metric.inverse(slope)
        square = float(slope @ ray)
    # To second order E grows to 1 along the whole ray: E(start + ray) = ray'B ray / 2 = 1.
    ray = ray * math.sqrt(2 / square)
    start = region.theta

    def excess(length: float) -> float:
        found = region.at(start + length * ray).excess - 1
        return found if math.isfinite(found) else math.inf

    length = 1.0
    if abs(excess(length)) > _BOUNDARY_TOLERANCE:
        # Double or halve until the end of the ray is outside the region but E is finite, then find the root.
        for _ in range(_MOST_TRIALS):
            end = excess(length)
            if 0 <= end < math.inf:
                break
            length *= 2.0 if end < 0 else 0.5
        else:
            return None
        length = float(optimize.brentq(excess, 0.0, length, xtol=1e-14, rtol=1e-10))
    return region.at(start + length * ray)


def _step(
    region: Region,
    point: _Point,
    metric: _Metric,
    predict: Callable[[Problem], _SignedPrediction],
    direction: np.ndarray,
    gain: float,
    damping: float,
) -> tuple[_Point | None, float]:
    """Take a step along ``direction``, with damping as in a trust region.

    Args:
        region: The region.
        point: The current point.
        metric: The metric there.
        predict: The prediction at a problem.
        direction: The undamped step, (p,).
        gain: First-order gain of the prediction by that step.
        damping: Current damping.

    Returns:
        The new point, None if no step gains enough; and the new damping.
    """
    value = predict(point.problem).value
    for _ in range(_MOST_TRIALS):
        moved = _back_to_boundary(region, region.at(point.theta + direction / damping), metric)
        if moved is not None:
            # The gain of the quadratic model; shorter steps lose less to curvature.
            predicted = gain / damping * (1 - 0.5 / max(damping, 1.0))
            ratio = (predict(moved.problem).value - value) / predicted
            if ratio > _LEAST_GAIN_RATIO:
                return moved, max(damping * _damping_factor(ratio), _LEAST_DAMPING)
        damping *= _DAMPING_GROWTH
    return None, damping


def _damping_factor(ratio: float) -> float:
    """Return the factor on the damping after a step with this ratio of actual to predicted gain."""
    if ratio > 0.9:
        return 0.5
    if ratio > 0.6:
        return 0.8
    if ratio < 0.3:
        return 1.3
    return 1.0


def _back_to_boundary(region: Region, point: _Point, metric: _Metric) -> _Point | None:
    """Move a point along the gradient of E to the boundary, by Newton's method; None if that does not converge."""
    for _ in range(_MOST_CORRECTIONS):
        if not math.isfinite(point.excess):
            return None
        if abs(point.excess - 1) <= _BOUNDARY_TOLERANCE:
            return point
        inward = metric.inverse(point.normal)
        # Far outside the region the linear model of E is unreliable: take between half and all of the Newton step.
        share = 1.0 if point.excess < 2 else 0.5 * (1 + 1 / point.excess)
        length = share * (point.excess - 1) / float(point.normal @ inward)
        point = region.at(point.theta - length * inward)
    if abs(point.excess - 1) <= _BOUNDARY_TOLERANCE:
        return point
    return None
