"""Columns of numbers as text whose decimal points stand below each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["align_columns", "decimals_of"]

_LONGEST = 17
"""Characters of a number beyond which all columns are written in powers of ten."""
_ALIKE = 2
"""Difference in decimals up to which all rows get those of the most precise one."""


def decimals_of(sizes: np.ndarray, digits: int) -> np.ndarray:
    """Return the number of decimals at which a size shows so many digits, one a row; 0 for what has no size."""
    known = np.isfinite(sizes) & (sizes != 0)
    places = np.floor(np.log10(np.abs(sizes, where=known, out=np.ones(len(sizes)))))
    decimals = np.where(known, digits - 1 - places, 0)
    return np.maximum(decimals, 0).astype(int)


def align_columns(columns: Sequence[np.ndarray], decimals: np.ndarray) -> list[list[str]]:
    """Return columns as text.

    Args:
        columns: The numbers, (rows,) each.
        decimals: The number of decimals of each row.

    Returns:
        One list of texts per column. All texts of a column have the same length.

    Examples:
        >>> align_columns([np.array([12345.0, 0.02, np.nan])], np.array([0, 3, 0]))
        [['12345    ', '    0.020', '      nan']]
    """
    finite = [column[np.isfinite(column)] for column in columns]
    if not any(len(column) for column in finite):
        return [[f"{value:g}" for value in column] for column in columns]
    largest = max(float(np.max(np.abs(column), initial=0.0)) for column in finite)
    most = int(np.max(decimals))
    whole_digits = len(f"{largest:.0f}")
    if whole_digits + most > _LONGEST:
        return [_scientific(column, decimals) for column in columns]
    if most - _least(columns, decimals) <= _ALIKE:
        decimals = np.full(len(decimals), most)
    return [_positional(column, decimals) for column in columns]


def _least(columns: Sequence[np.ndarray], decimals: np.ndarray) -> int:
    """Return the smallest number of decimals among rows that have numbers."""
    usable = np.any([np.isfinite(column) for column in columns], axis=0)
    return int(np.min(decimals[usable]))


def _positional(values: np.ndarray, decimals: np.ndarray) -> list[str]:
    """Write numbers without powers of ten, padded on the right so that the decimal points are aligned."""
    most = int(np.max(decimals))
    texts = []
    for value, places in zip(values, decimals, strict=True):
        text = f"{value:.{places}f}"
        if np.isfinite(value):
            missing = most - int(places)
            if places == 0 and most > 0:
                missing += 1  # the point itself
            text += " " * missing
        texts.append(text)
    return _right_aligned(texts)


def _scientific(values: np.ndarray, decimals: np.ndarray) -> list[str]:
    """Write numbers as a mantissa and a power of ten, with the digits of the row that needs most."""
    finite = np.isfinite(values) & (values != 0)
    places = np.floor(np.log10(np.abs(values, where=finite, out=np.ones(len(values)))))
    needed = np.where(finite, places + decimals, 3)
    digits = int(np.clip(np.max(needed), 3, 16))
    return _right_aligned([f"{value:.{digits}e}" for value in values])


def _right_aligned(texts: list[str]) -> list[str]:
    width = max(len(text) for text in texts)
    return [text.rjust(width) for text in texts]
