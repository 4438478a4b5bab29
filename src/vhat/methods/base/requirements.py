"""Checks that a recipe's model has what a method needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import InputError

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["require_one_output", "require_one_weight", "require_residuals", "require_square_loss"]


def require_square_loss(fitted: FittedModel, method: str) -> None:
    """Refuse a model whose loss is not the square loss, which the method reads as Gaussian noise."""
    problem = fitted.problem
    with problem.scope():
        loss = problem.loss_derivatives
        residual = problem.fitted_values - problem.targets
    rounding = 1e-9 * float(np.abs(loss.first).max())
    if loss.curvature.ndim != 2 or not np.allclose(loss.first, loss.curvature * residual, rtol=1e-9, atol=rounding):
        raise InputError(f"{method} reads the square loss as Gaussian noise, and this model has another loss.")


def require_residuals(fitted: FittedModel, what: str) -> None:
    """Refuse what needs ``y - f`` to be a residual where the loss is not a function of it."""
    with fitted.problem.scope():
        location = fitted.problem.loss_derivatives.location
    if not location:
        raise InputError(
            f"{what} needs predictions on the scale of y, and this loss is not a function of f - y: what f predicts is "
            "not the mean of a response."
        )


def require_one_weight(fitted: FittedModel, method: str) -> None:
    """Refuse a model that was trained on rows of different weights, where the method has rows without any."""
    with fitted.problem.scope():
        weights = fitted.problem.numpy(fitted.problem.weights)
    if np.ptp(weights) > 0:
        raise InputError(
            f"the recipe gives rows different weights, and {method} has rows that it was not trained on, whose weights "
            "are not known. Use a recipe without weights, or another method."
        )


def require_one_output(outputs: int, method: str) -> None:
    """Refuse several outputs."""
    if outputs != 1:
        raise InputError(f"{method} is for one output, and there are {outputs}. Fit one column of y at a time.")
