"""Trust-region Newton on exact Hessian products, to a stationary point at the accuracy of rounding."""

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
"""Returns the metric M of the trust region ``|d|_M <= radius`` at a problem's parameters."""

_SPECTRAL = 200
"""Largest p at which every step forms the matrix and takes its eigenvalues."""
_REFRESH = 10
"""Accepted steps after which scales and metric are always recomputed."""
_MOST_PRODUCTS_PER_METRIC = 20
"""Hessian products after which a new metric, a better preconditioner, is worth its cost."""
_ACCURATE = 0.9
"""Ratio of actual to predicted decrease above which a step needs no correction and the metric no renewal."""
_CORRECTIONS = 4
"""Largest number of corrections of one step for the curvature of the predictions."""
_ACCEPTED = 1e-3
"""Ratio of actual to predicted decrease above which a step is taken."""
_POOR = 0.25
"""Ratio of actual to predicted decrease below which the radius is halved."""
_GOOD = 0.75
"""Ratio of actual to predicted decrease above which the radius is doubled, if it cut the step short."""
_LOOSEST = 0.3
"""Largest forcing term: relative residual at which the linear solve of a step stops."""
_STALLS = 6
"""Steps in a row without progress, too small for the objective to resolve, after which the iteration gives up."""
_MOST_CG_STEPS = 2000
"""Largest number of products of one step."""
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Descent:
    """State of the iteration.

    Attributes:
        point: The parameters, the penalised objective and its gradient.
        measured: The scales there, at most a few steps old.
        metric: The metric there, of the same age.
        radius: The trust radius, in the root unit of the objective.
        steps: Trial steps taken.
        products: Hessian products used.
        stalls: Steps in a row without progress that the objective could not resolve.
        forcing: Factor by which the last step lowered the gradient; the next linear solve is asked for as much.
        metric_products: Hessian products since the metric was made.
        outdated: Whether a step has shown that the metric no longer fits.
        status: At the end "stationary", "stalled" (rounding, or a kink) or "moving" (out of steps).
    """

    point: Point
    measured: Units
    metric: Metric
    radius: float
    steps: int = 0
    products: int = 0
    stalls: int = 0
    forcing: float = 0.1
    metric_products: int = 0
    outdated: bool = False
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
        """Return the same state with scales and metric recomputed."""
        measured = units(self.point.problem)
        made = _metric(self.point.problem, measured, metric)
        return replace(self, measured=measured, metric=made, metric_products=0, outdated=False)


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
    """Descend until the relative gradient is at most ``gtol``, or no step makes progress.

    Each step minimises the quadratic model within the trust region: exactly for small p, otherwise by truncated
    conjugate gradients with a tolerance that follows the fall of the gradient. The actual decrease of a step is the
    difference of the objectives where rounding allows, otherwise the trapezoid rule on the gradients at both ends.

    A given metric should be close to the Gauss-Newton matrix. A step that falls short of the predicted decrease is then
    corrected for the curvature of the predictions, which takes solves only, before it is rejected.

    Args:
        start: Where to begin, with the radius and the counts so far.
        gtol: The relative gradient to reach.
        max_steps: Largest number of trial steps, those of ``start`` included.
        metric: Makes a metric at a problem's parameters; Jacobi by default.
        observe: Called after each step, accepted or rejected.

    Returns:
        The final state, with status "stationary", "stalled" or "moving".
    """
    now = replace(start, status="moving", stalls=0)
    model: Model | None = None
    accepted = 0  # steps since scales and metric were computed
    while True:
        # After a rejected step the model is kept, and the metric with it: it answers a smaller radius without a
        # product. Scales are also renewed before convergence is declared, because the test depends on them.
        renewal = now.outdated or accepted >= _REFRESH or now.relative <= gtol
        if accepted and model is None and renewal:
            now = now.refreshed(metric)
            accepted = 0
        if now.relative <= gtol:
            return replace(now, status="stationary")
        if now.stalls >= _STALLS:
            return replace(now.refreshed(metric), status="stalled")
        if now.steps >= max_steps:
            return now.refreshed(metric)
        if model is None:
            model = _model(now, gtol, metric is None)
        after = _advance(now, model, corrections=0 if metric is None else _CORRECTIONS)
        if after.point is not now.point:
            model = None
            accepted += 1
        now = after
        if observe is not None:
            observe(now.point, now.relative)


