"""Recipes, from data to a fitted model: the protocol, a checked call, and checks of what is returned."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError
from vhat.fitted.match_rows import held_rows

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Recipe", "check_fitted", "check_recipe", "fit_one"]


class Recipe(Protocol):
    """From data to a fitted model; the same seed gives the same model."""

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Train on rows ``X`` and responses ``y``."""


def fit_one(recipe: Recipe, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
    """Call a recipe once, and check that its model contains the rows that it was given.

    Raises:
        InputError: When no fitted model comes back, or one of other rows, or when the data were changed in place.
    """
    handed = {"X": X, "y": y, "sample_weight": sample_weight}
    responses = as_numbers("y", y)  # a copy
    before = {name: value.copy() for name, value in handed.items() if isinstance(value, np.ndarray)}
    fitted = check_fitted(recipe(X, y, seed=int(seed), sample_weight=sample_weight))
    for name, value in before.items():
        if not np.array_equal(value, handed[name], equal_nan=value.dtype.kind == "f"):
            raise InputError(
                f"the recipe changed {name} in place, and with it the data of whatever is trained next. Let it work on "
                f"a copy: {name} = {name} - 1.0 makes one, {name} -= 1.0 and sub_ on a tensor of it do not."
            )
    held_rows(fitted, responses, sample_weight)
    return fitted


def check_recipe(recipe: Any) -> None:
    """Refuse objects that cannot be called like a recipe, before anything is trained."""
    shape = "recipe(X, y, *, seed, sample_weight=None) -> fitted"
    if hasattr(recipe, "predict_interval"):
        raise InputError(
            "the recipe is an estimator, which is not called. Give a function that fits a copy of it and returns "
            "fitted_: lambda X, y, *, seed, sample_weight=None: sklearn.base.clone(network).set_params("
            "random_state=seed).fit(X, y, sample_weight).fitted_, where network is the estimator."
        )
    if isinstance(recipe, type) or not callable(recipe):
        raise InputError(
            f"the recipe is {recipe!r}, which trains nothing. Give one of vhat.fit, such as "
            f"vhat.fit.Minimum(network, weight_decay=1e-3), or a function {shape} of your own."
        )
    try:
        inspect.signature(recipe).bind(None, None, seed=0, sample_weight=None)
    except TypeError as error:
        raise InputError(f"the recipe cannot be called as {shape}: {error}.") from None
    except ValueError:
        return  # a callable of C, which does not show its arguments


def check_fitted(fitted: Any) -> FittedModel:
    """Return the result of a recipe, or refuse it where it is no fitted model."""
    from vhat.fitted.model import FittedModel

    if not isinstance(fitted, FittedModel):
        if hasattr(fitted, "predict_interval"):
            raise InputError(
                f"the recipe returned {type(fitted).__name__}, an estimator; it must end in the estimator's fitted "
                "model: return network.fit(X, y, sample_weight).fitted_."
            )
        raise InputError(
            f"the recipe returned {type(fitted).__name__}; it must end in a fitted model, such as "
            "vhat.from_torch(module, X, y, weight_decay=...)."
        )
    return fitted
