"""The columns of a data frame as the network sees them, when it is trained and when it is asked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import as_real, check_weights, column_names, refuse_masked
from vhat.errors import InputError, TableWarning, name_rows, outside
from vhat.linalg.solvers import Status
from vhat.tables import validate
from vhat.tables.columns import MISSING, UNKNOWN, Column, Columns, Encoded, Wording
from vhat.tables.columns.kinds import Skipped
from vhat.tables.columns.texts import dtype_kind

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor
    from vhat.intervals.interval import Interval

__all__ = ["FAR", "Points", "Table", "ask", "learn"]

FAR = "outside training range"
"""Status of a point that has an interval, and a value far outside the range that its column had in training."""


@dataclass(frozen=True, eq=False)
class Table:
    """A training table as numbers.

    Attributes:
        X: Inputs that the network sees, before they are standardised.
        y: Responses.
        names: The names of the columns of X, or None.
        columns: How a data frame was read; None where X was no data frame.
    """

    X: np.ndarray
    y: np.ndarray
    names: Any
    columns: Columns | None


def learn(network: NetworkRegressor, X: Any, y: Any, sample_weight: Any, decided: Columns | None) -> Table:
    """Read a training table, and tell the estimator the names of its columns.

    Args:
        network: The estimator.
        X: Inputs.
        y: Responses.
        sample_weight: How much each row counts, or None.
        decided: How to read the columns of X, where that is decided; else it is decided here.

    A data frame of numbers without gaps is taken as it is. Arrays are, too: their columns have no kinds, and what is
    not a finite number in them is refused.

    Raises:
        InputError: For columns that cannot be read.

    Warns:
        TableWarning: Of columns that are left out.
    """
    validate.refuse_responses(y)
    columns = decided or _decided(X, sample_weight, network.columns)
    if columns is not None and decided is None:  # who has decided has seen them
        _warn_of_left_out(columns)
    if columns is None or (columns.plain and _all_numbers(X)):
        if columns is None:
            validate.refuse_text(X)
        X, y = _checked(network, X, y)
        names = getattr(network, "feature_names_in_", None)
        validate.refuse_missing(X, names)
        return Table(X, y, names, columns)
    encoded, y = _checked(network, columns.encode(X).numbers, y)
    validate.refuse_missing(encoded, columns.outputs)
    _validated(network, X, skip_check_array=True)  # the names and the number of the user's own columns
    return Table(encoded, y, columns.outputs, columns)


def _warn_of_left_out(columns: Columns) -> None:
    """Name the columns that the network does not see, unless the user has asked for that."""
    left = [column for column in columns.columns if not column.outputs and not _as_asked(column)]
    if not left:
        return
    told = "; ".join(f"{column.name!r} ({column.detail})" for column in left)
    noun = "column is" if len(left) == 1 else "columns are"
    wording = Wording()
    warnings.warn(
        f"{len(left)} {noun} left out: {told}. {wording.override(left[0].name, 'skip')} says that this is meant; "
        "another kind ('number', 'date', 'category') in its place reads the column as that.",
        TableWarning,
        stacklevel=outside(),
    )


def _as_asked(column: Column) -> bool:
    return isinstance(column, Skipped) and column.reason == Skipped.reason


def _validated(network: NetworkRegressor, *table: Any, **options: Any) -> Any:
    """Check a table as scikit-learn does.

    Raises:
        InputError: In the words of scikit-learn; for masks, which it drops, and for arrays without numbers in our own.
    """
    from sklearn.utils.validation import validate_data

    parts = [_dense(name, part) for name, part in zip(("X", "y"), table, strict=False)]
    try:
        return validate_data(network, *parts, **options)
    except (ValueError, OverflowError) as error:
        raise InputError(str(error)) from error


def _dense(name: str, part: Any) -> Any:
    """Return arrays of other libraries as NumPy's; lists, data frames and sparse matrices are left to scikit-learn."""
    refuse_masked(name, part)
    foreign = hasattr(part, "__array__") and not isinstance(part, np.ndarray) and not hasattr(part, "iloc")
    return as_real(name, part) if foreign else part


