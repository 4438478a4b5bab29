"""The largest prediction over the parameters that fit nearly as well: a walk along the edge of their region.

The region is ``{E <= 1}`` with ``E = (L(theta) - L(theta_hat)) / beta``. At its extremes the gradients of prediction
and E are parallel. From a first point of the edge, each step follows what is left of the prediction's gradient g
when its part along E's gradient e is taken off, in the metric of the Gauss-Newton matrix B at that very point::

    z = B^-1 (g - push e),    push = g'B^-1 e / e'B^-1 e,    theta <- theta + z/(push damping), and back to the edge

For a linear model the first point is the extreme itself. Curved regions are followed by their own metric, which one
metric for all of a region would not do: where the decay alone holds a direction, they are long and bent.
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

__all__ = ["Region", "farthest"]

_PARALLEL = 1e-3
"""The sine of the angle between g and e at which a walk ends; the prediction is then right to its square."""
_ON_EDGE = 1e-7
"""Distance of E from one at which a point counts as on the edge."""
_MOST_STEPS = 300
"""Steps along the edge before the search gives up."""
_MOST_TRIALS = 30
"""Lengths that are tried for one step, and for the first point of the edge."""
_MOST_CORRECTIONS = 8
"""Newton corrections that bring one step back to the edge."""
_WORTH = 0.1
"""Least share of the predicted gain for which a step is accepted."""
_LEAST_DAMPING = 0.25
"""Smallest damping: steps are at most four times those of the metric."""


class _Place(NamedTuple):
    """A point of the edge, or one on the way to it: the problem there, E, and its gradient."""

    problem: Problem
    theta: np.ndarray
    excess: float
    normal: np.ndarray


class _Metric(NamedTuple):
    """A factorised Gauss-Newton matrix, in units of beta."""

    factor: Any

    def inverse(self, v: np.ndarray) -> np.ndarray:
        return np.asarray(linalg.cho_solve(self.factor, v))


class _Outlook(NamedTuple):
    """The prediction and its gradient, both times the sign in which it is to grow."""

    value: float
    slope: np.ndarray


@dataclass(frozen=True, eq=False)
class Region:
    """Parameters whose objective is at most ``beta`` above that of the fit.

    Attributes:
        problem: The problem at the fit.
        matrix: ``H + lam`` there, positive definite.
        beta: The room.
    """

    problem: Problem
    matrix: np.ndarray
    beta: float

    def at(self, theta: np.ndarray) -> _Place:
        """Look at other parameters."""
        moved = self.problem.at(self.problem.native(theta))
        excess = (moved.objective() + moved.penalty() - self._least) / self.beta
        slope = moved.numpy(moved.gradient() + moved.penalty_gradient())
        return _Place(moved, theta, excess, slope / self.beta)

    def metric(self, place: _Place) -> _Metric | None:
        """Return the metric at a place, None where it is singular."""
        try:
            return _Metric(linalg.cho_factor(assemble(place.problem, "ggn") / self.beta))
        except (linalg.LinAlgError, ValueError):
            return None

    @property
    def theta(self) -> np.ndarray:
        """The fit."""
        return self.problem.numpy(self.problem.theta)

    @property
    def _least(self) -> float:
        return self.problem.objective() + self.problem.penalty()


def farthest(region: Region, point: Any, output: int, sign: float) -> float:
    """Return the largest (``sign=1``) or smallest (-1) prediction over the region; NaN where the walk is lost.

    Args:
        region: The region.
        point: One checked input.
        output: Which output.
        sign: Which way.
    """

    def look(problem: Problem) -> _Outlook:
        slope = problem.numpy(problem.gradients(point))[output]
        return _Outlook(sign * float(problem.predict(point)[0, output]), sign * slope)

    place = _first_place(region, look(region.problem).slope)
    damping = 1.0
    for _ in range(_MOST_STEPS):
        if place is None:
            return math.nan
        metric = region.metric(place)
        if metric is None:
            return math.nan
        here = look(place.problem)
        to_normal = metric.inverse(place.normal)
        to_slope = metric.inverse(here.slope)
        push = float(here.slope @ to_normal) / float(place.normal @ to_normal)
        length = float(here.slope @ to_slope)
        direction = to_slope - push * to_normal
        size = max(float((here.slope - push * place.normal) @ direction), 0.0)
        if size <= _PARALLEL**2 * length and (push > 0 or length == 0):
            return sign * here.value
        weight = max(push, 0.1 * math.sqrt(length / float(place.normal @ to_normal)))
        place, damping = _step(region, place, metric, look, direction / weight, size / weight, damping)
    return math.nan


def _first_place(region: Region, slope: np.ndarray) -> _Place | None:
    """Return the point where the ray of steepest growth of the prediction meets the edge; None where it does not."""
    metric = _Metric(linalg.cho_factor(region.matrix / region.beta))
    ray = metric.inverse(slope)
    length = float(slope @ ray)
    if not length > 0:  # no parameter moves the prediction here: any direction will do
        slope = np.sqrt(np.diag(region.matrix))
        ray = metric.inverse(slope)
        length = float(slope @ ray)
    ray = ray * math.sqrt(2 / length)
    start = region.theta

    def excess(along: float) -> float:
        found = region.at(start + along * ray).excess - 1
        return found if math.isfinite(found) else math.inf

    reach = 1.0
    if abs(excess(reach)) > _ON_EDGE:
        for _ in range(_MOST_TRIALS):
            height = excess(reach)
            if 0 <= height < math.inf:
                break
            reach *= 2.0 if height < 0 else 0.5
        else:
            return None
        reach = float(optimize.brentq(excess, 0.0, reach, xtol=1e-14, rtol=1e-10))
    return region.at(start + reach * ray)


def _step(
    region: Region,
    place: _Place,
    metric: _Metric,
    look: Callable[[Problem], _Outlook],
    direction: np.ndarray,
    size: float,
    damping: float,
) -> tuple[_Place | None, float]:
    """Go along ``direction``, the shorter the less the metric can be trusted; None where no step is worth it."""
    value = look(place.problem).value
    for _ in range(_MOST_TRIALS):
        moved = _back_to_edge(region, region.at(place.theta + direction / damping), metric)
        if moved is not None:
            promised = size / damping * (1 - 0.5 / max(damping, 1.0))
            worth = (look(moved.problem).value - value) / promised
            if worth > _WORTH:
                return moved, max(damping * _change(worth), _LEAST_DAMPING)
        damping *= 2.5
    return None, damping


def _change(worth: float) -> float:
    """Return by how much the damping changes after a step that gave this share of what was promised."""
    if worth > 0.9:
        return 0.5
    if worth > 0.6:
        return 0.8
    if worth < 0.3:
        return 1.3
    return 1.0


def _back_to_edge(region: Region, place: _Place, metric: _Metric) -> _Place | None:
    """Correct a point along the gradient of E, by Newton's method; None where that does not lead to the edge."""
    for _ in range(_MOST_CORRECTIONS):
        if not math.isfinite(place.excess):
            return None
        if abs(place.excess - 1) <= _ON_EDGE:
            return place
        inward = metric.inverse(place.normal)
        room = 1.0 if place.excess < 2 else 0.5 * (1 + 1 / place.excess)
        step = room * (place.excess - 1) / float(place.normal @ inward)
        place = region.at(place.theta - step * inward)
    if abs(place.excess - 1) <= _ON_EDGE:
        return place
    return None
