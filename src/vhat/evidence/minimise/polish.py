"""Descent to the nearest certified minimum of the penalised objective."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from vhat.checks import check_count, check_tolerance
from vhat.errors import InputError, NotPositiveDefinite, PolishError
from vhat.evidence.minimise.direct import normal_equations
from vhat.evidence.minimise.lbfgs import lbfgs
from vhat.evidence.minimise.newton import Descent, MetricMaker, Observer, newton
from vhat.evidence.minimise.quasi_newton import quasi_newton
from vhat.evidence.minimise.stationarity import Point, decrease, evaluate, relative_gradient, units
from vhat.linalg.curvature.definiteness import Definiteness, smallest_eigenvalue
from vhat.linalg.curvature.hidden_kinks import UNEXPLAINED, unexplained_change
from vhat.linalg.curvature.kinks import find_kinks, way_on
from vhat.models.problem import Problem

__all__ = ["Polished", "polish"]

Progress = Callable[[int, float, float], Any]
"""Called as ``progress(step, objective, relative_gradient)``."""

_NEAR = 1e-3
"""Relative gradient below which Newton starts at once: L-BFGS could move to another minimum."""
_FAR_DOWN = 1e-8
"""Relative gradient at which L-BFGS in the metric ends. A larger one may be a bend of a valley and not its end."""
_ROUND = 50
"""Newton steps of one round. L-BFGS, whose steps are far cheaper in a long curved valley, follows it."""
_SHORT_ROUND = 10
"""The same where L-BFGS has a metric: Newton is then needed only at saddles and at the end."""
_FLOOR = 1e-6
"""Relative gradient below which a stalled iteration is at the rounding floor; above it, at a kink."""
_RESOLVED = 1e-12
"""Change of slope, as a share of the objective's root unit, below which it is rounding."""
_PROMISED = 0.1
"""Share of the predicted decrease that a step away from a saddle must reach."""


@dataclass(frozen=True)
class Polished:
    """A stationary point and its certificate.

    Attributes:
        problem: The problem at the point reached.
        objective: The penalised objective there.
        gradient_norm: The Euclidean norm ``|grad L_lam|``, in the units of the parameters.
        relative_gradient: The dimensionless gradient of :mod:`vhat.evidence.minimise.stationarity`.
        definiteness: The smallest eigenvalue of ``H + lam`` there; its verdict is "positive", or "undecided" where
            p is too large for the matrix and Lanczos did not settle.
        status: "converged" to ``gtol``, or "rounding floor" where no step lowers the gradient further.
        warmup_steps: Number of L-BFGS steps, without and with the metric.
        steps: Number of Newton steps tried.
        products: Number of Hessian products, those of certificates included.
        escapes: Number of saddles that were left along negative curvature.
    """

    problem: Problem = field(repr=False)
    objective: float
    gradient_norm: float
    relative_gradient: float
    definiteness: Definiteness
    status: Literal["converged", "rounding floor"]
    warmup_steps: int
    steps: int
    products: int
    escapes: int


def polish(
    problem: Problem,
    *,
    gtol: float = 1e-10,
    max_steps: int = 1000,
    warmup: int = 1000,
    metric: MetricMaker | None = None,
    progress: Progress | None = None,
    watch: Callable[[Problem], None] | None = None,
    seed: int = 0,
) -> Polished:
    """Descend from the problem's parameters to a minimum, and certify that it is one.

    A model that is linear by structure is solved directly under the square loss. Otherwise three methods take turns:
    L-BFGS, which is left out where the gradient is small already; L-BFGS in the metric, where there is one; and
    trust-region Newton on exact Hessian products. A stationary point with an indefinite Hessian is a saddle, which is
    left along negative curvature. The descent ends where the relative gradient is at most ``gtol``, or as small as
    rounding allows, and ``H + lam`` is positive definite. The given problem is not changed.

    Args:
        problem: The training problem at the parameters to start from.
        gtol: The relative gradient to reach.
        max_steps: Largest number of Newton steps.
        warmup: Largest number of L-BFGS steps before each round of Newton steps, and as many in the metric; 0 leaves
            them out.
        metric: Makes the metric at a problem's parameters, close to the Gauss-Newton matrix there; the diagonal of
            strides by default (:func:`vhat.evidence.minimise.stationarity.units`).
        progress: Called as ``progress(step, objective, relative_gradient)`` after each step of either kind.
        watch: Called with the problem at each new iterate; an exception that it raises ends the descent.
        seed: Seed of the eigenvalue certificate.

    Returns:
        The problem at the minimum, its gradient and its certificate.

    Raises:
        InputError: For options out of range or parameters at which the objective is not finite.
        PolishError: When no certified minimum could be reached.
        NotPositiveDefinite: When a parameter given has no influence on any training prediction and no decay.
    """
    _check(gtol, max_steps, warmup, seed)
    _refuse_kinks(problem)
    with problem.scope():
        start = Descent.begin(_start(problem, gtol), metric)
        observe = _observer(progress, watch)
        try:
            return _descend(start, gtol, max_steps, warmup, metric, observe, seed)
        except NotPositiveDefinite as error:
            raise PolishError(f"no minimum was reached: on the way down {error}") from error


