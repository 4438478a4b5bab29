"""Slices: lines through one training row along which one column changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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

    Args:
        table: The training inputs.
        row: The index of the row.
        predict: Function from rows of the table to predictions.
    """
    if not table.flat:
        return []
    lines = [_along(table, row, int(column)) for column in table.varying]
    if len(lines) <= MAX_SLICES:
        return lines
    ends = np.cumsum([len(line.grid) for line in lines])[:-1]
    points = sum(len(line.grid) for line in lines)
    prediction = predict(np.concatenate([line.rows for line in lines])).reshape(points, -1)
    spread = prediction.std(axis=0)
    unit = np.where(spread > 0, spread, 1.0)  # outputs may have different units
    changes = [np.max(np.ptp(part / unit, axis=0)) for part in np.split(prediction, ends)]
    return [lines[k] for k in np.sort(np.argsort(changes)[-MAX_SLICES:])]


def _along(table: Table, row: int, column: int) -> Slice:
    """Return the slice through a row along a column."""
    values = np.unique(table.values[:, column])
    discrete = len(values) <= FEW_VALUES
    low = values[0]
    high = values[-1]
    beyond = 0.0 if table.whole else _BEYOND * (high - low)
    grid = values if discrete else np.linspace(low - beyond, high + beyond, _POINTS)
    if table.whole:  # codes have no values between whole numbers
        grid = np.unique(np.round(grid))
    rows = np.repeat(table.values[row][None], len(grid), axis=0)
    rows[:, column] = grid
    return Slice(column, grid, rows, discrete)
