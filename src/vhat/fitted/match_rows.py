"""Match the training rows of a model with the rows that its recipe was given.

Leave-one-out, bootstraps and comparisons use a fit row by row, and are wrong where the rows are others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import as_numbers, check_weights
from vhat.errors import InputError

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["held_rows"]

_ROUNDED = 4 * float(np.finfo(np.float32).eps)
"""Difference of a response that training in float32 may cause, as a share of the largest response."""
_BLURRED = 1e-3
"""Largest difference that counts as rounding, as a share of the range of y."""
_UNEXPLAINED = 0.1
"""Share of the largest difference that other units may leave. Rounding leaves about all of it, and a change of units
only what float32 rounds."""


def held_rows(fitted: FittedModel, y: Any, sample_weight: Any = None) -> np.ndarray:
    """Return the numbers of the rows that a model contains, among those that its recipe was given.

    A model may contain all rows in their order; all but those of weight zero; or, where weights are whole numbers, as
    many copies of each row as its weight.

    Args:
        fitted: The model that the recipe returned.
        y: The responses that the recipe was given, (n,) or (n, outputs).
        sample_weight: The weights that it was given, (n,), or None.

    Returns:
        Row numbers, (rows of the model,).

    Raises:
        InputError: When the model contains other responses, with their likely origin and the remedy.
    """
    came = as_numbers("y", y)
    came = came.reshape(len(came), -1)
    weights = None if sample_weight is None else check_weights(sample_weight, len(came))
    held = fitted.problem.targets
    compared = came
    for rows in _possible(len(held), len(came), weights):
        if _same(held, came[rows]):
            return rows
        if compared is came:
            compared = came[rows]
    raise InputError(_difference(held, compared))


def _possible(size: int, n: int, weights: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield the row numbers that a model of ``size`` rows may contain.

    Weights that are whole numbers may also be the counts of a survey, in the billions. Copies are therefore made only
    where there are as many as the model has rows.
    """
    if size == n:
        yield np.arange(n)
    if weights is None:
        return
    if size == np.count_nonzero(weights):
        yield np.flatnonzero(weights)
    if size == weights.sum() and np.all(weights == np.round(weights)):
        yield np.repeat(np.arange(n), weights.astype(int))


def _same(held: np.ndarray, came: np.ndarray) -> bool:
    return held.shape == came.shape and bool(np.all(np.abs(held - came) <= _tolerance(came)))


def _tolerance(y: np.ndarray) -> np.ndarray:
    """Return the difference that counts as rounding, (K,): that of float32, limited by the range of y."""
    size = np.abs(y).max(axis=0)
    extent = np.ptp(y, axis=0)
    blurred = _BLURRED * np.where(extent > 0, extent, size)
    tolerance: np.ndarray = np.maximum(np.minimum(_ROUNDED * size, blurred), 1e-12 * size)
    return tolerance


def _difference(held: np.ndarray, came: np.ndarray) -> str:
    """Return how the responses of a model differ from those that were given, and the remedy."""
    hand_over = "Give vhat.from_torch, from_jax or from_numpy the rows as they came"
    if held.shape[1] != came.shape[1]:
        return (
            f"the recipe was handed {came.shape[1]} response(s) a row and its model holds {held.shape[1]}. {hand_over}."
        )
    if len(held) != len(came):
        why = " (a part kept for validation, rows dropped?)" if len(held) < len(came) else ""
        return (
            f"the recipe was handed {len(came)} rows and its model holds {len(held)}{why}. Train on all rows that "
            f"come. {hand_over}, all of them; only rows of weight zero may be left out."
        )
    if _same(np.sort(held, axis=0), np.sort(came, axis=0)):
        return (
            "the recipe's model holds the responses in another order than they came in. Shuffle inside the training "
            f"alone. {hand_over}: row i of the model is row i of the data."
        )
    scale = _scale(held, came)
    if scale is not None:
        return (
            f"the recipe's model holds y in other units, {scale[0]:.3g} y {'-' if scale[1] < 0 else '+'} "
            f"{abs(scale[1]):.3g} (standardised inside?). {hand_over}, and a model that predicts in the units of y; "
            "vhat.NetworkRegressor standardises inside and does."
        )
    row, k = np.unravel_index(int(np.argmax(np.abs(held - came) / _tolerance(came).clip(min=1e-300))), held.shape)
    return (
        f"the recipe's model holds other responses than came: {held[row, k]:.6g} in row {row} where y has "
        f"{came[row, k]:.6g} (transformed, reordered or rounded inside?). {hand_over}."
    )


def _scale(held: np.ndarray, came: np.ndarray) -> tuple[float, float] | None:
    """Return b and a of ``held = a + b came`` for the first output that differs, if every output is of this form.

    None for responses that were rounded: near ``held = came``, no line explains their differences.
    """
    found = []
    for mine, given in zip(held.T, came.T, strict=True):
        middle, extent = given.mean(), np.ptp(given)
        if not extent:
            return None
        b = float((given - middle) @ mine / ((given - middle) @ given))
        a = float(mine.mean() - b * middle)
        left = np.max(np.abs(mine - (a + b * given)))
        if not b or left > _BLURRED * abs(b) * extent:
            return None
        if _same(mine[:, None], given[:, None]):
            continue
        if left > _UNEXPLAINED * np.max(np.abs(mine - given)):
            return None
        found.append((b, a))
    return found[0]
