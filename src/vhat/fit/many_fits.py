"""Many fits by one recipe: together where the recipe can, one after the other where it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError
from vhat.fit.data import each_fit
from vhat.fit.match_rows import held_rows
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Recipe", "check_fitted", "check_recipe", "fit_many", "fit_one"]


class Recipe(Protocol):
    """From data to a fitted model; the same seed gives the same model."""

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Train on rows ``X`` and responses ``y``."""


def fit_many(
    recipe: Recipe, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
) -> list[FittedModel]:
    """Fit one model a seed, on the same rows.

    A recipe that has a method ``many`` of the same arguments (all of :mod:`vhat.fit` have) trains them in one
    compiled loop; any other callable is called once a fit.

    Args:
        recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
        X: Rows, shared by all fits.
        y: Responses.
        seeds: One seed a fit.
        sample_weights: Weights of the rows in each fit, (fits, n). A resample with replacement is its counts.
        targets: Responses of each fit in place of ``y``, (fits, n) or (fits, n, outputs).

    Returns:
        One fitted model a seed.

    Raises:
        InputError: When the numbers of seeds, weights and targets differ, or the recipe is none, returns something
            else, or a model of other rows than it was handed.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import AdamW, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> counts = np.random.default_rng(0).multinomial(30, np.full(30, 1 / 30), size=3)
        >>> recipe = AdamW(Network((1, 8, 1)), weight_decay=1e-3, steps=200)
        >>> fits = fit_many(recipe, x, x[:, 0] ** 2, seeds=[0, 0, 0], sample_weights=counts)
        >>> len(fits)
        3
    """
    check_recipe(recipe)
    every = each_fit(y, seeds, sample_weights, targets)
    many = getattr(recipe, "many", None)
    if many is not None:
        together: list[FittedModel] = many(X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        for fitted, (_, target, weight) in zip(together, every, strict=True):
            held_rows(check_fitted(fitted), target, weight)
        return together
    fits = []
    with bar("fits", len(every)) as advance:
        for seed, target, weight in every:
            fits.append(fit_one(recipe, X, target, seed=seed, sample_weight=weight))
            advance("")
    return fits


def fit_one(recipe: Recipe, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
    """Call a recipe once, and hold what it returns to what it was handed.

    Raises:
        InputError: When no fitted model comes back, or one of other rows, or when the data were changed in place.
    """
    handed, responses = {"X": X, "y": y, "sample_weight": sample_weight}, as_numbers("y", y)  # a copy
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
    """Refuse what cannot be called as a recipe is, before anything is trained."""
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
    """Return what a recipe returned, or say that it is no fitted model."""
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
