"""Read tables as inputs of the network: the training table, and the points to predict."""

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
from vhat.tables.columns.kinds import Number, Skipped
from vhat.tables.columns.texts import dtype_kind
from vhat.tables.identifiers import looks_like_identifier

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor
    from vhat.intervals.interval import Interval

__all__ = ["FAR", "Points", "Table", "read_points", "read_training_table", "warn_of_identifiers"]

FAR = "outside training range"
"""Status of a point that has an interval, and a value far outside the training range of its column."""
_MOST_SHOWN = 8
"""Columns that a message names."""


@dataclass(frozen=True, eq=False)
class Table:
    """A training table as numbers.

    Attributes:
        X: Inputs of the network before they are standardised, (n, d).
        y: Responses, (n,) or (n, outputs).
        names: The names of the columns of X, or None.
        columns: How a data frame was read; None for an array.
    """

    X: np.ndarray
    y: np.ndarray
    names: Any
    columns: Columns | None


def read_training_table(
    network: NetworkRegressor, X: Any, y: Any, sample_weight: Any, decided: Columns | None
) -> Table:
    """Return a training table as numbers, and set ``n_features_in_`` and ``feature_names_in_`` of the estimator.

    A data frame of numbers without gaps is taken as it is. So is an array: its columns have no kinds, and anything in
    it that is not a finite number is refused.

    Args:
        network: The estimator.
        X: Inputs.
        y: Responses.
        sample_weight: Weight of each row, or None.
        decided: How to read the columns of X; None to decide it here.

    Raises:
        InputError: For columns that cannot be read, and a table whose columns are all left out.

    Warns:
        TableWarning: Of columns that are left out.
    """
    validate.refuse_responses(y)
    columns = decided
    if columns is None:
        columns = _decided(X, sample_weight, network.columns)
        if columns is not None:
            _warn_of_left_out(columns)
    _refuse_all_left_out(columns)
    if columns is None or (columns.plain and _all_numbers(X)):
        if columns is None:
            validate.refuse_text(X)
        X, y = _checked(network, X, y)
        names = getattr(network, "feature_names_in_", None)
        validate.refuse_missing(X, names)
        return Table(X, y, names, columns)
    encoded, y = _checked(network, columns.encode(X).numbers, y)
    validate.refuse_missing(encoded, columns.network_inputs)
    # This second check sets the names and the number of the user's own columns, not those of the encoded table.
    _validated(network, X, skip_check_array=True)
    return Table(encoded, y, columns.network_inputs, columns)


def _warn_of_left_out(columns: Columns) -> None:
    """Warn of columns that the network does not see, unless the user asked for that; constant ones are named later."""
    dropped = [column for column in columns.columns if not column.network_inputs and not _as_asked(column)]
    if not dropped or not columns.network_inputs:  # a table without inputs is refused, by the same names
        return
    listed = "; ".join(f"{column.name!r} ({column.detail})" for column in dropped)
    noun = "column is" if len(dropped) == 1 else "columns are"
    warnings.warn(
        f"{len(dropped)} {noun} left out: {listed}. {Wording().override(dropped[0].name, 'skip')} says that this is "
        "meant; another kind ('number', 'date', 'category') in its place reads the column as that. print(columns_) "
        "shows how each column was read.",
        TableWarning,
        stacklevel=outside(),
    )


def _refuse_all_left_out(columns: Columns | None) -> None:
    """Refuse a table of which no column is left to learn from.

    Raises:
        InputError: Naming the columns, each with the reason.
    """
    if columns is None or not columns.columns or columns.network_inputs:
        return
    shown = "; ".join(f"{column.name!r} ({column.detail})" for column in columns.columns[:_MOST_SHOWN])
    rest = len(columns.columns) - _MOST_SHOWN
    more = f"; and {rest:,} more" if rest > 0 else ""
    raise InputError(
        f"every column is left out, so that there is nothing to learn from: {shown}{more}. Add a column of "
        "numbers, or of levels that repeat."
    )


def _as_asked(column: Column) -> bool:
    """Return whether the user asked to leave the column out."""
    return isinstance(column, Skipped) and column.reason == Skipped.reason


def warn_of_identifiers(columns: Columns | None, X: Any, y: Any, asked: Mapping[str, str] | None) -> None:
    """Warn of columns of a data frame that look like identifiers and are used as numbers.

    Args:
        columns: How the data frame was read; None for an array, of which nothing is said.
        X: The training table.
        y: The responses: copies of a row, in every column and the response, count once.
        asked: The kinds that the user asked for, by name: a column that is asked to be a number is meant to be one.

    Warns:
        TableWarning: With the option that leaves such a column out, and the one that says that it is meant.
    """
    if columns is None:
        return
    wording = Wording()
    responses = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
    # Names of the user's may be of any type, and equal to each other.
    both = X.set_axis(range(X.shape[1]), axis=1).assign(**{f"y{k}": each for k, each in enumerate(responses.T)})
    distinct = ~both.duplicated().to_numpy()
    found = []
    for at, column in enumerate(columns.columns):
        if not isinstance(column, Number) or column.name in (asked or {}):
            continue
        if looks_like_identifier(column.read(X.iloc[:, at], wording)[distinct]):
            found.append(column.name)
    if not found:
        return
    one = len(found) == 1
    listed = ", ".join(map(repr, found))
    warnings.warn(
        f"{'column' if one else 'columns'} {listed} {'looks' if one else 'look'} like "
        f"{'an identifier' if one else 'identifiers'}: whole numbers, all different, that count the rows. "
        f"{'It is' if one else 'They are'} used as numbers, and later rows will lie beyond them. "
        f"{wording.override(found[0], 'skip')} leaves a column out; {wording.override(found[0], 'number')} says that "
        "it is a quantity.",
        TableWarning,
        stacklevel=outside(),
    )


