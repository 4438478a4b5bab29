"""The choice of weight decay with few fits, for a table that is to be fitted in seconds."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import SelectionWarning
from vhat.fit.path import default_grid
from vhat.fit.selection import choose_weight_decay
from vhat.fit.splits import check_table
from vhat.workspace import outside

if TYPE_CHECKING:
    from vhat.fit.recipe import NetworkRecipe
    from vhat.fit.selection import Selection

__all__ = ["choose_sparingly"]

_LAMS = 9
"""Lams of the default grid that are tried at the most, from the largest down: four decades."""


def choose_sparingly(
    recipe: NetworkRecipe, X: np.ndarray, y: np.ndarray, *, sample_weight: Any, seed: int
) -> Selection:
    """Choose lam by leave-one-out: among large ones first, and among small ones only where the large ask for it.

    A fit that nearly interpolates takes many times as long, and leaving rows out of it to first order is rough. The
    smallest lam of all is taken without a word: where it is best, there is little for weight decay to do.

    Args:
        recipe: A recipe of :mod:`vhat.fit`; its own weight decay does not matter.
        X: Standardised rows.
        y: Standardised responses.
        sample_weight: Weights of the rows, or None.
        seed: Draws the first parameters.

    Returns:
        The selection of the half of the grid in which the best lam was found.

    Warns:
        SelectionWarning: When the largest lam is best.
    """
    grid = default_grid(recipe, check_table(X, y, sample_weight), seed)[-_LAMS:]
    half = len(grid) // 2
    choose = functools.partial(choose_weight_decay, recipe, X, y, sample_weight=sample_weight, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)  # it asks to extend the grid, which is done here
        found = choose(grid=grid[half:])
        if found.weight_decay == grid[half]:
            found = choose(grid=grid[: half + 1])
    if found.weight_decay == grid[-1]:
        warnings.warn(
            f"the most weight decay that was tried ({grid[-1]:.2g}) predicted best: the columns tell little about y, "
            "and the prediction is close to its mean everywhere. Look at the score on rows that were kept apart.",
            SelectionWarning,
            stacklevel=outside(),
        )
    return found
