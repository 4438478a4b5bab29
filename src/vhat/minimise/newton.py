"""Trust-region Newton on exact Hessian products: down to a stationary point, past saddles, to the last digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from vhat.curvature.metric import Jacobi, Metric
from vhat.minimise.spectral import Spectral
from vhat.minimise.stationarity import Point, Units, evaluate, relative_gradient, units
from vhat.minimise.steihaug import Model, Steihaug, Step
from vhat.problem import Problem

__all__ = ["Descent", "MetricMaker", "Progress", "newton"]

Progress = Callable[[int, float, float], Any]
"""Called as ``progress(step, objective, relative_gradient)``."""

MetricMaker = Callable[[Problem], Metric]
"""Makes the metric of the trust region at a problem's parameters."""

_SPECTRAL = 200
"""Up to this p every step forms the matrix."""
_REFRESH = 10
"""Steps after which scales and metric are computed anew."""
_RESOLVED = 100
"""A predicted decrease below this many times the rounding of the objective is judged by gradients."""
_STALLS = 6
"""Unresolved steps in a row that do not halve the gradient before the iteration gives up."""


@dataclass(frozen=True)
class Descent:
    """Where the iteration stands.

    Attributes:
        point: The parameters, the penalised objective and its gradient.
        measured: The scales there, at most a few steps old.
        metric: The metric there, as old.
        radius: The trust radius, in the root unit of the objective.
        steps: Trial steps taken.
        products: Hessian products used.
        stalls: Unresolved steps in a row that did not halve the gradient.
        status: "stationary", "stalled" (rounding, or a kink) or "moving" (out of steps) in the end.
    """

    point: Point
    measured: Units
    metric: Metric
    radius: float
    steps: int = 0
    products: int = 0
    stalls: int = 0
    status: Literal["moving", "stationary", "stalled"] = "moving"

    @property
    def relative(self) -> float:
        """The relative gradient."""
        return relative_gradient(self.point, self.measured)

    @classmethod
    def begin(cls, point: Point, metric: MetricMaker | None) -> Descent:
        """Return the start of a descent, its radius the root unit of the objective."""
        measured = units(point.problem)
        return cls(point, measured, _metric(point.problem, measured, metric), measured.root)

    def refreshed(self, metric: MetricMaker | None) -> Descent:
        """Return the same place with scales and metric computed anew."""
        measured = units(self.point.problem)
        return replace(self, measured=measured, metric=_metric(self.point.problem, measured, metric))


def _metric(problem: Problem, measured: Units, metric: MetricMaker | None) -> Metric:
    return Jacobi(measured.stride) if metric is None else metric(problem)


def newton(
    start: Descent,
    *,
    gtol: float,
    max_steps: int,
    metric: MetricMaker | None = None,
    progress: Progress | None = None,
) -> Descent:
    """Descend until the relative gradient is at most ``gtol``, or nothing moves any more.

    Each step minimises the quadratic model within the trust region: exactly for small p, by truncated conjugate
    gradients otherwise, solved the more tightly the smaller the gradient (quadratic convergence). A step is judged
    by the objective as long as the objective resolves its decrease, and by the gradient after that.

    Args:
        start: Where to begin, with the radius, and the counts so far.
        gtol: The relative gradient to reach.
        max_steps: The most trial steps, counting those of ``start``.
        metric: Makes a metric at a problem's parameters; Jacobi by default.
        progress: Called after each step.

    Returns:
        The end, with status "stationary", "stalled" or "moving".
    """
    now, model, moved = replace(start, status="moving", stalls=0), None, 0
    while True:
        if moved >= _REFRESH or (moved and now.relative <= gtol):
            now, moved, model = now.refreshed(metric), 0, None
        if now.relative <= gtol:
            return replace(now, status="stationary")
        if now.stalls >= _STALLS:
            return replace(now.refreshed(metric), status="stalled")
        if now.steps >= max_steps:
            return now.refreshed(metric)
        model = model or _model(now, gtol, metric is None)
        after = _advance(now, model)
        if after.point is not now.point:
            model, moved = None, moved + 1
        now = after
        if progress is not None:
            progress(now.steps, now.point.objective, now.relative)


def _model(now: Descent, gtol: float, jacobi: bool) -> Model:
    """Return the quadratic model at the present point."""
    problem = now.point.problem
    if jacobi and problem.p <= _SPECTRAL:
        return Spectral(problem, now.point.gradient, now.measured.stride)
    forcing = max(min(0.1, now.relative), 0.1 * gtol / now.relative)
    return Steihaug(problem, now.point.gradient, now.metric, forcing, min(2 * problem.p, 2000))


def _advance(now: Descent, model: Model) -> Descent:
    """Try one step: move or stay, and adapt the radius."""
    step = model.step(now.radius)
    trial = evaluate(now.point.problem.at(now.point.problem.theta + step.direction))
    ratio, halved = _judge(now, trial, step)
    resolved = step.decrease > _RESOLVED * now.measured.resolution
    radius = now.radius
    if ratio < 0.25:
        radius = 0.25 * min(step.length, now.radius)
    elif ratio > 0.75 and step.boundary:
        radius = 2.0 * now.radius
    return replace(
        now,
        point=trial if ratio > 1e-3 else now.point,
        radius=radius,
        steps=now.steps + 1,
        products=now.products + step.products,
        stalls=0 if resolved or halved else now.stalls + 1,
    )


def _judge(now: Descent, trial: Point, step: Step) -> tuple[float, bool]:
    """Return actual over predicted decrease, and whether the gradient was halved.

    Where the objective cannot resolve the decrease, a step into negative curvature is judged by the trapezoid rule
    ``-(g + g_new)'d/2`` (free of cancellation), any other by whether the gradient falls.
    """
    if not trial.finite:
        return -np.inf, False
    before = float(now.point.gradient @ now.metric.solve(now.point.gradient))
    after = float(trial.gradient @ now.metric.solve(trial.gradient))
    halved = after <= 0.25 * before
    if step.decrease > _RESOLVED * now.measured.resolution:
        return (now.point.objective - trial.objective) / step.decrease, halved
    if step.negative and step.decrease > 0:
        return -0.5 * float((now.point.gradient + trial.gradient) @ step.direction) / step.decrease, halved
    return (1.0 if halved else 0.5 if after < before else -1.0), halved