def _model(now: Descent, gtol: float, jacobi: bool) -> Model:
    """Return the quadratic model ``g'd + d'Ad/2`` at the current point."""
    problem = now.point.problem
    if jacobi and problem.p <= _SPECTRAL:
        return Spectral(problem, now.point.gradient, now.measured.stride)
    # No solve is asked to lower the gradient far below gtol.
    forcing = max(min(_LOOSEST, now.forcing), 0.1 * gtol / now.relative)
    return Steihaug(problem, now.point.gradient, now.metric, forcing, min(2 * problem.p, _MOST_CG_STEPS))


def _advance(now: Descent, model: Model, corrections: int) -> Descent:
    """Try one step, accept or reject it, and adapt the radius."""
    step = model.step(now.radius)
    trial = evaluate(now.point.problem.at(now.point.problem.theta + step.direction))
    ratio_before = _ratio(now, trial, step)
    trial, ratio = _correct(now, trial, ratio_before, step, corrections)
    accepted = ratio > _ACCEPTED
    # Factor on the gradient norm, for the next forcing term and the count of stalls.
    lowered = _norm(trial, now.metric) / _norm(now.point, now.metric) if trial.finite else np.inf
    radius = now.radius
    if ratio < _POOR:
        radius = 0.5 * min(step.length, now.radius)
    elif ratio > _GOOD and step.boundary:
        radius = 2.0 * now.radius
    metric_products = now.metric_products + step.products
    expensive = metric_products >= _MOST_PRODUCTS_PER_METRIC
    return replace(
        now,
        point=trial if accepted else now.point,
        radius=radius,
        steps=now.steps + 1,
        products=now.products + step.products,
        stalls=_stalls(now, step, accepted, lowered),
        forcing=min(1.0, lowered) if accepted else now.forcing,
        metric_products=metric_products,
        outdated=now.outdated or expensive or step.boundary or ratio_before < _ACCURATE,
    )


def _stalls(now: Descent, step: Step, accepted: bool, lowered: float) -> int:
    """Return the number of steps in a row without progress.

    Progress is a decrease that the objective resolves, or a gradient that is halved. A step that the radius cut short
    is not counted, because it may be small without any rounding.
    """
    if now.measured.resolve(step.decrease) or (accepted and lowered <= 0.5):
        return 0
    return now.stalls if accepted and step.boundary else now.stalls + 1


def _ratio(now: Descent, trial: Point, step: Step) -> float:
    """Return the actual over the predicted decrease."""
    if step.decrease <= 0:
        return -np.inf
    return decrease(now.point, trial, step.decrease, now.measured) / step.decrease


def _correct(now: Descent, trial: Point, ratio: float, step: Step, most: int) -> tuple[Point, float]:
    """Correct a step that falls short for the curvature of the predictions, for as long as the ratio improves.

    The quadratic model predicts ``f + J d``. The excess q of the predictions at the trial point over that is removed by
    the Gauss-Newton step ``-M^-1 J'C q / n``, which leads a long step in a curved valley back to the valley's floor.

    Args:
        now: The state before the step.
        trial: The end of the step.
        ratio: Its actual over its predicted decrease.
        step: The step.
        most: Largest number of corrections.

    Returns:
        The best trial point, and its ratio.
    """
    here = now.point.problem
    for _ in range(most):
        if ratio >= _ACCURATE or not trial.finite:
            break
        linear = here.fitted_values + here.jvp(step.direction[None, :])[0]
        excess = _weighted(here.loss_derivatives, trial.problem.fitted_values - linear)
        correction = now.metric.solve(here.vjp(excess[None] / here.n)[0])
        corrected = evaluate(here.at(trial.problem.theta - correction))
        corrected_ratio = _ratio(now, corrected, step)
        if not corrected_ratio > ratio:
            break
        trial = corrected
        ratio = corrected_ratio
    return trial, ratio


def _weighted(loss: LossDerivatives, q: np.ndarray) -> np.ndarray:
    """Return ``C q`` for q in n-space (n, K)."""
    C = loss.curvature
    return C * q if C.ndim == 2 else np.einsum("iab,ib->ia", C, q)


def _norm(point: Point, metric: Metric) -> float:
    """Return the norm of the gradient in the inverse metric, ``|g|_{M^-1}``."""
    return max(float(point.gradient @ metric.solve(point.gradient)), _TINY) ** 0.5
