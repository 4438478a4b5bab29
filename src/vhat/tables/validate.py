"""What a table of data must satisfy before anything is trained on it, each refusal a sentence with a remedy."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vhat.checks import column_names, refuse_masked
from vhat.errors import InputError, SupportWarning, TableWarning, name_rows, outside

__all__ = [
    "Rows",
    "check_table",
    "merge_copies",
    "refuse_missing",
    "refuse_responses",
    "refuse_text",
    "warn_of_far",
    "warn_of_moved",
    "weighted",
]

_RESOLVED = 1e-12
"""A column that varies by less than this share of its size has fewer than four digits left in float64."""
_FLATTENED = 1e-15
"""Typical deviation of a column, as a share of its largest, below which rounding is all that is left of it."""
_SQUARED = (1e-130, 1e153)
"""Between these a standard deviation of the target can be squared in float64, and so can the noise in it."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table that the loss sees.

    Attributes:
        X: Inputs, (n, d).
        y: Responses, (n,) or (n, outputs).
        weights: One weight a row, positive, their mean 1.
    """

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray


def refuse_text(X: Any) -> None:
    """Refuse columns that hold text, categories or dates, by name.

    Args:
        X: A data frame, or an array of objects; anything else passes.

    Raises:
        InputError: Naming the columns, with an example and what to do.
    """
    names = column_names(X)
    if names is not None:
        found = [(repr(name), _foreign(X.iloc[:, at])) for at, name in enumerate(names)]
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS":
        found = [(str(at), _foreign(column)) for at, column in enumerate(X.T)]
    else:
        return
    told = [f"{name} {foreign.what}" for name, foreign in found if foreign is not None]
    if told:
        more = f"; and {len(told) - 6} more" if len(told) > 6 else ""
        remedies = dict.fromkeys(foreign.remedy for _, foreign in found if foreign is not None)
        raise InputError(
            f"X has columns that are not numbers: column {'; column '.join(told[:6])}{more}. {' '.join(remedies)} Or "
            "leave these columns out."
        )


class _Foreign(NamedTuple):
    """What a column holds that is not numbers, and what to do about it."""

    what: str
    remedy: str


_ENCODE = (
    "NetworkRegressor encodes categories of a data frame itself, and its encode(X) returns what fitted_ takes; "
    "elsewhere encode them as numbers first (sklearn.preprocessing.OneHotEncoder in a Pipeline, or pandas.get_dummies)."
)


def _foreign(column: Any) -> _Foreign | None:
    """What a column holds that is not numbers; None where it holds numbers."""
    kind = getattr(column.dtype, "kind", "O")
    if kind in "fiub":
        return None
    if kind in "Mm":
        return _Foreign("holds dates or times", "Take what matters out of dates, such as days since a first one.")
    if str(column.dtype) == "category":
        return _Foreign(f"is categorical ({len(column.cat.categories)} categories)", _ENCODE)
    texts = [str(value) for value in column if isinstance(value, str)]
    return _text(texts) if texts else None


def _text(texts: list[str]) -> _Foreign:
    """Tell numbers that are written as text from words."""
    odd = [text for text in texts if not _reads_as_number(text)]
    convert = "Convert numbers that are written as text: pandas.to_numeric(column), or array.astype(float)"
    if not odd:
        return _Foreign(f"holds numbers written as text (such as {reprlib.repr(texts[0])})", f"{convert}.")
    if 2 * len(odd) < len(texts):
        return _Foreign(
            f"holds numbers written as text, and {reprlib.repr(odd[0])} among them",
            f"{convert}; errors='coerce' of to_numeric makes missing what is not a number.",
        )
    return _Foreign(f"holds text (such as {reprlib.repr(odd[0])})", _ENCODE)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_missing(X: np.ndarray, names: Sequence[Any] | None = None) -> None:
    """Refuse missing and infinite inputs, naming columns and rows.

    Raises:
        InputError: With how to go on.
    """
    bad = ~np.isfinite(X)
    if not bad.any():
        return
    told = [
        f"column {_name(at, names)} ({'NaN' if np.isnan(X[:, at]).any() else 'inf'} in "
        f"{name_rows(np.flatnonzero(bad[:, at]), 4)})"
        for at in np.flatnonzero(bad.any(axis=0))
    ]
    more = f", and {len(told) - 6} more columns" if len(told) > 6 else ""
    raise InputError(
        f"X has missing (NaN) or infinite (inf) values: {', '.join(told[:6])}{more}. Remove these rows, or fill them "
        "in (sklearn.impute.SimpleImputer in a Pipeline); an interval then takes what was filled in as if it were "
        "measured."
    )


def refuse_responses(y: Any) -> None:
    """Refuse responses that are text or dates, missing or infinite, naming the rows.

    Raises:
        InputError: With how to go on.
    """
    refuse_masked("y", y)
    array = np.asarray(y)
    text = (
        next((value for value in array.ravel() if isinstance(value, str)), None) if array.dtype.kind in "OUS" else None
    )
    if text is not None or array.dtype.kind in "Mm":
        found = "dates or times" if text is None else f"text (such as {reprlib.repr(str(text))})"
        raise InputError(f"y holds {found}; a regression predicts numbers. Check that it is the right column.")
    if array.dtype.kind != "f" or not array.ndim:
        return
    bad = ~np.isfinite(array)
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))
        raise InputError(
            f"y is missing (NaN) or infinite (inf) in {name_rows(rows)}: nothing can be learned from a row without its "
            "response. Remove these rows."
        )


def weighted(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Rows:
    """Leave out rows of weight zero, and give the weights the mean 1: what counts is their ratio."""
    seen = weights > 0
    weights = weights[seen]
    return Rows(X[seen], y[seen], weights * (len(weights) / weights.sum()))


def check_table(rows: Rows, names: Sequence[Any] | None = None) -> np.ndarray:
    """Refuse what nothing can be learned from; warn of what limits what can be learned.

    Args:
        rows: Finite inputs and responses.
        names: The names of the columns, where they have any.

    Returns:
        The columns that vary, as indices: the others carry nothing that could be learned.

    Raises:
        InputError: For one row, a constant target, columns that are all constant, or numbers that float64 cannot
            tell apart.

    Warns:
        TableWarning: Of constant columns, which are left out, and of fewer rows than columns.
    """
    n = len(rows.X)
    if n < 2:
        raise InputError(
            "the table has 1 sample (one row with a positive weight): no function and no noise can be read off it. "
            "Give at least two rows, and many more for an interval that means something."
        )
    targets = rows.y.reshape(n, -1)
    for output, column in enumerate(targets.T):
        where = "y" if targets.shape[1] == 1 else f"column {output} of y"
        if np.ptp(column) == 0:
            raise InputError(
                f"{where} is {float(column[0])!r} in all {n} rows: there is nothing to predict, and no noise to "
                "measure an interval by. Check that it is the right column."
            )
        _refuse_unresolved(where, column)
        _refuse_unsquared(where, column)
    varies = np.array([np.ptp(column) > 0 for column in rows.X.T], dtype=bool)
    if not varies.any():
        raise InputError(
            f"every column of X is constant over its {n} rows: there is nothing to predict y from. Check the table."
        )
    for at in np.flatnonzero(varies):
        _refuse_unresolved(f"column {_name(at, names)} of X", rows.X[:, at])
        _refuse_flattened(f"column {_name(at, names)} of X", rows.X[:, at])
    if not varies.all():
        _warn(
            f"{_listed(np.flatnonzero(~varies), names)} the same value in all {n} rows: nothing can be learned from "
            "that, and the model leaves it out. Leave it out of X to be rid of this warning."
        )
    if n < varies.sum():
        _warn(
            f"there are fewer rows ({n}) than columns ({int(varies.sum())}): the data cannot tell all columns apart, "
            "and weight decay decides between them. Read .unsupported of every interval, or choose columns first."
        )
    return np.flatnonzero(varies)


def merge_copies(rows: Rows) -> Rows:
    """Make one row, with the weight of all, of rows that agree in inputs and response.

    The objective is the same. What leaves rows out to judge a fit then leaves all copies out together: with one left
    in, the row would be known all the same. The order of the rows no longer matters either.
    """
    both = np.column_stack([rows.X, rows.y])
    unique, copy_of = np.unique(both, axis=0, return_inverse=True)
    weights = np.bincount(copy_of.ravel(), rows.weights)
    d = rows.X.shape[1]
    y = unique[:, d] if rows.y.ndim == 1 else unique[:, d:]
    return Rows(np.ascontiguousarray(unique[:, :d]), np.ascontiguousarray(y), weights * (len(weights) / weights.sum()))


def warn_of_moved(X: np.ndarray, constants: dict[int, float], names: Sequence[Any] | None = None) -> None:
    """Warn of points at which a column differs that was constant in training.

    Warns:
        TableWarning: The model knows nothing of such a column, and neither does the interval.
    """
    for at, value in constants.items():
        moved = np.flatnonzero(X[:, at] != value)
        if moved.size:
            _warn(
                f"column {_name(at, names)} was {value!r} in all training rows and is not in {name_rows(moved)}: what "
                "it does there is not known, and no interval tells. Do not rely on these rows."
            )


def warn_of_far(
    X: np.ndarray,
    far: np.ndarray,
    kept: np.ndarray,
    ranges: tuple[np.ndarray, np.ndarray],
    names: Sequence[Any] | None = None,
) -> None:
    """Warn of points far outside the range that a column had in training.

    Args:
        X: The points, (m, d).
        far: Where a value is far outside, (m, kept).
        kept: The columns that the model sees, as indices.
        ranges: The smallest and the largest training value of each of these.
        names: The names of all columns, or None.

    Warns:
        SupportWarning: One for each such column.
    """
    for k in np.flatnonzero(far.any(axis=0)):
        rows = np.flatnonzero(far[:, k])
        lower, upper = ranges[0][k], ranges[1][k]
        warnings.warn(
            f"column {_name(kept[k], names)} was between {lower:.6g} and {upper:.6g} in training and is far outside in "
            f"{name_rows(rows)} ({X[rows[0], kept[k]]:.6g} in the first): the model was fitted to nothing there, and "
            "no interval tells how it errs. Do not rely on these rows.",
            SupportWarning,
            stacklevel=outside(),
        )


def _refuse_unresolved(where: str, column: np.ndarray) -> None:
    size = float(np.abs(column).max())
    spread = float(np.ptp(column / size))  # before the difference: the largest floats must not overflow
    if spread < _RESOLVED:
        raise InputError(
            f"{where} varies by no more than {spread * size:.1e} around {size:.1e}: double precision hardly tells its "
            "values apart. Subtract a constant from it where it is still exact."
        )


def _refuse_flattened(where: str, column: np.ndarray) -> None:
    """Refuse a column of which one value is so large that all others are the same number beside it."""
    size = float(np.abs(column).max())
    deviations = np.abs(column / size - np.median(column / size))
    typical = float(np.median(deviations[deviations > 0]))
    if typical < _FLATTENED * deviations.max():
        raise InputError(
            f"{where} has a value of size {size:.1e}, and its others differ by {typical * size:.1e}: beside the first, "
            "double precision does not tell them apart. Correct that value, or leave its row out."
        )


def _refuse_unsquared(where: str, column: np.ndarray) -> None:
    size = float(np.abs(column).max())
    spread = size * float(np.std(column / size))
    if not (_SQUARED[0] < spread and size < _SQUARED[1]):
        raise InputError(
            f"{where} has a standard deviation of {spread:.1e} around values up to {size:.1e}: squares of such numbers "
            "leave the range of double precision. Express it in another unit, so that it is nearer to 1."
        )


def _name(at: int | np.integer, names: Sequence[Any] | None) -> str:
    return str(int(at)) if names is None else repr(str(names[int(at)]))


def _listed(columns: Sequence[int] | np.ndarray, names: Sequence[Any] | None) -> str:
    shown = ", ".join(_name(at, names) for at in columns[:6])
    rest = f" and {len(columns) - 6} more" if len(columns) > 6 else ""
    return f"columns {shown}{rest} of X have" if len(columns) > 1 else f"column {shown} of X has"


def _warn(text: str) -> None:
    warnings.warn(text, TableWarning, stacklevel=outside())
