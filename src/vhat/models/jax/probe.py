"""What is found out about a JAX model before it is trusted; every refusal is a sentence.

All probes but one evaluation of eight rows run through functions that are compiled for the training rows anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from vhat.checks import check_finite
from vhat.errors import ModelError
from vhat.models.jax import pytrees
from vhat.models.problem import Problem
from vhat.models.validate import refuse_loss

__all__ = ["refuse_unusable"]


class _Digits(NamedTuple):
    """How differences are taken and judged: steps, the share of the slope they may be off by, rounding of L."""

    steps: tuple[float, ...]
    share: float
    rounding: float


_WIDE = _Digits((1e-6, 1e-7, 1e-9), 1e-3, 1e-14)
_NARROW = _Digits((1e-3, 1e-3, 1e-3), 2e-2, 1e-6)
"""For a model that computes in float32."""


def refuse_unusable(problem: Problem) -> None:
    """Refuse a model that is random, mixes rows, is not finite, or cannot be differentiated twice.

    Raises:
        ModelError: In a sentence that says which, and what to do.
    """
    check_finite("the model's prediction on X", problem.fitted_values, ModelError)
    facts = problem.facts()
    if not facts.deterministic:
        raise ModelError(
            "two evaluations of the model on the same rows differ. Fix its random state or switch dropout off: the "
            "interval of a random function is not defined."
        )
    _refuse_mixing(problem)
    with pytrees.in_words("differentiating the loss twice"):
        refuse_loss(problem.loss_derivatives)
    _refuse_infinite_derivatives(problem)
    if not any("16" in cast for cast in facts.narrow_casts):  # differences of half precision say nothing
        _refuse_untrue_derivatives(problem, _NARROW if facts.narrow_casts else _WIDE)


def _refuse_mixing(problem: Problem) -> None:
    """Refuse a model whose prediction for a row depends on the rows beside it."""
    few = min(problem.n, 3)
    alone = np.concatenate([problem.predict(problem.take(problem.X, i, i + 1)) for i in range(few)])
    company = problem.fitted_values[:few]
    if not np.allclose(alone, company, rtol=1e-6, atol=1e-7 * np.abs(problem.fitted_values).max()):
        raise ModelError(
            "the model's prediction for a row changes with the rows beside it (batch normalisation in training mode, "
            "or a statistic of X?). Make predict(params, X) treat each row alone."
        )


def _refuse_infinite_derivatives(problem: Problem) -> None:
    with pytrees.in_words("differentiating it twice"):
        slope = problem.gradient()
        curved = problem.product(slope[None], "hessian")
    if not (np.all(np.isfinite(slope)) and np.all(np.isfinite(curved))):
        raise ModelError(
            "the first or second derivative of the loss is not finite at these parameters (a square root or norm at "
            "zero, or an overflow?). Rewrite that operation so that its derivative exists."
        )


def _refuse_untrue_derivatives(problem: Problem, digits: _Digits) -> None:
    """Compare the derivative of the loss with its differences, at parameters nearby where no unit sits on a kink.

    JAX is silent about a part that was stopped or rounded. A difference may step over a kink, or be too wide for a
    model that oscillates, so three directions and steps are tried; one that agrees is enough.
    """
    slopes = []
    for seed, step in enumerate(digits.steps):
        slope, change, objective = _directional(problem, seed, step)
        gap = abs(float(np.sum(slope)) - change)
        if not np.isfinite(gap):
            return  # no verdict: these parameters were not the user's
        if slope.any() and gap <= digits.share * float(np.linalg.norm(slope)) + digits.rounding * objective / step:
            return
        slopes.append(slope)
    if not any(slope.any() for slope in slopes):
        raise ModelError(
            "the derivative of the prediction is zero in every parameter (rounding, a threshold or stop_gradient "
            "inside?). vhat needs a differentiable model."
        )
    raise ModelError(
        "the derivatives of the model by JAX are not those of its predictions: something inside hides from it "
        "(stop_gradient, a straight-through estimator, a custom_jvp or custom_vjp rule). Replace it; close over a part "
        "that is meant to stay fixed, and leave it out of params."
    )


def _directional(problem: Problem, seed: int, step: float) -> tuple[np.ndarray, float, float]:
    """Return the terms ``g_j v_j`` of the derivative of L along v, its central difference, and the size of L.

    Both are taken a hundredth of the parameters' size away from them; ``v`` has their size too.
    """
    theta = np.asarray(problem.theta)
    away, along = np.random.default_rng(seed).standard_normal((2, problem.p))
    size = np.where(theta == 0, 1e-3 * np.sqrt(np.mean(theta**2)) + 1e-12, np.abs(theta))
    near, v = theta + 0.01 * size * away, size * along
    here = problem.at(near)
    up, down = (problem.at(near + sign * step * v).objective() for sign in (1, -1))
    slope = np.asarray(jax.device_get(here.gradient())) * v
    return slope, (up - down) / (2 * step), abs(here.objective())
