"""Check a table before anything is trained on it; every refusal says what to do."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vhat.checks import column_names, refuse_masked
from vhat.errors import InputError, SupportWarning, TableWarning, name_rows, outside
from vhat.tables.identifiers import looks_like_identifier

__all__ = [
    "IS_FAR",
    "TrainingRows",
    "check_table",
    "identifier_remedy",
    "merge_copies",
    "refuse_missing",
    "refuse_responses",
    "refuse_text",
    "warn_of_far",
    "warn_of_moved",
    "weighted",
]

_RESOLVED = 1e-12
"""Range of a column, as a share of its size, below which float64 keeps fewer than four digits of its variation."""
_FLATTENED = 1e-15
"""Typical deviation of a column, as a share of its largest one, below which only rounding is left of it."""
_SQUARED = (1e-130, 1e153)
"""Range in which the standard deviation of the target, and the noise in it, can be squared in float64."""
_MOST_LISTED = 6
"""Columns that a message lists."""


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows of a table that the loss sees.

    Attributes:
        X: Inputs, (n, d).
        y: Responses, (n,) or (n, outputs).
        weights: Weight of each row, positive, with mean 1, (n,).
    """

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray


def refuse_text(X: Any) -> None:
    """Refuse columns that hold text, categories or dates, by name.

    Args:
        X: A data frame, or an array of objects; anything else is accepted.

    Raises:
        InputError: Naming the columns, with an example and what to do.
    """
    names = column_names(X)
    if names is not None:
        contents = {repr(name): _non_numeric(X.iloc[:, at]) for at, name in enumerate(names)}
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS":
        contents = {str(at): _non_numeric(column) for at, column in enumerate(X.T)}
    else:
        return
    refused = {name: content for name, content in contents.items() if content is not None}
    if not refused:
        return
    listed = [f"{name} {content.what}" for name, content in refused.items()]
    more = f"; and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    remedies = dict.fromkeys(content.remedy for content in refused.values())
    raise InputError(
        f"X has columns that are not numbers: column {'; column '.join(listed[:_MOST_LISTED])}{more}. "
        f"{' '.join(remedies)} Or leave these columns out."
    )


class _NonNumeric(NamedTuple):
    """What a column holds that is not numbers, and what to do about it."""

    what: str
    remedy: str


_ENCODE = (
    "NetworkRegressor encodes categories of a data frame itself, and its encode(X) returns what fitted_ takes; "
    "elsewhere encode them as numbers first (sklearn.preprocessing.OneHotEncoder in a Pipeline, or pandas.get_dummies)."
)


def _non_numeric(column: Any) -> _NonNumeric | None:
    """Return what a column holds that is not numbers; None for a column of numbers."""
    kind = getattr(column.dtype, "kind", "O")
    if kind in "fiub":
        return None
    if kind in "Mm":
        return _NonNumeric("holds dates or times", "Take what matters out of dates, such as days since a first one.")
    if str(column.dtype) == "category":
        return _NonNumeric(f"is categorical ({len(column.cat.categories)} categories)", _ENCODE)
    texts = [str(value) for value in column if isinstance(value, str)]
    return _text(texts) if texts else None


def _text(texts: list[str]) -> _NonNumeric:
    """Tell numbers written as text from words."""
    odd = [text for text in texts if not _reads_as_number(text)]
    convert = "Convert numbers that are written as text: pandas.to_numeric(column), or array.astype(float)"
    if not odd:
        return _NonNumeric(f"holds numbers written as text (such as {reprlib.repr(texts[0])})", f"{convert}.")
    if 2 * len(odd) < len(texts):
        return _NonNumeric(
            f"holds numbers written as text, and {reprlib.repr(odd[0])} among them",
            f"{convert}; errors='coerce' of to_numeric makes missing what is not a number.",
        )
    return _NonNumeric(f"holds text (such as {reprlib.repr(odd[0])})", _ENCODE)


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
    listed = []
    for at in np.flatnonzero(bad.any(axis=0)):
        kind = "NaN" if np.isnan(X[:, at]).any() else "inf"
        listed.append(f"column {_name(at, names)} ({kind} in {name_rows(np.flatnonzero(bad[:, at]), 4)})")
    more = f", and {len(listed) - _MOST_LISTED} more columns" if len(listed) > _MOST_LISTED else ""
    raise InputError(
        f"X has missing (NaN) or infinite (inf) values: {', '.join(listed[:_MOST_LISTED])}{more}. Remove these rows, "
        "or fill them in (sklearn.impute.SimpleImputer in a Pipeline); an interval then takes what was filled in as if "
        "it were measured."
    )


def refuse_responses(y: Any) -> None:
    """Refuse responses that are text or dates, missing or infinite, naming the rows.

    Raises:
        InputError: With how to go on.
    """
    refuse_masked("y", y)
    array = np.asarray(y)
    found = ""
    if array.dtype.kind in "Mm":
        found = "dates or times"
    elif array.dtype.kind in "OUS":
        text = next((value for value in array.ravel() if isinstance(value, str)), None)
        if text is not None:
            found = f"text (such as {reprlib.repr(str(text))})"
    if found:
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