def _descend(
    now: Descent,
    gtol: float,
    max_steps: int,
    warmup: int,
    metric: MetricMaker | None,
    observe: Observer | None,
    seed: int,
) -> Polished:
    """Alternate L-BFGS, Newton and escapes from saddles until a minimum is certified."""
    warmed = 0
    escapes = 0
    rounds = 0
    length = _ROUND if metric is None else _SHORT_ROUND
    while True:
        if warmup:
            now, taken = _by_gradients(now, rounds, warmup, metric, observe)
            warmed += taken
            rounds += 1
        limit = min(now.steps + length, max_steps) if warmup else max_steps
        now = newton(now, gtol=gtol, max_steps=limit, metric=metric, observe=observe)
        if now.status == "moving" and now.steps < max_steps:
            continue
        found = _certificate(now, metric, seed)
        now = replace(now, products=now.products + found.steps)
        if now.status == "moving" or (now.status == "stalled" and now.relative > _FLOOR):
            raise _unfinished(now, found)
        if found.singular:
            raise _singular(now, found)
        if found.verdict != "indefinite":
            # Derivatives do not see a kink at which parameters sit exactly. Values do.
            if unexplained_change(now.point.problem, seed) > UNEXPLAINED:
                raise _hidden(now, found)
            return _polished(now, found, warmed, escapes)
        now = _escape(now, found).refreshed(metric)
        escapes += 1


def _by_gradients(
    now: Descent, rounds: int, most: int, metric: MetricMaker | None, observe: Observer | None
) -> tuple[Descent, int]:
    """Descend by L-BFGS, without Hessian products.

    The first round uses no metric, because a metric is expensive, and is left out near a minimum. Later rounds use it.

    Returns:
        The state reached, and the number of steps.
    """
    taken = 0
    more = 0
    if now.relative > _NEAR and (rounds == 0 or metric is None):
        point, taken = lbfgs(now.point, now.measured, gtol=_NEAR**2, max_steps=most, observe=observe)
        now = replace(now, point=point).refreshed(metric)
    if metric is not None and (rounds or taken):
        now, more = quasi_newton(now, gtol=_FAR_DOWN, max_steps=most, metric=metric, observe=observe)
    return now, taken + more


def _certificate(now: Descent, metric: MetricMaker | None, seed: int) -> Definiteness:
    return smallest_eigenvalue(
        now.point.problem, scale=now.measured.scale, metric=now.metric if metric else None, seed=seed
    )


def _check(gtol: float, max_steps: int, warmup: int, seed: int) -> None:
    check_tolerance("gtol", gtol)
    check_count("max_steps", max_steps, least=1)
    check_count("warmup", warmup)
    check_count("seed", seed)


def _refuse_kinks(problem: Problem) -> None:
    """Refuse a model with kinks near its parameters, where the descent would stall after a long time."""
    kinks = find_kinks(problem)
    if kinks.verdict == "kinked":
        raise PolishError(
            f"the model has {kinks.told} near its parameters, and no minimum of a kinked objective can be certified by "
            "derivatives",
            f"{way_on(problem)} A smooth activation such as tanh, softplus, gelu or silu has no kinks.",
        )


