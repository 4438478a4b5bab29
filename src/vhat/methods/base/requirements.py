"""Checks that a method has what it needs: an installed package, a loss, weights and outputs of the recipe's model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError, MissingPackage

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = [
    "require_one_output",
    "require_one_weight",
    "require_package",
    "require_residuals",
    "require_square_loss",
]

_ROUNDING = 1e-9
"""Relative difference between ``dl/df`` and ``c (f - y)`` below which a loss counts as the square loss."""


def require_package(module: str, refusal: str) -> Any:
    """Import a module of an optional package and return it.

    Args:
        module: Its full name, such as ``"sklearn.ensemble"``.
        refusal: The error message if the package is missing: what needs it, and how to install it.

    Raises:
        MissingPackage: When the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)  # the package first, as in "from package import module"
        return import_module(module)
    except ImportError as error:
        raise MissingPackage(refusal) from error


def require_square_loss(fitted: FittedModel, method: str) -> None:
    """Refuse a loss other than the square loss, which the method interprets as Gaussian noise.

    Raises:
        InputError: When the first derivative of the loss is not its second derivative times ``f - y``.
    """
    problem = fitted.problem
    with problem.scope():
        loss = problem.loss_derivatives
        residual = problem.fitted_values - problem.targets
    rounding = _ROUNDING * float(np.abs(loss.first).max())
    # A loss that couples the outputs has a (K, K) curvature in each row.
    coupled = loss.curvature.ndim != 2
    if coupled or not np.allclose(loss.first, loss.curvature * residual, rtol=_ROUNDING, atol=rounding):
        raise InputError(f"{method} reads the square loss as Gaussian noise, and this model has another loss.")


def require_residuals(fitted: FittedModel, what: str) -> None:
    """Refuse a loss that is not a function of ``f - y``: then ``y - f`` is not a residual.

    Args:
        fitted: The fitted model.
        what: What needs the residuals, for the message.

    Raises:
        InputError: When the loss is not a function of ``f - y``.
    """
    with fitted.problem.scope():
        location = fitted.problem.loss_derivatives.location
    if not location:
        raise InputError(
            f"{what} needs predictions on the scale of y, and this loss is not a function of f - y: what f predicts is "
            "not the mean of a response."
        )


def require_one_weight(fitted: FittedModel, method: str) -> None:
    """Refuse unequal training weights, for methods that also use rows the model was not trained on.

    Raises:
        InputError: When the weights differ.
    """
    with fitted.problem.scope():
        weights = fitted.problem.numpy(fitted.problem.weights)
    if np.ptp(weights) > 0:
        raise InputError(
            f"the recipe gives rows different weights, and {method} has rows that it was not trained on, whose weights "
            "are not known. Use a recipe without weights, or another method."
        )


def require_one_output(outputs: int, method: str) -> None:
    """Refuse several outputs.

    Raises:
        InputError: When there is more than one output.
    """
    if outputs != 1:
        raise InputError(f"{method} is for one output, and there are {outputs}. Fit one column of y at a time.")
