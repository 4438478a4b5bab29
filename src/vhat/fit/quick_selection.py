"""The choice of weight decay with few fits, for tables that should be fitted in seconds."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vhat.errors import ModelError, SelectionWarning, outside
from vhat.fit.decay_path import default_grid
from vhat.fit.score_curve import FAILED, ROUGH, Entry, assemble, joined
from vhat.fit.selection import Selection, choose_weight_decay
from vhat.fit.small_tables import Tried, is_served, selected, try_decays
from vhat.fit.splits import check_table

if TYPE_CHECKING:
    from vhat.fit.recipe import NetworkRecipe
    from vhat.fit.score_curve import Curve

__all__ = ["choose_from", "choose_quickly"]

Choice = TypeVar("Choice", Selection, Tried)

_LARGE_LAMS = 9
"""Number of lams of the default grid that are tried first, from the largest down: four decades."""
_LAMS_BELOW = 2
"""Number of lams below the best reliable one with which cross-validation starts: one decade."""
_FALLING = 0.05
"""Relative decrease of the score between the two smallest lams above which it still falls towards smaller ones."""


def choose_quickly(recipe: NetworkRecipe, X: np.ndarray, y: np.ndarray, *, sample_weight: Any, seed: int) -> Selection:
    """Choose lam by leave-one-out: among large lams first, and among small ones only if the score falls towards them.

    Fits that nearly interpolate take many times as long, and first-order leave-one-out is then rough or undefined. If
    this makes the choice unreliable, cross-validation chooses instead, which refits without the held-out rows. If the
    smallest lam is best by a small margin, it is taken without a warning: weight decay then matters little.

    Args:
        recipe: A recipe of :mod:`vhat.fit`; its own weight decay is ignored.
        X: Standardised rows.
        y: Standardised responses.
        sample_weight: Row weights, or None.
        seed: Seed of the first parameters.

    Returns:
        The selection, with the curve of all lams that were tried.

    Warns:
        SelectionWarning: When the largest lam is best, the score still falls towards the smallest, or the next smaller
            lam cannot be fitted.
    """
    table = check_table(X, y, sample_weight)
    grid = default_grid(recipe, table, seed)
    if is_served(recipe, len(table)):
        choose_small = functools.partial(try_decays, recipe, table, seed=seed)
        selection = selected(recipe, table, _choose_from_whole_grid(choose_small, grid))
    else:
        choose_any = functools.partial(choose_weight_decay, recipe, X, y, sample_weight=sample_weight, seed=seed)
        selection = _choose_from_halves(choose_any, grid[-_LARGE_LAMS:])
    _warn_of_an_end(selection.curve)
    return selection


def choose_from(
    recipe: NetworkRecipe, X: np.ndarray, y: np.ndarray, *, grid: np.ndarray, sample_weight: Any, seed: int
) -> Selection:
    """Choose lam by leave-one-out from an ascending grid given by the user; see :func:`choose_quickly`."""
    table = check_table(X, y, sample_weight)
    if not is_served(recipe, len(table)):
        return choose_weight_decay(recipe, X, y, grid=grid, sample_weight=sample_weight, seed=seed)
    selection = selected(recipe, table, try_decays(recipe, table, grid=grid, seed=seed))
    caveat = selection.curve.edge or selection.curve.doubt
    if caveat:
        warnings.warn(caveat, SelectionWarning, stacklevel=outside())
    return selection


def _choose_from_whole_grid(choose: Callable[..., Tried], grid: np.ndarray) -> Tried:
    """Choose among the larger lams, and continue with the smaller ones if the score still falls towards them."""
    high = _choose_from_halves(choose, grid[-_LARGE_LAMS:])
    if len(grid) <= _LARGE_LAMS or not _falls(high.curve):
        return high
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        better = _with_smaller(high, choose, grid[: len(grid) - _LARGE_LAMS + 1], by=high.by)
    # Prefer a reliable choice to a better score that is not reliable.
    if better.weight_decay < high.weight_decay and better.curve.doubt and not high.curve.doubt:
        return high
    return better


def _falls(curve: Curve) -> bool:
    """Return whether the smallest lam is the best by more than ``_FALLING``."""
    return curve.best == 0 and curve.score[0] < (1 - _FALLING) * curve.score[1]


def _choose_from_halves(choose: Callable[..., Choice], grid: np.ndarray) -> Choice:
    """Choose from the larger half of a grid first.

    Continue with the smaller half if the best lam is at the end between them. If leave-one-out is not reliable at the
    best lam, or at the next one below, choose by cross-validation instead.
    """
    half = len(grid) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)  # it advises to extend the grid, as is done here
        choice = choose(grid=grid[half:])
        if choice.weight_decay == grid[half]:
            choice = _with_smaller(choice, choose, grid[: half + 1])
        if choice.curve.doubt:
            lowest = max(int(np.searchsorted(grid, _best_reliable(choice))) - _LAMS_BELOW, 0)
            refitted = choose(grid=grid[lowest:], by="cross_validation")
            if lowest and refitted.weight_decay == grid[lowest]:
                refitted = _with_smaller(refitted, choose, grid[: lowest + 1], by="cross_validation")
            choice = refitted.merged(choice, refitted.curve)
    return choice


def _with_smaller(choice: Choice, choose: Callable[..., Choice], grid: np.ndarray, **options: Any) -> Choice:
    """Return the better of a choice and of one among smaller lams, with the curve of both.

    If no smaller lam can be scored, as where fits interpolate, they are failed lams of the curve, with the reason.

    Args:
        choice: The choice.
        choose: Function that chooses from a grid.
        grid: The smaller lams, and last the smallest of the choice.
        **options: Further arguments of ``choose``.
    """
    try:
        low = choose(grid=grid, **options)
    except ModelError as error:
        failed = [Entry(np.inf, np.nan, np.nan, FAILED, str(error))] * len(grid)
        return replace(choice, curve=joined(assemble(grid, failed, choice.curve.measure), choice.curve))
    return _better(low, choice)


def _best_reliable(choice: Selection | Tried) -> float:
    """Return the best lam or, if its score is rough or missing, the next larger one with a reliable score."""
    curve = choice.curve
    reliable = (curve.weight_decay >= choice.weight_decay) & ~np.isin(curve.status, (FAILED, ROUGH))
    if not reliable.any():
        return choice.weight_decay
    return float(curve.weight_decay[reliable][0])


def _better(low: Choice, high: Choice) -> Choice:
    """Return the choice with the better score, with the curve of both; their grids share one lam."""
    best, other = sorted((low, high), key=lambda each: float(np.min(each.curve.score)))
    return best.merged(other, joined(low.curve, high.curve))


def _warn_of_an_end(curve: Curve) -> None:
    """Warn if the best lam is at an end of the grid or its score is unreliable, in terms of a table."""
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