def _start(problem: Problem, gtol: float) -> Point:
    """Return the point to descend from. For a linear model under the square loss it is the minimum already."""
    point = evaluate(problem)
    if not point.finite:
        raise InputError(
            f"the objective ({point.objective}) or its gradient is not finite at the parameters given. Start "
            "from parameters at which every prediction is finite."
        )
    if problem.linear and relative_gradient(point, units(problem)) > gtol:
        return normal_equations(point)
    return point


def _observer(progress: Progress | None, watch: Callable[[Problem], None] | None) -> Observer | None:
    """Return an observer that counts the steps of all methods together and shows ``watch`` each iterate once."""
    if progress is None and watch is None:
        return None
    steps = itertools.count(1)
    last: Problem | None = None

    def observe(point: Point, relative: float) -> None:
        nonlocal last
        if progress is not None:
            progress(next(steps), point.objective, relative)
        if watch is not None and point.problem is not last:
            last = point.problem
            watch(point.problem)

    return observe


def _escape(now: Descent, found: Definiteness) -> Descent:
    """Leave a saddle along its direction of negative curvature, downhill first where the gradient is not zero.

    Raises:
        PolishError: When the objective does not decrease along it as the Hessian predicts.
    """
    problem = now.point.problem
    v = found.vector
    slope = float(now.point.gradient @ v)
    radius = max(now.radius, now.measured.root)
    while abs(found.value) * radius > _RESOLVED * now.measured.root:
        for sign in (-1.0, 1.0) if slope > 0 else (1.0, -1.0):
            trial = evaluate(problem.at(problem.theta + sign * radius * v))
            promised = 0.5 * abs(found.value) * radius**2
            if decrease(now.point, trial, promised, now.measured) > _PROMISED * promised:
                return replace(now, point=trial, radius=radius, steps=now.steps + 1)
        radius *= 0.5
    if now.relative <= _FLOOR:
        raise _singular(now, found)
    raise _unfinished(replace(now, status="stalled"), found)


def _polished(now: Descent, found: Definiteness, warmed: int, escapes: int) -> Polished:
    return Polished(
        problem=now.point.problem,
        objective=now.point.objective,
        gradient_norm=now.point.gradient_norm,
        relative_gradient=now.relative,
        definiteness=found,
        status="converged" if now.status == "stationary" else "rounding floor",
        warmup_steps=warmed,
        steps=now.steps,
        products=now.products,
        escapes=escapes,
    )


def _reached(now: Descent, found: Definiteness) -> str:
    return (
        f"relative gradient {now.relative:.1e} (|grad| = {now.point.gradient_norm:.1e}) after {now.steps} Newton "
        f"steps, smallest eigenvalue of H + lam {found.value:.1e} (without unit, {found.verdict})"
    )


def _unfinished(now: Descent, found: Definiteness) -> PolishError:
    remedy = (
        "If the model has kinks (relu, abs, max), replace them by a smooth activation such as tanh, softplus or gelu, "
        'or keep these parameters and use curvature="ggn" or fitted.linearised(validation=(X, y)).'
    )
    if now.status == "moving":
        return PolishError(
            f"no minimum within max_steps={now.steps}: {_reached(now, found)}", f"Raise max_steps. {remedy}"
        )
    return PolishError(
        f"no minimum was reached: {_reached(now, found)}, and no step, however short, goes further down as the "
        "derivatives promise",
        remedy,
    )


def _hidden(now: Descent, found: Definiteness) -> PolishError:
    return PolishError(
        f"every derivative says that this is a minimum ({_reached(now, found)}), but the loss changes otherwise when "
        "parameters move that no prediction depends on to first order: they sit on a kink (relu units at exactly zero, "
        "pruned or never started?)",
        "Leave those parameters out of the model, start them away from zero, or use a smooth activation such as tanh, "
        "softplus or gelu.",
    )


def _singular(now: Descent, found: Definiteness) -> PolishError:
    free = bool(np.any(now.point.problem.numpy(now.point.problem.decay) == 0))
    reason = (
        "The data do not determine every parameter and some have no weight decay. Give a weight_decay above 0, or "
        "leave out redundant parameters."
        if free
        else "Some direction is flat to rounding: the weight decay is lost beside the curvature of the data, or a "
        "normalisation layer makes the size of the weights before it irrelevant. Raise weight_decay, or freeze those "
        "weights."
    )
    return PolishError(f"a stationary point was reached, but H + lam is singular there: {_reached(now, found)}", reason)
