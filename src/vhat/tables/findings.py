"""Name what stands out in a training table, one sentence each; what to do about it is left to the user."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from vhat.tables.columns import Columns, Wording
from vhat.tables.columns.kinds import Filled, Number
from vhat.tables.identifiers import looks_like_identifier
from vhat.tables.row_names import RowNames

__all__ = ["findings", "log_would_help", "skewness"]

_FAR = 10.0
"""Interquartile ranges beyond a quartile from which a value is a gross outlier. For a Gaussian that is 14 standard
deviations from the mean, which no sample reaches by chance."""
_FAR_IN_LOGARITHM = 4.0
"""The same for the logarithms of positive values, which must be far as well: 6 standard deviations of a lognormal. A
factor of 100, as a decimal comma that was lost, is found where the upper quartile is up to three times the lower."""
_SKEWED = 1.0
"""Skewness of a target above which its logarithm is tried; an exponential distribution has 2."""
_ENOUGH = 20
"""Rows below which skewness is not estimated."""


def findings(
    frame: Any,
    y: np.ndarray,
    columns: Columns,
    names: RowNames,
    target: str,
    wording: Wording,
    asked: Collection[str] = (),
    held_out: tuple[Any, np.ndarray] | None = None,
) -> list[str]:
    """Return a sentence for each finding: duplicated rows, identifiers, codes with leading zeros, gross outliers.

    Args:
        frame: The inputs, as they stand in the table.
        y: The target, (n,).
        columns: How the inputs are read.
        names: The names of the rows.
        target: The name of the target.
        wording: Words for the options that change how a column is read.
        asked: Columns whose kind the user asked for: a number among them is meant to be one.
        held_out: Inputs and target of the held-out rows of the same table, among which copies are counted too; or None.
    """
    copies = _is_copy(frame, y)
    held_copies = 0 if held_out is None else int(_is_copy(*held_out).sum())
    found = [_copies(int(copies.sum()), held_copies)]
    for column in columns.columns:
        if not isinstance(column, Filled):
            continue
        cells = frame[column.name]
        numbers = column.read(cells, wording)
        if isinstance(column, Number):
            if column.name not in asked:
                found.append(_identifier(column.name, numbers[~copies], wording))
            found.append(_code(column.name, cells, wording))
        found.append(_outliers(f"column {column.name!r}", numbers, names))
    found.append(_outliers(f"the target {target!r}", y, names))
    return [sentence for sentence in found if sentence]


def _is_copy(frame: Any, y: np.ndarray) -> np.ndarray:
    """Return which rows are copies of an earlier one, (rows,)."""
    copies: np.ndarray = frame.assign(**{"": y}).duplicated().to_numpy()
    return copies


def _copies(training: int, held_out: int) -> str:
    """Name the number of copies among the training rows and among the held-out rows; no row is among both."""
    count = training + held_out
    if not count:
        return ""
    rows = "1 row is a copy" if count == 1 else f"{count:,} rows are copies"
    where = ""
    each = "each"
    if held_out:
        where = f" ({held_out:,} of them among the held-out rows, as is the row that they copy)"
        each = "each of the others"
    return (
        f"{rows} of an earlier one in every column and the target{where}: {each} counts in the fit; the weight decay "
        "and the intervals of new responses are chosen with all copies of a row left out together"
    )


def _identifier(name: str, numbers: np.ndarray, wording: Wording) -> str:
    if not looks_like_identifier(numbers):
        return ""
    return (
        f"column {name!r} looks like an identifier: whole numbers, all different, that count the rows. It is used as a "
        f"number, and later rows will lie beyond it; {wording.override(name, 'skip')} leaves it out"
    )


def _code(name: str, cells: Any, wording: Wording) -> str:
    """Name digits with leading zeros, which codes have and numbers do not."""
    if getattr(cells.dtype, "kind", "O") not in "OT":  # only text keeps leading zeros
        return ""
    for cell in cells:
        if isinstance(cell, str) and _has_leading_zero(cell.strip()):
            return (
                f"column {name!r} has leading zeros ({cell.strip()!r}) and is read as a number; if these are codes: "
                f"{wording.override(name, 'category')}"
            )
    return ""


def _has_leading_zero(text: str) -> bool:
    return len(text) > 1 and text.isdigit() and text.startswith("0")


def _outliers(where: str, values: np.ndarray, names: RowNames) -> str:
    """Name values far beyond the quartiles; if all values are positive, they must be so on a logarithmic scale too."""
    known = ~np.isnan(values)
    far = known & _far(values, known, _FAR)
    if np.all(values[known] > 0):
        far &= _far(np.log(np.where(known, values, 1.0)), known, _FAR_IN_LOGARITHM)
    if not far.any():
        return ""
    rows = np.flatnonzero(far)
    worst = rows[np.argmax(np.abs(values[rows] - np.median(values[known])))]
    noun = f"{len(rows):,} gross outliers, the farthest is" if len(rows) > 1 else "a gross outlier,"
    return (
        f"{where} has {noun} {values[worst]:.5g} in {names[int(worst)]} (more than {_FAR:g} interquartile ranges "
        "beyond the quartiles); check it"
    )


def _far(values: np.ndarray, known: np.ndarray, ranges: float) -> np.ndarray:
    """Return which values lie more than some interquartile ranges beyond the quartiles of the known ones."""
    low, high = np.quantile(values[known], [0.25, 0.75])
    reach = ranges * (high - low)
    if not reach > 0:
        return np.zeros(len(values), dtype=bool)
    return (values < low - reach) | (values > high + reach)


def skewness(values: np.ndarray) -> float:
    """Return the third standardised moment, free of units; 0 for constants."""
    centred = values - values.mean()
    spread = float(np.sqrt(np.mean(centred**2)))
    if not spread:
        return 0.0
    return float(np.mean((centred / spread) ** 3))


def log_would_help(y: np.ndarray) -> bool:
    """Return whether a target is positive, skewed to the right, and much less so on a logarithmic scale."""
    if len(y) < _ENOUGH or not np.all(y > 0):
        return False
    raw = skewness(y)
    return raw > _SKEWED and abs(skewness(np.log(y))) < raw / 2
