"""Checks of a JAX model before its first use.

Apart from one evaluation on eight rows, all checks use functions that are compiled for the training rows anyway.
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


class _DifferenceCheck(NamedTuple):
    """Steps and tolerances of the comparison of derivatives with differences.

    Attributes:
        steps: Relative steps of the central differences, one per random direction.
        tolerance: Largest error of a directional derivative, relative to the norm of its terms.
        rounding: Relative rounding of L.
    """

    steps: tuple[float, ...]
    tolerance: float
    rounding: float


_FLOAT64_CHECK = _DifferenceCheck((1e-6, 1e-7, 1e-9), 1e-3, 1e-14)
_FLOAT32_CHECK = _DifferenceCheck((1e-3, 1e-3, 1e-3), 2e-2, 1e-6)
"""For a model that computes in float32."""


def refuse_unusable(problem: Problem) -> None:
    """Raise for a model that is random, mixes rows, is not finite, or cannot be differentiated twice.

    Raises:
        ModelError: Naming the fault and the remedy.
    """
    check_finite("the model's prediction on X", problem.fitted_values, ModelError)
    facts = problem.facts()
    if not facts.deterministic:
        raise ModelError(
            "two evaluations of the model on the same rows differ. Fix its random state or switch dropout off: the "
            "interval of a random function is not defined."
        )
    _refuse_mixing(problem)
    with pytrees.wrap_errors("differentiating the loss twice"):
        refuse_loss(problem.loss_derivatives)
    _refuse_infinite_derivatives(problem)
    if not any("16" in cast for cast in facts.narrow_casts):  # differences in half precision are too inaccurate
        _refuse_wrong_derivatives(problem, _FLOAT32_CHECK if facts.narrow_casts else _FLOAT64_CHECK)


def _refuse_mixing(problem: Problem) -> None:
    """Raise if the prediction for a row depends on the other rows of the same call."""
    few = min(problem.n, 3)
    alone = np.concatenate([problem.predict(problem.take(problem.X, i, i + 1)) for i in range(few)])
    together = problem.fitted_values[:few]
    if not np.allclose(alone, together, rtol=1e-6, atol=1e-7 * np.abs(problem.fitted_values).max()):
        raise ModelError(
            "the model's prediction for a row depends on the other rows of the call (batch normalisation in training "
            "mode, or a statistic of X?). Make predict(params, X) treat each row alone."
        )


def _refuse_infinite_derivatives(problem: Problem) -> None:
    """Raise unless the gradient of the loss and one product with its Hessian are finite."""
    with pytrees.wrap_errors("differentiating it twice"):
        gradient = problem.gradient()
        product = problem.product(gradient[None], "hessian")
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(product))):
        raise ModelError(
            "the first or second derivative of the loss is not finite at these parameters (a square root or norm at "
            "zero, or an overflow?). Rewrite that operation so that its derivative exists."
        )


def _refuse_wrong_derivatives(problem: Problem, check: _DifferenceCheck) -> None:
    """Compare directional derivatives of the loss with central differences, at nearby parameters.

    JAX reports no error for a part of the model that is rounded or has a stopped gradient. The parameters are shifted
    because units may lie exactly on a kink at the user's parameters. A difference may still cross a kink, or its step
    may be too long for a model that oscillates, so three directions and steps are tried; one agreement is enough.
    """
    derivatives = []
    for seed, step in enumerate(check.steps):
        terms, difference, objective = _directional(problem, seed, step)
        error = abs(float(np.sum(terms)) - difference)
        if not np.isfinite(error):
            return  # the model is not defined at these parameters, which are not the user's
        tolerance = check.tolerance * float(np.linalg.norm(terms)) + check.rounding * objective / step
        if terms.any() and error <= tolerance:
            return
        derivatives.append(terms)
    if not any(terms.any() for terms in derivatives):
        raise ModelError(
            "the derivative of the prediction is zero in every parameter (rounding, a threshold or stop_gradient "
            "inside?). vhat needs a differentiable model."
        )
    raise ModelError(
        "the derivatives of the model by JAX are not those of its predictions: it contains an operation with a "
        "replaced derivative (stop_gradient, a straight-through estimator, a custom_jvp or custom_vjp rule). Replace "
        "it; close over a part that is meant to stay fixed, and leave it out of params."
    )


def _directional(problem: Problem, seed: int, step: float) -> tuple[np.ndarray, float, float]:
    """Return the terms ``g_j v_j`` of the derivative of L along v, its central difference, and ``|L|``.

    All are taken at the parameters shifted by about 1% of their size in a random direction. The entries of ``v`` are
    random too, with the size of the parameters.

    Args:
        problem: The problem.
        seed: Seed of both directions.
        step: Step of the difference, in units of v.
    """
    theta = np.asarray(problem.theta)
    shift, direction = np.random.default_rng(seed).standard_normal((2, problem.p))
    size = np.where(theta == 0, 1e-3 * np.sqrt(np.mean(theta**2)) + 1e-12, np.abs(theta))
    near = theta + 0.01 * size * shift
    v = size * direction
    here = problem.at(near)
    up = problem.at(near + step * v).objective()
    down = problem.at(near - step * v).objective()
    terms = np.asarray(jax.device_get(here.gradient())) * v
    return terms, (up - down) / (2 * step), abs(here.objective())
