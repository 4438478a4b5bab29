"""The noise of each output in the unit of the loss, and the level that applies to each prediction.

Training weighs the outputs by their loss alone. Only where all have one noise level sigma in the unit of the loss is
the objective, times ``n / sigma^2``, the log density of a posterior. Where they differ, its minimum is still a fit
with an error that is known: to first order ``h'(J'e/n - lam theta)``, with ``h = (J'J/n + lam)^-1 g`` and noise e.
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

__all__ = ["different", "met_levels", "one_level", "scaled_levels", "unlike_rows"]

_ALIKE = 1.1
"""Levels within this factor of one another count as alike: no width changes by more than a twentieth."""
_SAME = 1e-9
"""Relative difference of squared levels that is rounding."""
_CHANCE = 1e-3
"""Significance level of the F test that two outputs differ in noise."""


def scaled_levels(fitted: FittedModel, noise: Noise) -> np.ndarray:
    """Return the noise level that the square loss of each output stands for, in the loss's own unit, (K,).

    It is the mean over the rows, each counted by its weight, of their noise in that unit: weights say how rows compare
    with each other, and ten times all of them, like ten times the loss, says nothing new.
    """
    problem = fitted.problem
    with problem.scope():
        squares = problem.loss_derivatives.curvature * noise.values**2
        levels: np.ndarray = np.sqrt(np.average(squares, axis=0, weights=problem.numpy(problem.weights)))
    return levels


def different(levels: np.ndarray) -> str:
    """Return the range of the levels as text, empty where they are alike."""
    low = float(np.min(levels))
    high = float(np.max(levels))
    if high > _ALIKE * low:
        return f"{low:.3g} to {high:.3g}"
    return ""


def unlike_rows(fitted: FittedModel, noise: Noise) -> bool:
    """Return whether rows have other weights than one over their squared noise: no likelihood has this objective."""
    problem = fitted.problem
    with problem.scope():
        seen = problem.numpy(problem.weights) > 0
        squares = (problem.loss_derivatives.curvature * noise.values**2)[seen]
    return bool(np.any(np.ptp(squares, axis=0) > _SAME * squares.max(axis=0)))


def met_levels(fitted: FittedModel, x: Any, noise: Noise) -> np.ndarray:
    """Return the one level at which a prediction would have the error that it has at this noise, in the loss's unit.

    It is (points,) or (points, K). A parameter that several outputs share takes the noise of all of them, and rows may
    have weights that their noise does not ask for. With the truth of output k drawn from a prior of variance
    ``levels_k^2 / (n lam)``, the mean square error of its prediction is ``met^2 g'h / n``::

        met_k^2 = (1/n sum_ij sigma_ij^2 c_ij^2 (J_j h)_i^2 + levels_k^2 h'lam h) / g'h

    with c the second derivative of the loss: a mean of ``sigma^2 c``, the own level where all are alike.

    Args:
        fitted: The fitted model, with the square loss.
        x: Test inputs.
        noise: The noise of every row and output.
    """
    problem = fitted.problem
    levels = scaled_levels(fitted, noise)
    unlike = unlike_rows(fitted, noise) or np.ptp(levels) > 0
    with problem.scope():
        inputs = problem.inputs(x)
        own = np.broadcast_to(levels, (problem.count(inputs), problem.outputs))
        if unlike:
            prepared = fitted.workspace.own_solver("ggn")
            found = measure(problem, prepared, gradient_blocks(problem, inputs), noise.values)
            energy = found.shortcut
            met = np.divide(found.variance, energy, out=np.zeros_like(energy), where=energy != 0)
            own = np.sqrt(met.reshape(own.shape) + found.unsupported.reshape(own.shape) * own**2)
    return own[:, 0] if problem.squeeze else own


def one_level(fitted: FittedModel, noise: Noise, method: str) -> float:
    """Return the noise level of all outputs, in the loss's own unit.

    Raises:
        InputError: When the outputs differ, by more than chance makes estimates differ.
    """
    levels = scaled_levels(fitted, noise)
    low = int(np.argmin(levels))
    high = int(np.argmax(levels))
    chance = 0.0
    if noise.df is not None:
        chance = float(stats.f.sf((levels[high] / levels[low]) ** 2, noise.df[high], noise.df[low]))
    if different(levels) and chance < _CHANCE:
        raise InputError(
            f"{method} draws from the posterior of the objective, which is one only where all outputs have one noise "
            f"level in the unit of the loss; here they go from {different(levels)}. Divide each column of y by its "
            "noise level before training, or train on one column at a time."
        )
    return float(np.sqrt(np.mean(levels**2)))
