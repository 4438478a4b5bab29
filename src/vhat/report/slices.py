"""Slices: lines through one training row along which one column changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vhat.errors import ModelError
from vhat.report.table import Table

__all__ = ["FEW_VALUES", "MAX_SLICES", "Slice", "central_row", "slices"]

MAX_SLICES = 12
"""Largest number of slices. Of more columns, those along which the prediction changes most are chosen."""
_POINTS = 41
"""Number of points of a slice."""
FEW_VALUES = 8
"""A column with at most this many values is discrete: its slice has these values only."""
_BEYOND = 0.15
"""Extension of a slice beyond the data at each end, as a share of their range."""
_TOWARDS_ZERO = 0.5
"""Extension of a positive column towards zero, at most, as a share of its smallest value: a dose or a weight is not
negative, and models in the logarithm or a power of it have no derivatives at zero."""


@dataclass(frozen=True, eq=False)
class Slice:
    """One slice.

    Attributes:
        column: The index of the column that changes.
        grid: The values of this column, (points,).
        rows: The inputs, (points, columns).
        discrete: Whether the grid holds all values of the column.
    """

    column: int
    grid: np.ndarray
    rows: np.ndarray
    discrete: bool


def central_row(table: Table) -> int:
    """Return the index of the training row nearest to the mean, in standard deviations of the columns."""
    return int(np.argmin(np.sum(table.standardised(table.values) ** 2, axis=1)))


def slices(table: Table, row: int, predict: Callable[[np.ndarray], np.ndarray]) -> list[Slice]:
    """Return at most ``MAX_SLICES`` slices through a row, in the order of the columns.

    Points at which the model has no finite prediction are left out.

    Args:
        table: The training inputs.
        row: The index of the row.
        predict: Function from rows of the table to predictions. It raises :class:`vhat.ModelError` where they are not
            finite.
    """
    if not table.flat or not table.varying.size:
        return []
    lines = [_along(table, row, int(column)) for column in table.varying]
    rows = np.concatenate([line.rows for line in lines])
    finite, prediction = _finite_predictions(rows, predict)
    kept = []
    changes = []
    spread = prediction.std(axis=0)
    unit = np.where(spread > 0, spread, 1.0)  # outputs may have different units
    start = 0
    for line in lines:
        stop = start + len(line.grid)
        use = finite[start:stop]
        if use.any():
            first = int(np.count_nonzero(finite[:start]))
            part = prediction[first : first + int(np.count_nonzero(use))]
            kept.append(replace(line, grid=line.grid[use], rows=line.rows[use]))
            changes.append(float(np.max(np.ptp(part / unit, axis=0))))
        start = stop
    if len(kept) <= MAX_SLICES:
        return kept
    return [kept[k] for k in np.sort(np.argsort(changes)[-MAX_SLICES:])]


def _finite_predictions(rows: np.ndarray, predict: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows have finite predictions, (points,), and the predictions of these, (finite points, outputs).

    The model is asked row by row only if it refuses all rows together.
    """
    count = len(rows)
    with np.errstate(all="ignore"):
        try:
            return np.ones(count, dtype=bool), predict(rows).reshape(count, -1)
        except ModelError:
            finite = np.array([_is_finite(rows[i : i + 1], predict) for i in range(count)])
        if not finite.any():
            return finite, np.zeros((0, 1))
        prediction = predict(rows[finite])
    return finite, prediction.reshape(int(np.count_nonzero(finite)), -1)


def _is_finite(row: np.ndarray, predict: Callable[[np.ndarray], np.ndarray]) -> bool:
    try:
        predict(row)
    except ModelError:
        return False
    return True


def _along(table: Table, row: int, column: int) -> Slice:
    """Return the slice through a row along a column."""
    values = np.unique(table.values[:, column])
    discrete = len(values) <= FEW_VALUES
    low = values[0]
    high = values[-1]
    beyond = 0.0 if table.whole else _BEYOND * (high - low)
    start = low - beyond
    if low >= 0:
        start = max(start, (1 - _TOWARDS_ZERO) * low)
    grid = values if discrete else np.linspace(start, high + beyond, _POINTS)
    if table.whole:  # codes have no values between whole numbers
        grid = np.unique(np.round(grid))
    rows = np.repeat(table.values[row][None], len(grid), axis=0)
    rows[:, column] = grid
    return Slice(column, grid, rows, discrete)