def _checked(network: NetworkRegressor, X: Any, y: Any) -> tuple[Any, Any]:
    X, y = _validated(network, X, y, dtype=np.float64, ensure_all_finite=False, multi_output=True, y_numeric=True)
    return X, y


def _decided(X: Any, sample_weight: Any, asked: Mapping[str, str] | None) -> Columns | None:
    """Return how to read a data frame; None for anything else, and for one without rows or different names."""
    names = column_names(X)
    if names is None or not len(X) or len(set(map(str, names))) < len(names):
        return None
    return Columns.of(X, asked, weights=check_weights(sample_weight, len(X)))


def _all_numbers(frame: Any) -> bool:
    return all(dtype_kind(frame.iloc[:, at]) == "number" for at in range(frame.shape[1]))


@dataclass(frozen=True, eq=False)
class Points:
    """Points as the network sees them.

    Attributes:
        numbers: (points, columns).
        status: What is to be said of a point beside its interval, or nothing, one text a point; None for all nothing.
    """

    numbers: np.ndarray
    status: np.ndarray | None = None

    def marked(self, band: Interval, far: np.ndarray) -> Interval:
        """Let the status of points say what was filled in, or is far outside; that they converged is no news.

        Args:
            band: The interval.
            far: Which points are far outside the training range, (points,).
        """
        status = np.full(len(self.numbers), "", dtype=object) if self.status is None else self.status
        status = np.where(far & (status == ""), FAR, status).reshape(-1, *(1,) * (band.status.ndim - 1))
        told = (status != "") & (band.status == Status.CONVERGED)
        if not told.any():
            return band
        return replace(band, status=np.where(told, status, band.status))


def ask(network: NetworkRegressor, X: Any) -> Points:
    """Read points as the training table was read.

    Args:
        network: The estimator.
        X: A table with the columns of the training table, or what :meth:`vhat.NetworkRegressor.encode` made of one.

    Raises:
        InputError: For cells that cannot be read.

    Warns:
        TableWarning: Of gaps and levels of which training knew nothing.
    """
    columns = network.columns_
    if columns is None or _is_plain(columns, X):
        validate.refuse_text(X)
        points: np.ndarray = _validated(network, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        validate.refuse_missing(points, getattr(network, "feature_names_in_", None))
        return Points(points)
    if column_names(X) == columns.outputs and _is_complete(X):
        return Points(X.to_numpy(dtype=np.float64))
    encoded = encode(network, columns, X)
    validate.refuse_missing(encoded.numbers, columns.outputs)
    _warn(encoded)
    return Points(encoded.numbers, encoded.status if encoded.missing or encoded.unknown else None)


def _is_plain(columns: Columns, X: Any) -> bool:
    """Whether points are numbers that need no reading: those of arrays, or of a data frame without gaps."""
    if not columns.plain:
        return False
    return column_names(X) is None or _is_complete(X)


def _is_complete(frame: Any) -> bool:
    return _all_numbers(frame) and not frame.isna().to_numpy().any()


def encode(network: NetworkRegressor, columns: Columns, X: Any) -> Encoded:
    """Encode points; an array has the columns of the training table in their order."""
    import pandas as pd

    _validated(network, X, reset=False, skip_check_array=True)  # names and number of columns, as scikit-learn does
    frame = X if column_names(X) is not None else pd.DataFrame(X)
    return columns.encode(frame.set_axis(list(columns.names), axis=1))


def _warn(encoded: Encoded) -> None:
    for kind, found in ((MISSING, encoded.missing), (UNKNOWN, encoded.unknown)):
        for name, rows in found.items():
            warnings.warn(
                f"column {name!r}: {WHAT[kind]} in {name_rows(np.flatnonzero(rows))}. {RULE[kind]} The status of these "
                f"rows is {kind!r}.",
                TableWarning,
                stacklevel=outside(),
            )


WHAT = {
    MISSING: "cells are missing, and none were in training,",
    UNKNOWN: "there are levels that training did not see",
}
RULE = {
    MISSING: "Predictions take the training median, or an average level, as if it had been measured.",
    UNKNOWN: "Predictions take them for a rare level, or for an average one where there were no rare ones.",
}
"""What is done about cells of which training knew nothing."""
