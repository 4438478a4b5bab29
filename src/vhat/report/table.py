"""The training inputs as one table of numbers, and the conversion back to inputs of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.evidence.audit.input_columns import one_array
from vhat.models.problem import Problem

__all__ = ["Table", "training_table"]


@dataclass(frozen=True, eq=False)
class Table:
    """A table of inputs.

    Attributes:
        values: The numbers, (n, columns), float64.
        names: The names of the columns.
        inputs: Function from rows such as those of ``values`` to inputs of the model.
        whole: Whether the inputs are integers, which the model may use as codes.
        flat: Whether the inputs of the model are columns. False for images and the like, whose numbers have no meaning
            one by one.
    """

    values: np.ndarray
    names: tuple[str, ...]
    inputs: Callable[[np.ndarray], Any]
    whole: bool
    flat: bool

    @property
    def spread(self) -> np.ndarray:
        """Return the standard deviation of each column."""
        spread: np.ndarray = self.values.std(axis=0)
        return spread

    @property
    def varying(self) -> np.ndarray:
        """Return the indices of the columns that are not constant."""
        return np.flatnonzero(np.ptp(self.values, axis=0) > 0)

    def standardised(self, rows: np.ndarray) -> np.ndarray:
        """Return the varying columns of some rows in standard deviations from the mean of the table."""
        kept = self.varying
        scaled: np.ndarray = (rows[:, kept] - self.values.mean(axis=0)[kept]) / self.spread[kept]
        return scaled

    def rows_of(self, problem: Problem, x: Any) -> np.ndarray:
        """Return inputs of the user as rows, (m, columns), after the checks of the model."""
        return _array(problem, problem.inputs(x)).reshape(-1, self.values.shape[1]).astype(np.float64)


def training_table(problem: Problem, names: tuple[str, ...] | None) -> Table:
    """Return the training inputs as a table.

    Raises:
        InputError: If they are not one array of numbers, or there are not as many names as columns.
    """
    array = _array(problem, problem.X)
    values = array.reshape(problem.n, -1).astype(np.float64)
    width = values.shape[1]
    known = tuple(map(str, names or problem.columns or ()))
    if not known:
        known = ("x",) if width == 1 else tuple(f"x{j}" for j in range(width))
    if len(known) != width:
        raise InputError(f"columns names {len(known)} columns; the training inputs have {width}.")
    whole = array.dtype.kind in "iub"
    return Table(values, known, _input_function(problem, array), whole, array.ndim <= 2)


def _array(problem: Problem, inputs: Any) -> np.ndarray:
    """Return checked inputs as one array, with rows along the first axis.

    Raises:
        InputError: If they are not one table of numbers.
    """
    try:
        return one_array(problem, inputs)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a report shows models whose inputs are one table of numbers; these are not ({error}). For others, "
            "fitted.audit() and fitted.interval(x) say the same in print."
        ) from error


def _input_function(problem: Problem, array: np.ndarray) -> Callable[[np.ndarray], Any]:
    """Return the function from rows of the table to inputs of the model, in its shape and dtype."""
    shape = array.shape[1:]
    kind = array.dtype
    frame = problem.X if hasattr(problem.X, "columns") else None
    along_last = getattr(problem.autodiff, "rows_last", False)  # curve_fit of SciPy takes (columns, rows)

    def inputs(rows: np.ndarray) -> Any:
        if frame is not None:
            import pandas as pd

            return pd.DataFrame(rows, columns=frame.columns)
        made = rows.reshape(-1, *shape).astype(kind if kind.kind in "iub" else np.float64)
        return np.moveaxis(made, 0, -1) if along_last else made

    return inputs