def weighted(X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> TrainingRows:
    """Return the rows of positive weight, with weights of mean 1: only ratios of weights matter."""
    used = weights > 0
    weights = weights[used]
    return TrainingRows(X[used], y[used], weights * (len(weights) / weights.sum()))


def check_table(rows: TrainingRows, names: Sequence[Any] | None = None) -> np.ndarray:
    """Refuse rows from which nothing can be learned, and warn of rows from which little can.

    Args:
        rows: Finite inputs and responses.
        names: The names of the columns, or None.

    Returns:
        The columns that vary, as indices: nothing can be learned from the others.

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
            "that, and the model leaves it out. Remove it from the table to silence this warning."
        )
    if n < varies.sum():
        _warn(
            f"there are fewer rows ({n}) than columns ({int(varies.sum())}): the data cannot tell all columns apart, "
            "and weight decay decides between them. Read .unsupported of every interval, or choose columns first."
        )
    return np.flatnonzero(varies)


def merge_copies(rows: TrainingRows) -> TrainingRows:
    """Merge rows that agree in inputs and response into one row with the sum of their weights.

    The objective stays the same. Leave-one-out then leaves all copies of a row out together: a copy that stays in would
    tell the fit the row that is left out. Merged rows are sorted, so that the order of the table does not matter.
    """
    both = np.column_stack([rows.X, rows.y])
    unique, copy_of = np.unique(both, axis=0, return_inverse=True)
    weights = np.bincount(copy_of.ravel(), rows.weights)
    d = rows.X.shape[1]
    y = unique[:, d] if rows.y.ndim == 1 else unique[:, d:]
    return TrainingRows(
        np.ascontiguousarray(unique[:, :d]), np.ascontiguousarray(y), weights * (len(weights) / weights.sum())
    )


def warn_of_moved(X: np.ndarray, constants: dict[int, float], names: Sequence[Any] | None = None) -> None:
    """Warn of points at which a column that was constant in training has another value.

    Warns:
        TableWarning: The model and the interval do not depend on such a column.
    """
    for at, value in constants.items():
        moved = np.flatnonzero(X[:, at] != value)
        if moved.size:
            _warn(
                f"column {_name(at, names)} was {value!r} in all training rows and is not in {name_rows(moved)}: what "
                "it does there is not known, and no interval tells. Do not rely on these rows."
            )


IS_FAR = r"column .* was between .* in training and is far outside in "
"""Pattern of the warnings of :func:`warn_of_far`, by which they are told apart from other warnings of their class."""


def warn_of_far(
    X: np.ndarray,
    far: np.ndarray,
    kept: np.ndarray,
    ranges: tuple[np.ndarray, np.ndarray],
    names: Sequence[Any] | None = None,
    training: np.ndarray | None = None,
) -> None:
    """Warn of points far outside the training range of a column.

    Args:
        X: The points, (m, d).
        far: Where a value is far outside, (m, kept).
        kept: The columns that the model sees, as indices.
        ranges: The smallest and the largest training value of each of these.
        names: The names of all columns, or None.
        training: The training inputs, (n, d), by which a column that looks like an identifier is named; or None.

    Warns:
        SupportWarning: One for each such column.
    """
    for k in np.flatnonzero(far.any(axis=0)):
        column = int(kept[k])
        rows = np.flatnonzero(far[:, k])
        lower, upper = ranges[0][k], ranges[1][k]
        remedy = "" if training is None else identifier_remedy(training[:, column], column, names)
        warnings.warn(
            f"column {_name(column, names)} was between {lower:.6g} and {upper:.6g} in training and is far outside in "
            f"{name_rows(rows)} ({X[rows[0], column]:.6g} in the first): the model was fitted to nothing there, and "
            f"no interval tells how it errs. Do not rely on these rows.{remedy}",
            SupportWarning,
            stacklevel=outside(),
        )


def identifier_remedy(numbers: np.ndarray, column: int, names: Sequence[Any] | None, *, command: bool = False) -> str:
    """Return what to do about a column that counts the rows, a sentence; empty for any other column.

    Args:
        numbers: The training cells of the column, (n,).
        column: The column, as an index.
        names: The names of all columns, or None.
        command: Whether the reader is at the command line.
    """
    from vhat.tables.columns.wording import Wording

    if not looks_like_identifier(numbers):
        return ""
    if names is None:
        call = f"fit without column {column} of X"
    else:
        call = f"fit again with {Wording(command=command).override(str(names[column]), 'skip')}"
    return (
        " Its training values are whole numbers that count the rows, as identifiers and dates are, so that later rows "
        f"lie beyond them: if it is an identifier, {call}."
    )


def _refuse_unresolved(where: str, column: np.ndarray) -> None:
    size = float(np.abs(column).max())
    spread = float(np.ptp(column / size))  # divided first: the difference of the largest floats would overflow
    if spread < _RESOLVED:
        raise InputError(
            f"{where} varies by no more than {spread * size:.1e} around {size:.1e}: double precision hardly tells its "
            "values apart. Subtract a constant from it where it is still exact."
        )


def _refuse_flattened(where: str, column: np.ndarray) -> None:
    """Refuse a column with one value so large that float64 cannot tell the others apart beside it."""
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
    shown = ", ".join(_name(at, names) for at in columns[:_MOST_LISTED])
    rest = f" and {len(columns) - _MOST_LISTED} more" if len(columns) > _MOST_LISTED else ""
    return f"columns {shown}{rest} of X have" if len(columns) > 1 else f"column {shown} of X has"


def _warn(text: str) -> None:
    warnings.warn(text, TableWarning, stacklevel=outside())
