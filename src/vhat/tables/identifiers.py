"""Recognise columns that number the rows: an identifier is not a quantity."""

from __future__ import annotations

import numpy as np

__all__ = ["looks_like_identifier"]

_FEWEST = 20
"""Rows below which whole numbers in order may well be a quantity."""
_DENSE = 0.5
"""Share of the whole numbers between smallest and largest above which numbers that are all different count the rows.
A random sample of a table that is numbered 1, 2, 3, ... keeps its share of them, in any order."""


def looks_like_identifier(numbers: np.ndarray) -> bool:
    """Return whether numbers are whole, all different, and either in order or most of those in their range.

    Args:
        numbers: The cells of a column in the order of the rows, (rows,), NaN where one is missing. Copies of whole rows
            are to be left out.
    """
    if len(numbers) < _FEWEST or not np.all(np.isfinite(numbers)) or np.any(np.mod(numbers, 1) != 0):
        return False
    steps = np.diff(numbers)
    if np.all(steps > 0) or np.all(steps < 0):
        return True
    ordered = np.sort(numbers)
    if np.any(np.diff(ordered) == 0):
        return False
    return len(numbers) > _DENSE * (ordered[-1] - ordered[0] + 1)
