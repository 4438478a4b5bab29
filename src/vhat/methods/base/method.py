"""The interface of methods, and the checks, training and noise that all of them share.

A method gives intervals for the *mean* (the quantity named in its guarantee) or for an *observation*, a new response.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.checks import as_numbers, check_choice, check_count, check_delta, check_finite
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe, check_recipe, fit_one
from vhat.methods.base.guarantee import Target
from vhat.variance.noise import Noise, given_noise

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.intervals.interval import Interval

__all__ = [
    "FittedMethod",
    "Method",
    "Predictor",
    "check_data",
    "check_level",
    "check_noise",
    "check_question",
    "find_noise",
    "fit_once",
    "residuals",
    "responses",
]


class Predictor(Protocol):
    """A fitted model, or a member of an ensemble."""

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""


class FittedMethod(Protocol):
    """A method after training."""

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Return an interval for every point, each on its own."""


class Method(Protocol):
    """The options of a method, and a ``fit`` that trains it."""

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedMethod:
        """Train all models that the method needs by ``recipe``; the same seed gives the same intervals."""


# -- checks of arguments --------------------------------------------------------------------


def check_question(method: str, delta: float, target: Target, *, only: Target | None = None, why: str = "") -> float:
    """Return delta as a float, after checking delta and the target.

    Args:
        method: The method's name, for the message.
        delta: Probability of a miss.
        target: ``"mean"`` or ``"observation"``.
        only: The one target that the method supports; None if it supports both.
        why: Why it supports only that target, and what to use instead.

    Raises:
        InputError: When delta is outside (0, 1), or the target is unknown or not supported.
    """
    check_choice("target", target, ("mean", "observation"))
    if only is not None and target != only:
        raise InputError(f"{method} gives no interval for target={target!r}, only for {only!r}. {why}".strip())
    return check_delta(delta)


def check_noise(noise: Any) -> None:
    """Refuse a noise level that is neither None nor a finite number above 0.

    Raises:
        InputError: Naming the value.
    """
    if noise is None:
        return
    if not _is_number(noise) or not 0 < noise < math.inf:
        raise InputError(
            f"noise={noise!r} is neither None (estimate it) nor a positive number, the standard deviation of y."
        )


def check_level(name: str, value: Any, *, zero: bool = True) -> None:
    """Refuse a value outside [0, 1), or outside (0, 1) if ``zero`` is False.

    Raises:
        InputError: Naming the option and the value.
    """
    in_range = _is_number(value) and 0 <= value < 1
    if not in_range or (value == 0 and not zero):
        bracket = "[" if zero else "("
        raise InputError(f"{name}={value!r} is not a number in {bracket}0, 1).")


def _is_number(value: Any) -> bool:
    """Return whether a value is a real number; booleans do not count."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def responses(y: Any) -> np.ndarray:
    """Return the responses as finite numbers, (n,) or (n, outputs).

    Raises:
        InputError: When they are not finite numbers, empty, or of another shape.
    """
    array = as_numbers("y", y)
    if array.ndim not in (1, 2) or not len(array):
        raise InputError(f"y has shape {array.shape}; give (rows,) or (rows, outputs).")
    check_finite("y", array)
    return array


def check_data(X: Any, y: Any) -> None:
    """Check rows and responses before they are passed to a recipe.

    Raises:
        InputError: When the responses are not finite numbers, or their number differs from that of the rows.
    """
    n = len(responses(y))
    shape = tuple(getattr(X, "shape", ()))
    if shape and shape[0] != n:
        raise InputError(f"X has {shape[0]} rows and y has {n}.")


# -- training and noise ---------------------------------------------------------------------


def fit_once(recipe: Recipe, X: Any, y: Any, seed: int) -> FittedModel:
    """Train once on all rows.

    Raises:
        InputError: When ``recipe`` is not a recipe, the data cannot be used, or the recipe does not return a model
            fitted to these rows.
    """
    check_count("seed", seed)
    check_recipe(recipe)
    check_data(X, y)
    return fit_one(recipe, X, y, seed=int(seed))


def find_noise(fitted: FittedModel, noise: float | None, seed: int = 0) -> Noise:
    """Return the given noise level, or an estimate from the residuals of a fitted model.

    Args:
        fitted: The fitted model.
        noise: Standard deviation of y; None estimates it.
        seed: Seed of the random probes for the degrees of freedom.

    Raises:
        NoiseError: When the noise must be estimated and the fit interpolates.
    """
    if noise is not None:
        return given_noise(noise, fitted.problem)
    with fitted.problem.scope():
        chosen = fitted.workspace.choose_curvature("auto", quiet=True)
        return fitted.workspace.noise(None, chosen.curvature, seed)


def residuals(fitted: FittedModel) -> np.ndarray:
    """Return ``y - f`` on the training rows, (n, K), in float64."""
    problem = fitted.problem
    with problem.scope():
        return problem.targets - problem.fitted_values
