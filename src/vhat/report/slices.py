"""Lines through one training row, along one column each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vhat.report.table import Table

__all__ = ["FEW_VALUES", "MOST_COLUMNS", "Slice", "central_row", "slices"]

MOST_COLUMNS = 12
"""Columns that are sliced along; of more, those along which the prediction moves most."""
_POINTS = 41
FEW_VALUES = 8
"""A column with so many values or fewer is asked at these alone."""
_BEYOND = 0.15
"""How far a line goes beyond the data, as a share of their range."""


@dataclass(frozen=True, eq=False)
class Slice:
    """One line.

    Attributes:
        column: The column that changes.
        grid: Its values, (points,).
        rows: The inputs, (points, columns).
        discrete: Whether these are the only values that the column takes.
    """

    column: int
    grid: np.ndarray
    rows: np.ndarray
    discrete: bool


def central_row(table: Table) -> int:
    """Return the training row nearest to the mean of all, each column in its standard deviations."""
    return int(np.argmin(np.sum(table.standardised(table.values) ** 2, axis=1)))


def slices(table: Table, row: int, predict: Callable[[np.ndarray], np.ndarray]) -> list[Slice]:
    """Return the lines through a row, at most a dozen, in the order of the table.

    Args:
        table: The training inputs.
        row: The row that all lines go through.
        predict: From rows of the table to predictions.
    """
    if not table.flat:
        return []
    lines = [_along(table, row, int(column)) for column in table.varying]
    if len(lines) <= MOST_COLUMNS:
        return lines
    ends = np.cumsum([len(line.grid) for line in lines])[:-1]
    found = predict(np.concatenate([line.rows for line in lines])).reshape(sum(len(line.grid) for line in lines), -1)
    unit = np.where(found.std(axis=0) > 0, found.std(axis=0), 1.0)
    moved = [np.max(np.ptp(part / unit, axis=0)) for part in np.split(found, ends)]
    return [lines[k] for k in np.sort(np.argsort(moved)[-MOST_COLUMNS:])]


def _along(table: Table, row: int, column: int) -> Slice:
    seen = np.unique(table.values[:, column])
    discrete = len(seen) <= FEW_VALUES
    low, high = seen[0], seen[-1]
    beyond = 0.0 if table.whole else _BEYOND * (high - low)
    grid = seen if discrete else np.linspace(low - beyond, high + beyond, _POINTS)
    if table.whole:
        grid = np.unique(np.round(grid))
    rows = np.repeat(table.values[row][None], len(grid), axis=0)
    rows[:, column] = grid
    return Slice(column, grid, rows, discrete)
