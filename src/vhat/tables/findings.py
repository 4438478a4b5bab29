"""What stands out in a training table, each a sentence: named, and left to the user."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.tables.columns import Columns, Wording
from vhat.tables.columns.kinds import Filled, Number
from vhat.tables.row_names import RowNames

__all__ = ["findings", "log_would_help", "skewness"]

_FAR = 10.0
"""Interquartile ranges beyond a quartile from which a value is a gross outlier; of a Gaussian it is 14 standard
deviations from the mean, so that no sample has one by chance."""
_SKEWED = 1.0
"""Skewness of a target from which its logarithm is tried; that of an exponential distribution is 2."""
_ENOUGH = 20
"""Rows below which skewness and identifiers are guesswork."""


def findings(frame: Any, y: np.ndarray, columns: Columns, names: RowNames, target: str, wording: Wording) -> list[str]:
    """Name duplicated rows, identifiers, codes with leading zeros and gross outliers.

    Args:
        frame: The inputs, as they stand in the table.
        y: The target, (n,).
        columns: How the inputs are read.
        names: What the rows are called.
        target: What the target is called.
        wording: Words for the options that change how a column is read.
    """
    said = [_copies(frame, y)]
    for column in columns.columns:
        if isinstance(column, Number):
            cells = frame[column.name]
            said += [_identifier(column.name, column.read(cells, wording), wording)]
            said += [_code(column.name, cells, wording)]
        if isinstance(column, Filled):
            said.append(_outliers(f"column {column.name!r}", column.read(frame[column.name], wording), names))
    said.append(_outliers(f"the target {target!r}", y, names))
    return [text for text in said if text]


def _copies(frame: Any, y: np.ndarray) -> str:
    count = int(frame.assign(**{"": y}).duplicated().sum())
    if not count:
        return ""
    rows = "1 row is a copy" if count == 1 else f"{count:,} rows are copies"
    return (
        f"{rows} of an earlier one in every column and the target: each counts in the fit; the weight decay and the "
        "intervals of new responses are chosen with all copies of a row left out together"
    )


def _identifier(name: str, numbers: np.ndarray, wording: Wording) -> str:
    """Name whole numbers that are all different and in order: numbers of rows, not a quantity."""
    steps = np.diff(numbers)
    ordered = len(numbers) >= _ENOUGH and (np.all(steps > 0) or np.all(steps < 0))
    if not ordered or not np.all(np.mod(numbers, 1) == 0):
        return ""
    return (
        f"column {name!r} looks like an identifier: whole numbers, all different and in order. It is used as a number; "
        f"{wording.override(name, 'skip')} leaves it out"
    )


def _code(name: str, cells: Any, wording: Wording) -> str:
    """Name digits with leading zeros, which numbers do not have."""
    if getattr(cells.dtype, "kind", "O") not in "OT":
        return ""
    odd = next((text for text in cells if isinstance(text, str) and _has_leading_zero(text.strip())), None)
    if odd is None:
        return ""
    return (
        f"column {name!r} has leading zeros ({odd.strip()!r}) and is read as a number; if these are codes: "
        f"{wording.override(name, 'category')}"
    )


def _has_leading_zero(text: str) -> bool:
    return len(text) > 1 and text.isdigit() and text.startswith("0")


def _outliers(where: str, values: np.ndarray, names: RowNames) -> str:
    """Name values far beyond the quartiles, on a logarithmic scale too where all are positive."""
    known = ~np.isnan(values)
    far = known & _far(values, known)
    if np.all(values[known] > 0):
        far &= _far(np.log(np.where(known, values, 1.0)), known)
    if not far.any():
        return ""
    rows = np.flatnonzero(far)
    worst = rows[np.argmax(np.abs(values[rows] - np.median(values[known])))]
    many = f"{len(rows):,} gross outliers, the farthest is" if len(rows) > 1 else "a gross outlier,"
    return (
        f"{where} has {many} {values[worst]:.5g} in {names[int(worst)]} (more than {_FAR:g} interquartile ranges "
        "beyond the quartiles); check it"
    )


def _far(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    low, high = np.quantile(values[known], [0.25, 0.75])
    reach = _FAR * (high - low)
    if not reach > 0:
        return np.zeros(len(values), dtype=bool)
    return (values < low - reach) | (values > high + reach)


def skewness(values: np.ndarray) -> float:
    """Return the third standardised moment, free of units; 0 for constants."""
    centred = values - values.mean()
    spread = float(np.sqrt(np.mean(centred**2)))
    return 0.0 if not spread else float(np.mean((centred / spread) ** 3))


def log_would_help(y: np.ndarray) -> bool:
    """Return whether a target is positive, skewed to the right, and much less so on a logarithmic scale."""
    if len(y) < _ENOUGH or not np.all(y > 0):
        return False
    raw = skewness(y)
    return raw > _SKEWED and abs(skewness(np.log(y))) < raw / 2
