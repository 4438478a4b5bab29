"""Trust-region Newton on exact Hessian products: down to a stationary point, past saddles, to the last digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from vhat.evidence.minimise.spectral_step import Spectral
from vhat.evidence.minimise.stationarity import Point, Units, decrease, evaluate, relative_gradient, units
from vhat.evidence.minimise.steihaug_step import Model, Steihaug, Step
from vhat.linalg.curvature.inner_product import Jacobi, Metric
from vhat.models.problem import LossDerivatives, Problem

__all__ = ["Descent", "MetricMaker", "Observer", "newton"]

Observer = Callable[[Point, float], Any]
"""Called after each step as ``observe(point, relative_gradient)``."""

MetricMaker = Callable[[Problem], Metric]
"""Makes the metric of the trust region at a problem's parameters."""

_SPECTRAL = 200
"""Up to this p every step forms the matrix."""
_REFRESH = 10
"""Steps after which scales and metric are computed anew in any case."""
_WORN = 20
"""Products after which a new metric, which would have saved some, is worth its price."""
_TRUE = 0.9
"""Above this share of the predicted decrease a step needs no bending, and the metric no renewal."""
_BENDS = 4
"""The most corrections of one step for the curvature of the predictions."""
_LOOSEST = 0.3
"""The largest forcing term."""
_STALLS = 6
"""Unresolved steps in a row that get nowhere before the iteration gives up."""
_TINY = float(np.finfo(np.float64).tiny)


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
        stalls: Unresolved steps in a row that got nowhere.
        forcing: How much the last step lowered the gradient: as much will be asked of the next linear solve.
        wear: Products since the metric was made.
        stale: Whether the metric has shown its age.
        status: "stationary", "stalled" (rounding, or a kink) or "moving" (out of steps) in the end.
    """

    point: Point
    measured: Units
    metric: Metric
    radius: float
    steps: int = 0
    products: int = 0
    stalls: int = 0
    forcing: float = 0.1
    wear: int = 0
    stale: bool = False
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
        made = _metric(self.point.problem, measured, metric)
        return replace(self, measured=measured, metric=made, wear=0, stale=False)


def _metric(problem: Problem, measured: Units, metric: MetricMaker | None) -> Metric:
    return Jacobi(measured.stride) if metric is None else metric(problem)


def newton(
    start: Descent,
    *,
    gtol: float,
    max_steps: int,
    metric: MetricMaker | None = None,
    observe: Observer | None = None,
) -> Descent:
    """Descend until the relative gradient is at most ``gtol``, or nothing moves any more.

    Each step minimises the quadratic model within the trust region: exactly for small p, by truncated conjugate
    gradients otherwise, solved the more tightly the faster the gradient falls. A step is judged by the objective as
    long as the objective resolves its decrease, and by the gradients at both ends after that.

    Where a metric is given, it should be close to the Gauss-Newton matrix: a step that falls short of the model's
    promise is then bent along the curvature of the predictions, by solves alone, before it is refused.

    Args:
        start: Where to begin, with the radius, and the counts so far.
        gtol: The relative gradient to reach.
        max_steps: The most trial steps, counting those of ``start``.
        metric: Makes a metric at a problem's parameters; Jacobi by default.
        observe: Called after each step, also after one that was refused.

    Returns:
        The end, with status "stationary", "stalled" or "moving".
    """
    now, model, moved = replace(start, status="moving", stalls=0), None, 0
    while True:
        # a refused step leaves the model standing, and with it the metric: both answer the next radius for nothing
        if moved and model is None and (now.stale or moved >= _REFRESH or now.relative <= gtol):
            now, moved = now.refreshed(metric), 0
        if now.relative <= gtol:
            return replace(now, status="stationary")
        if now.stalls >= _STALLS:
            return replace(now.refreshed(metric), status="stalled")
        if now.steps >= max_steps:
            return now.refreshed(metric)
        model = model or _model(now, gtol, metric is None)
        after = _advance(now, model, bends=0 if metric is None else _BENDS)
        if after.point is not now.point:
            model, moved = None, moved + 1
        now = after
        if observe is not None:
            observe(now.point, now.relative)


def _model(now: Descent, gtol: float, jacobi: bool) -> Model:
    """Return the quadratic model at the present point."""
    problem = now.point.problem
    if jacobi and problem.p <= _SPECTRAL:
        return Spectral(problem, now.point.gradient, now.measured.stride)
    forcing = max(min(_LOOSEST, now.forcing), 0.1 * gtol / now.relative)
    return Steihaug(problem, now.point.gradient, now.metric, forcing, min(2 * problem.p, 2000))


def _advance(now: Descent, model: Model, bends: int) -> Descent:
    """Try one step: move or stay, and adapt the radius."""
    step = model.step(now.radius)
    trial = evaluate(now.point.problem.at(now.point.problem.theta + step.direction))
    straight = _ratio(now, trial, step)
    trial, ratio = _bent(now, trial, straight, step, bends)
    moved = ratio > 1e-3
    lowered = _size(trial, now.metric) / _size(now.point, now.metric) if trial.finite else np.inf
    radius, wear = now.radius, now.wear + step.products
    if ratio < 0.25:
        radius = 0.5 * min(step.length, now.radius)
    elif ratio > 0.75 and step.boundary:
        radius = 2.0 * now.radius
    return replace(
        now,
        point=trial if moved else now.point,
        radius=radius,
        steps=now.steps + 1,
        products=now.products + step.products,
        stalls=_stalls(now, step, moved, lowered),
        forcing=min(1.0, lowered) if moved else now.forcing,
        wear=wear,
        stale=now.stale or wear >= _WORN or step.boundary or straight < _TRUE,
    )


def _stalls(now: Descent, step: Step, moved: bool, lowered: float) -> int:
    """Count on, unless the step gets somewhere; one that the radius cut short says nothing of rounding."""
    if now.measured.resolve(step.decrease) or (moved and lowered <= 0.5):
        return 0
    return now.stalls if moved and step.boundary else now.stalls + 1


def _ratio(now: Descent, trial: Point, step: Step) -> float:
    """Return actual over predicted decrease."""
    if step.decrease <= 0:
        return -np.inf
    return decrease(now.point, trial, step.decrease, now.measured) / step.decrease


def _bent(now: Descent, trial: Point, ratio: float, step: Step, most: int) -> tuple[Point, float]:
    """Bend a step that falls short, for as long as this helps.

    The model promises predictions ``f + J d``; what they are beyond that, ``q``, is taken back by the Gauss-Newton
    step ``-M^-1 J'C q / n``. In a curved valley this leads a long step back to the valley's floor.
    """
    here = now.point.problem
    for _ in range(most):
        if ratio >= _TRUE or not trial.finite:
            break
        promised = here.fitted_values + here.jvp(step.direction[None, :])[0]
        beyond = _weighted(here.loss_derivatives, trial.problem.fitted_values - promised)
        back = now.metric.solve(here.vjp(beyond[None] / here.n)[0])
        closer = evaluate(here.at(trial.problem.theta - back))
        better = _ratio(now, closer, step)
        if not better > ratio:
            break
        trial, ratio = closer, better
    return trial, ratio


def _weighted(loss: LossDerivatives, q: np.ndarray) -> np.ndarray:
    """Return ``C q`` for q in n-space (n, K)."""
    C = loss.curvature
    return C * q if C.ndim == 2 else np.einsum("iab,ib->ia", C, q)


def _size(point: Point, metric: Metric) -> float:
    """Return the gradient's norm ``|g|_{M^-1}``."""
    return max(float(point.gradient @ metric.solve(point.gradient)), _TINY) ** 0.5
