"""The choice of weight decay with few fits, for a table that is to be fitted in seconds."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vhat.errors import SelectionWarning, outside
from vhat.fit.decay_path import default_grid
from vhat.fit.score_curve import FAILED, ROUGH, joined
from vhat.fit.selection import Selection, choose_weight_decay
from vhat.fit.small_tables import Tried, is_served, selected, try_decays
from vhat.fit.splits import check_table

if TYPE_CHECKING:
    from vhat.fit.recipe import NetworkRecipe
    from vhat.fit.score_curve import Curve

__all__ = ["choose_from", "choose_sparingly"]

Choice = TypeVar("Choice", Selection, Tried)

_LAMS = 9
"""Lams of the default grid that are tried first, from the largest down: four decades."""
_BELOW = 2
"""Lams below the best that leave-one-out could score, one decade, that cross-validation tries first."""
_FALLING = 0.05
"""A score that falls by this share between the two smallest lams has not reached its floor."""


def choose_sparingly(
    recipe: NetworkRecipe, X: np.ndarray, y: np.ndarray, *, sample_weight: Any, seed: int
) -> Selection:
    """Choose lam by leave-one-out: among large ones first, and among small ones only where the large ask for it.

    A fit that nearly interpolates takes many times as long, and leaving rows out of it to first order is rough, or not
    to be had. Where that leaves the choice in doubt, cross-validation chooses instead, whose folds are refitted. Where
    the smallest lam of all is best by a hair, it is taken without a word: there is little for weight decay to do.

    Args:
        recipe: A recipe of :mod:`vhat.fit`; its own weight decay does not matter.
        X: Standardised rows.
        y: Standardised responses.
        sample_weight: Weights of the rows, or None.
        seed: Draws the first parameters.

    Returns:
        The selection, with the curve of every lam that was tried.

    Warns:
        SelectionWarning: When the largest lam is best, or the score still falls towards the smallest, or the next
            smaller lam cannot be fitted.
    """
    table = check_table(X, y, sample_weight)
    grid = default_grid(recipe, table, seed)
    if is_served(recipe, len(table)):
        found = selected(recipe, table, _further(functools.partial(try_decays, recipe, table, seed=seed), grid))
    else:
        found = _chosen(
            functools.partial(choose_weight_decay, recipe, X, y, sample_weight=sample_weight, seed=seed), grid[-_LAMS:]
        )
    _warn_of_an_end(found.curve)
    return found


def choose_from(
    recipe: NetworkRecipe, X: np.ndarray, y: np.ndarray, *, grid: np.ndarray, sample_weight: Any, seed: int
) -> Selection:
    """Choose lam by leave-one-out from a rising grid of the user's own: see :func:`choose_sparingly`."""
    table = check_table(X, y, sample_weight)
    if not is_served(recipe, len(table)):
        return choose_weight_decay(recipe, X, y, grid=grid, sample_weight=sample_weight, seed=seed)
    found = selected(recipe, table, try_decays(recipe, table, grid=grid, seed=seed))
    if found.curve.edge or found.curve.doubt:
        warnings.warn(found.curve.edge or found.curve.doubt, SelectionWarning, stacklevel=outside())
    return found


def _further(choose: Callable[..., Tried], grid: np.ndarray) -> Tried:
    """Choose among the larger lams, and go on to the smallest ones where the score is still falling towards them."""
    found = _chosen(choose, grid[-_LAMS:])
    if len(grid) <= _LAMS or not _falls(found.curve):
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        low = choose(grid=grid[: len(grid) - _LAMS + 1], by=found.by)
    both = _both(low, found)
    # A score that cannot be relied on does not undo a choice that can.
    return found if both.curve.doubt and not found.curve.doubt else both


def _falls(curve: Curve) -> bool:
    """Whether the smallest lam is the best, by a visible margin."""
    return curve.best == 0 and curve.score[0] < (1 - _FALLING) * curve.score[1]


def _chosen(choose: Callable[..., Choice], grid: np.ndarray) -> Choice:
    """Try the larger half of the grid, the smaller one where it asks for it, and refits where both leave a doubt."""
    half = len(grid) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)  # it asks to extend the grid, which is done here
        found = choose(grid=grid[half:])
        if found.weight_decay == grid[half]:
            found = _both(choose(grid=grid[: half + 1]), found)
        if found.curve.doubt:
            lowest = max(int(np.searchsorted(grid, _reliable(found))) - _BELOW, 0)
            refitted = choose(grid=grid[lowest:], by="cross_validation")
            if lowest and refitted.weight_decay == grid[lowest]:
                refitted = _both(choose(grid=grid[: lowest + 1], by="cross_validation"), refitted)
            found = refitted.merged(found, refitted.curve)
    return found


def _reliable(found: Selection | Tried) -> float:
    """Return the best lam by leave-one-out or, where its score is rough, the next larger one whose score is not."""
    curve = found.curve
    at = (curve.weight_decay >= found.weight_decay) & ~np.isin(curve.status, (FAILED, ROUGH))
    return float(curve.weight_decay[at][0]) if at.any() else found.weight_decay


def _both(low: Choice, high: Choice) -> Choice:
    """Return the better of two choices, with the curve of both: their grids meet in one lam."""
    best, other = sorted((low, high), key=lambda each: float(np.min(each.curve.score)))
    return best.merged(other, joined(low.curve, high.curve))


def _warn_of_an_end(curve: Curve) -> None:
    """Say in words of a table what the best lam at an end of the grid, or beside one without a score, means."""
    lams = curve.weight_decay
    if curve.best == len(lams) - 1:
        text = (
            f"the most weight decay that was tried ({lams[-1]:.2g}) predicted best: the columns tell little about y, "
            "and the prediction is close to its mean everywhere. Look at the score on rows that were kept apart."
        )
    elif _falls(curve):
        low = math.floor(math.log10(lams[0]))
        text = (
            f"the least weight decay that was tried ({lams[0]:.2g}) predicted best, and the score was still falling: "
            f"less may do better. Give weight_decay=numpy.logspace({low - 3}, {low + 1}, 9), a grid that looks further "
            "down; fits take longer there."
        )
    else:
        text = curve.doubt
    if text:
        warnings.warn(text, SelectionWarning, stacklevel=outside())
