"""Noise levels in the unit of the loss, and the effective level at each prediction.

Training weighs the outputs by their loss alone. The objective times ``n / sigma^2`` is the log density of a posterior
only if all outputs have one noise level sigma in the unit of the loss. If the levels differ, the minimum of the
objective is still a fit with a known error: to first order, noise e changes a prediction with gradient g by
``h'(J'e/n - lam theta)``, where ``h = (J'J/n + lam)^-1 g``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from vhat.errors import InputError
from vhat.variance.weighted_norm import gradient_blocks, measure

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = [
    "describe_mismatch",
    "effective_levels",
    "level_range",
    "one_level",
    "scaled_levels",
    "weights_contradict_noise",
]

_EQUAL_WITHIN = 1.1
"""Largest ratio of two noise levels that still count as equal: no width changes by more than 5%."""
_ROUNDING = 1e-9
"""Relative difference of squared levels up to which rows count as having the same level."""
_SIGNIFICANCE = 1e-3
"""Significance level of the F test that two outputs differ in noise."""


def scaled_levels(fitted: FittedModel, noise: Noise) -> np.ndarray:
    """Return the noise level of each output in the unit of the loss, (K,).

    This is the root of the weighted mean over the rows of ``c sigma^2``, with c the second derivative of a row's loss,
    its weight included. A common factor of all weights, like a factor of the loss, changes only the unit.
    """
    problem = fitted.problem
    with problem.scope():
        squares = problem.loss_derivatives.curvature * noise.values**2
        levels: np.ndarray = np.sqrt(np.average(squares, axis=0, weights=problem.numpy(problem.weights)))
    return levels


def level_range(levels: np.ndarray) -> str:
    """Return the smallest and largest level as text; empty if the levels count as equal."""
    low = float(np.min(levels))
    high = float(np.max(levels))
    if high > _EQUAL_WITHIN * low:
        return f"{low:.3g} to {high:.3g}"
    return ""


def weights_contradict_noise(fitted: FittedModel, noise: Noise) -> bool:
    """Return whether the row weights are not proportional to one over the squared noise.

    Then no Gaussian likelihood has this objective.
    """
    problem = fitted.problem
    with problem.scope():
        in_use = problem.numpy(problem.weights) > 0
        squares = (problem.loss_derivatives.curvature * noise.values**2)[in_use]
    return bool(np.any(np.ptp(squares, axis=0) > _ROUNDING * squares.max(axis=0)))


def describe_mismatch(fitted: FittedModel, noise: Noise) -> str:
    """Return a phrase for a guarantee that says which noise the objective does not follow; empty if it follows all."""
    outputs = level_range(scaled_levels(fitted, noise))
    if outputs:
        return f"at the noise that each output meets ({outputs} in the unit of the loss)"
    if weights_contradict_noise(fitted, noise):
        return "at noise that the weights of the rows do not follow"
    return ""


def effective_levels(fitted: FittedModel, x: Any, noise: Noise) -> np.ndarray:
    """Return the single noise level that would give each prediction the mean square error it has, in the loss's unit.

    The result is (points,) or (points, K). A parameter shared by several outputs is affected by the noise of all of
    them, and the row weights need not match the noise. Let the truth of output k be drawn from a prior of variance
    ``levels_k^2 / (n lam)``. Then the mean square error of its prediction is ``effective_k^2 g'h / n`` with::

        effective_k^2 = (1/n sum_ij sigma_ij^2 c_ij^2 (J_j h)_i^2 + levels_k^2 h'lam h) / g'h

    where c is the second derivative of the loss. It is an average of ``sigma^2 c``, and equals the output's own level
    if all levels are equal.

    Args:
        fitted: The fitted model, with the square loss.
        x: Test inputs.
        noise: The noise of every row and output.
    """
    problem = fitted.problem
    levels = scaled_levels(fitted, noise)
    unequal = weights_contradict_noise(fitted, noise) or np.ptp(levels) > 0
    with problem.scope():
        inputs = problem.inputs(x)
        own = np.broadcast_to(levels, (problem.count(inputs), problem.outputs))
        if unequal:
            prepared = fitted.workspace.own_solver("ggn")
            measured = measure(problem, prepared, gradient_blocks(problem, inputs), noise.values)
            energy = measured.shortcut  # g'h
            data_part = np.divide(measured.variance, energy, out=np.zeros_like(energy), where=energy != 0)
            # The unsupported share is h'lam h / g'h: the prior's part of the formula above.
            own = np.sqrt(data_part.reshape(own.shape) + measured.unsupported.reshape(own.shape) * own**2)
    if problem.squeeze:
        return own[:, 0]
    return own


def one_level(fitted: FittedModel, noise: Noise, method: str) -> float:
    """Return the common noise level of all outputs, in the unit of the loss.

    Raises:
        InputError: When the levels differ by more than an F test explains by chance.
    """
    levels = scaled_levels(fitted, noise)
    low = int(np.argmin(levels))
    high = int(np.argmax(levels))
    p_value = 0.0
    if noise.df is not None:
        p_value = float(stats.f.sf((levels[high] / levels[low]) ** 2, noise.df[high], noise.df[low]))
    if level_range(levels) and p_value < _SIGNIFICANCE:
        raise InputError(
            f"{method} draws from a posterior, which exists only if the noise levels of all outputs are equal in the "
            f"unit of the loss; here they go from {level_range(levels)}. Divide each column of y by its noise level "
            "before training, or train on one column at a time."
        )
    return float(np.sqrt(np.mean(levels**2)))
