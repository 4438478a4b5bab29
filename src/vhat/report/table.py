"""The training inputs as one table of numbers, and the way back to what the model takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.models.problem import Problem

__all__ = ["Table", "training_table"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of inputs.

    Attributes:
        values: (n, columns), float64.
        names: One a column.
        inputs: From rows of ``values`` to inputs of the model.
        whole: Whether they are whole numbers, which the model may read as codes.
        flat: Whether the model's inputs are such columns; False for images and the like, whose numbers are not
            looked at one by one.
    """

    values: np.ndarray
    names: tuple[str, ...]
    inputs: Callable[[np.ndarray], Any]
    whole: bool
    flat: bool

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation of each column."""
        spread: np.ndarray = self.values.std(axis=0)
        return spread

    @property
    def varying(self) -> np.ndarray:
        """The columns that are not constant."""
        return np.flatnonzero(np.ptp(self.values, axis=0) > 0)

    def standardised(self, rows: np.ndarray) -> np.ndarray:
        """Return the varying columns of some rows in standard deviations from the mean of the table."""
        kept = self.varying
        scaled: np.ndarray = (rows[:, kept] - self.values.mean(axis=0)[kept]) / self.spread[kept]
        return scaled

    def rows_of(self, problem: Problem, x: Any) -> np.ndarray:
        """Return inputs of the user's as rows, after the model's own checks, (m, columns)."""
        return _array(problem, problem.inputs(x)).reshape(-1, self.values.shape[1]).astype(np.float64)


def training_table(problem: Problem, names: tuple[str, ...] | None) -> Table:
    """Return the training inputs.

    Raises:
        InputError: When they are not one array of numbers, or the names are not as many as the columns.
    """
    array = _array(problem, problem.X)
    values = array.reshape(problem.n, -1).astype(np.float64)
    width = values.shape[1]
    known = tuple(map(str, names or _names(problem) or ()))
    if not known:
        known = ("x",) if width == 1 else tuple(f"x{j}" for j in range(width))
    if len(known) != width:
        raise InputError(f"columns names {len(known)} columns; the training inputs have {width}.")
    whole = array.dtype.kind in "iub"
    return Table(values, known, _way_back(problem, array), whole, array.ndim <= 2)


def _array(problem: Problem, inputs: Any) -> np.ndarray:
    """Return checked inputs as one array, rows first."""
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    try:
        if isinstance(inputs, dict | tuple | list):
            raise TypeError(f"a {type(inputs).__name__} of {len(inputs)} parts")
        native = hasattr(inputs, "columns") or isinstance(inputs, np.ndarray)
        array = np.asarray(inputs) if native else problem.numpy(inputs)
        if array.dtype.kind not in "fiub":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a report shows models whose inputs are one table of numbers; these are not ({error}). For others, "
            "fitted.audit() and fitted.interval(x) say the same in print."
        ) from error
    return array


def _names(problem: Problem) -> tuple[Any, ...] | None:
    """Return the names of the columns, where the training inputs were a data frame."""
    frame = getattr(problem.X, "columns", None)
    if frame is not None:
        return tuple(frame)
    kept = getattr(problem, "columns", None) or getattr(
        getattr(getattr(problem, "model", None), "layout", None), "columns", None
    )
    if not isinstance(kept, tuple):
        return None
    # the front ends of jax and torch keep one tuple of names for each array
    return kept[0] if len(kept) == 1 and (kept[0] is None or isinstance(kept[0], tuple)) else kept


def _way_back(problem: Problem, array: np.ndarray) -> Callable[[np.ndarray], Any]:
    shape, kind = array.shape[1:], array.dtype
    frame = problem.X if hasattr(problem.X, "columns") else None
    along_last = getattr(problem, "columns", None) is True  # scipy's curve_fit takes (columns, rows)

    def inputs(rows: np.ndarray) -> Any:
        if frame is not None:
            import pandas as pd

            return pd.DataFrame(rows, columns=frame.columns)
        made = rows.reshape(-1, *shape).astype(kind if kind.kind in "iub" else np.float64)
        return np.moveaxis(made, 0, -1) if along_last else made

    return inputs