def _validated(network: NetworkRegressor, *table: Any, **options: Any) -> Any:
    """Check a table as scikit-learn does.

    Raises:
        InputError: With scikit-learn's message; with one of ours for masked arrays, whose mask scikit-learn drops, and
            for arrays that hold no real numbers.
    """
    from sklearn.utils.validation import validate_data

    parts = [_dense(name, part) for name, part in zip(("X", "y"), table, strict=False)]
    try:
        return validate_data(network, *parts, **options)
    except (ValueError, OverflowError) as error:
        raise InputError(str(error)) from error


def _dense(name: str, part: Any) -> Any:
    """Return an array of another library as one of NumPy; lists, data frames and sparse matrices as they are."""
    refuse_masked(name, part)
    foreign = hasattr(part, "__array__") and not isinstance(part, np.ndarray) and not hasattr(part, "iloc")
    return as_real(name, part) if foreign else part


def _checked(network: NetworkRegressor, X: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and responses in float64, checked as scikit-learn does; gaps are refused later, by name."""
    X, y = _validated(network, X, y, dtype=np.float64, ensure_all_finite=False, multi_output=True, y_numeric=True)
    return X, y


def _decided(X: Any, sample_weight: Any, asked: Mapping[str, str] | None) -> Columns | None:
    """Decide how to read a data frame; return None for anything else, and for one without rows or with equal names."""
    names = column_names(X)
    if names is None or not len(X) or len(set(map(str, names))) < len(names):
        return None
    return Columns.of(X, asked, weights=check_weights(sample_weight, len(X)))


def _all_numbers(frame: Any) -> bool:
    return all(dtype_kind(frame.iloc[:, at]) == "number" for at in range(frame.shape[1]))


@dataclass(frozen=True, eq=False)
class Points:
    """Points as inputs of the network.

    Attributes:
        numbers: (points, inputs).
        status: ``missing cell``, ``unknown level`` or an empty text, (points,); None where all are empty.
    """

    numbers: np.ndarray
    status: np.ndarray | None = None

    def with_status(self, band: Interval, far: np.ndarray) -> Interval:
        """Return an interval whose status names points with replaced cells, and points far outside the training range.

        Only the status ``converged`` is replaced: why a row has no interval matters more.

        Args:
            band: The interval.
            far: Which points are far outside the training range, (points,).
        """
        status = np.full(len(self.numbers), "", dtype=object) if self.status is None else self.status
        status = np.where(far & (status == ""), FAR, status)
        per_output = status.reshape(-1, *(1,) * (band.status.ndim - 1))
        replaced = (per_output != "") & (band.status == Status.CONVERGED)
        if not replaced.any():
            return band
        return replace(band, status=np.where(replaced, per_output, band.status))


def read_points(network: NetworkRegressor, X: Any) -> Points:
    """Return points as inputs of the network, read as the training table was.

    Args:
        network: The estimator.
        X: A table with the columns of the training table, or what :meth:`vhat.NetworkRegressor.encode` made of one.

    Raises:
        InputError: For cells that cannot be read.

    Warns:
        TableWarning: Of gaps in columns without gaps in training, and of levels that were not in the training rows.
    """
    columns = network.columns_
    if columns is None or _is_plain(columns, X):
        validate.refuse_text(X)
        points: np.ndarray = _validated(network, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        validate.refuse_missing(points, getattr(network, "feature_names_in_", None))
        return Points(points)
    if column_names(X) == columns.network_inputs and _is_complete(X):
        return Points(X.to_numpy(dtype=np.float64))
    encoded = encode(network, columns, X)
    validate.refuse_missing(encoded.numbers, columns.network_inputs)
    _warn_of_replaced(encoded)
    return Points(encoded.numbers, encoded.status if encoded.missing or encoded.unknown else None)


def _is_plain(columns: Columns, X: Any) -> bool:
    """Return whether points are inputs as they stand: numbers in an array, or in a data frame without gaps."""
    return columns.plain and (column_names(X) is None or _is_complete(X))


def _is_complete(frame: Any) -> bool:
    return _all_numbers(frame) and not frame.isna().to_numpy().any()


def encode(network: NetworkRegressor, columns: Columns, X: Any) -> Encoded:
    """Encode points; the columns of an array are those of the training table, in their order."""
    import pandas as pd

    _validated(network, X, reset=False, skip_check_array=True)  # checks the names and the number of columns
    frame = X if column_names(X) is not None else pd.DataFrame(X)
    return columns.encode(frame.set_axis(list(columns.names), axis=1))


def _warn_of_replaced(encoded: Encoded) -> None:
    """Warn of cells that are replaced, by column."""
    for status, found in ((MISSING, encoded.missing), (UNKNOWN, encoded.unknown)):
        for name, rows in found.items():
            warnings.warn(
                f"column {name!r}: {_WHAT[status]} in {name_rows(np.flatnonzero(rows))}. {_RULE[status]} The status of "
                f"these rows is {status!r}.",
                TableWarning,
                stacklevel=outside(),
            )


_WHAT = {
    MISSING: "cells are missing, and none were in training,",
    UNKNOWN: "there are levels that training did not see",
}
"""What is unusual about a cell."""
_RULE = {
    MISSING: "Predictions take the training median, or an average level, as if it had been measured.",
    UNKNOWN: "Predictions take them for a rare level, or for an average one where there were no rare ones.",
}
"""What replaces such a cell."""
