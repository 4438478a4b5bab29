"""Checks of the parameters and inputs of a NumPy model."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.checks import check_finite, column_names, match_columns, refuse_masked
from vhat.errors import InputError
from vhat.models.numpy.model import wrap_errors

__all__ = ["as_array", "as_inputs", "as_parameters", "match_inputs", "take"]


def as_parameters(theta: Any) -> np.ndarray:
    """Return a copy of the parameters, (p,), in their own dtype."""
    array = as_array(theta, "theta").copy()
    if array.ndim != 1 or not array.size or array.dtype.kind not in "fiu":
        raise InputError(
            f"theta has shape {array.shape} and dtype {array.dtype}; give one axis of real numbers, (p,). "
            "(theta.ravel() makes one axis; predict then reshapes it.)"
        )
    check_finite("theta", array)
    return array


def as_inputs(X: Any, name: str = "X") -> Any:
    """Return a copy of the inputs, rows on the leading axis: a pandas object stays one, all else becomes an array.

    Only numeric columns of a pandas object must be finite; the others are left to the user's function.
    """
    if hasattr(X, "iloc"):
        rows = X.copy()
        frame = X if hasattr(X, "columns") else X.to_frame()
        numbers = frame.select_dtypes("number").to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        rows = as_array(X, name).copy()
        numbers = rows
    if not np.ndim(rows) or not len(rows):
        raise InputError(f"{name} has shape {np.shape(rows)}: no rows. Give at least one row on the leading axis.")
    check_finite(name, numbers)
    return rows


def as_array(X: Any, name: str) -> np.ndarray:
    """Return an array of any dtype, because a NumPy model may take any; raise if values are masked."""
    refuse_masked(name, X)
    with wrap_errors(f"{name} is not an array", InputError):
        return np.asarray(X)


def match_inputs(x: Any, X: Any, *, rows_last: bool = False) -> Any:
    """Check test inputs against the training inputs ``X`` and convert them to the same form.

    Args:
        x: Test inputs.
        X: Checked training inputs.
        rows_last: Whether the rows of x are on its last axis.
    """
    if hasattr(X, "columns"):  # a data frame
        if not hasattr(x, "columns"):
            raise InputError(f"the model was trained on a data frame; give x as one, with columns {list(X.columns)}.")
        return as_inputs(match_columns("x", x, column_names(X)), "x")
    if hasattr(X, "iloc") and not hasattr(x, "iloc"):  # a pandas Series
        x = type(X)(as_array(x, "x"), name=X.name)
    array = x if hasattr(X, "iloc") else as_array(x, "x")
    if rows_last and np.ndim(array) == np.ndim(X):
        array = np.moveaxis(array, -1, 0)
    if np.ndim(array) != np.ndim(X) or array.shape[1:] != X.shape[1:]:
        axes = (*X.shape[1:], "m") if rows_last else ("m", *X.shape[1:])
        expected = ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "")
        raise InputError(
            f"x has shape {np.shape(x)}; the training inputs ask for ({expected}), m the number of points. "
            "(One point is one row: x[None].)"
        )
    if not hasattr(X, "iloc") and array.dtype.kind not in X.dtype.kind + "fiub":
        raise InputError(f"x has dtype {array.dtype}; the training inputs have {X.dtype}.")
    return as_inputs(array, "x")


def take(X: Any, rows: Any) -> Any:
    """Return rows of checked inputs."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
