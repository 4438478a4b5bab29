"""Many fits by one recipe: in one call if the recipe supports it, else one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vhat.fit.data import each_fit
from vhat.fitted.match_rows import held_rows
from vhat.fitted.recipes import Recipe, check_fitted, check_recipe, fit_one
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Recipe", "check_fitted", "check_recipe", "fit_many", "fit_one"]


def fit_many(
    recipe: Recipe, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
) -> list[FittedModel]:
    """Fit one model per seed, on the same rows.

    A recipe with a method ``many`` of the same arguments, as all of :mod:`vhat.fit`, trains them in one compiled loop.
    Any other callable is called once per fit.

    Args:
        recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
        X: Rows, shared by all fits.
        y: Responses.
        seeds: One seed per fit.
        sample_weights: Row weights of each fit, (fits, n). For a resample with replacement, the counts of the rows.
        targets: Responses of each fit in place of ``y``, (fits, n) or (fits, n, outputs).

    Returns:
        One fitted model per seed.

    Raises:
        InputError: When the numbers of seeds, weights and targets differ, ``recipe`` is not a recipe, or it does not
            return a model fitted to the rows that were passed to it.

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
            held_rows(check_fitted(fitted), target, weight)  # refuses a model of other rows
        return together
    fits = []
    with bar("fits", len(every)) as advance:
        for seed, target, weight in every:
            fits.append(fit_one(recipe, X, target, seed=seed, sample_weight=weight))
            advance("")
    return fits
