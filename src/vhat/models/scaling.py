"""Conversion between the user's units and the standardised data on which a model was fitted.

The model is fitted to ``t = (y - shift) / unit`` as a function of ``z = (x - center) / spread``. Skewed columns of z
are then transformed (:mod:`vhat.models.yeo_johnson`) and standardised once more. In the user's units the prediction is
``f_user(x) = shift + unit f(z)``. The objective as a function of the parameters is the same in both units,

    1/n sum_i w_i |(f_user(x_i) - y_i) / unit|^2 / 2  +  lam/2 |theta|^2,

so gradients of the objective, curvature, decay and minimum need no conversion. Only predictions, responses and their
derivatives do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.checks import as_numbers, column_names, match_columns
from vhat.errors import InputError
from vhat.models.yeo_johnson import choose_power, transform
from vhat.tables import validate

__all__ = ["Scaling"]

_MARGIN = 0.5
"""Distance from the training range, as a fraction of its width, beyond which a value counts as far outside. New rows of
the same population are seldom that far: one in 10,000 for a normal column with 30 training rows, one in 800 for an
exponential column with 100."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Constants by which inputs and responses are standardised.

    Attributes:
        kept: Indices of the columns that enter the model.
        center: Means of these columns.
        spread: Standard deviations of these columns.
        power: Powers by which the standardised columns are transformed, 1 for the identity; None if all are 1.
        power_center: Means of the transformed columns.
        power_spread: Standard deviations of the transformed columns.
        lower: Smallest training value of each kept column, in the user's units; None where it is not known.
        upper: Largest training value of each kept column.
        shift: Mean of each response, (K,).
        unit: Standard deviation of each response, (K,).
        columns: Names of all columns, or None.
    """

    kept: np.ndarray
    center: np.ndarray
    spread: np.ndarray
    shift: np.ndarray
    unit: np.ndarray
    columns: tuple[Any, ...] | None = None
    power: np.ndarray | None = None
    power_center: np.ndarray | None = None
    power_spread: np.ndarray | None = None
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray,
        kept: np.ndarray,
        *,
        powers: bool = False,
        spreads: np.ndarray | None = None,
    ) -> Scaling:
        """Return the scaling with the weighted means and standard deviations of training rows.

        Args:
            X: Inputs, (n, d).
            y: Responses, (n,) or (n, K).
            weights: One per row, (n,).
            kept: Indices of the columns that enter the model.
            powers: Whether to transform skewed columns.
            spreads: Divisors to use in place of standard deviations, (d,); NaN where the standard deviation is used.
                Columns with such a divisor hold zeros and ones, which are never transformed.
        """
        column_moments = [_moments(column, weights) for column in X[:, kept].T]
        response_moments = [_moments(column, weights) for column in y.reshape(len(y), -1).T]
        center, spread = (np.array(part) for part in zip(*column_moments, strict=True))
        shift, unit = (np.array(part) for part in zip(*response_moments, strict=True))
        if spreads is not None:
            given = spreads[kept]
            spread = np.where(np.isnan(given), spread, given)
        training = X[:, kept][weights > 0]
        lower = training.min(axis=0)
        upper = training.max(axis=0)
        scaling = cls(kept, center, spread, shift, unit, lower=lower, upper=upper)
        return scaling._with_powers(X, weights) if powers else scaling

    def _with_powers(self, X: np.ndarray, weights: np.ndarray) -> Scaling:
        """Return this scaling with a transformation of each skewed column."""
        z = self.inputs(X)
        power = np.array([choose_power(column, weights) for column in z.T])
        if np.all(power == 1.0):
            return self
        moments = []
        for exponent, column in zip(power, transform(z, power).T, strict=True):
            # A column that is not transformed stays standardised as it is.
            moments.append((0.0, 1.0) if exponent == 1.0 else _moments(column, weights))
        center, spread = (np.array(part) for part in zip(*moments, strict=True))
        return replace(self, power=power, power_center=center, power_spread=spread)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        """Standardise inputs, (m, d) to (m, kept)."""
        standardised: np.ndarray = (X[:, self.kept] - self.center) / self.spread
        if self.power is None:
            return standardised
        return np.asarray((transform(standardised, self.power) - self.power_center) / self.power_spread)

    @property
    def transformed(self) -> np.ndarray:
        """Indices of the columns that are transformed."""
        return self.kept[[] if self.power is None else np.flatnonzero(self.power != 1.0)]

    def constants(self, X: np.ndarray) -> dict[int, float]:
        """Return the value of each column that does not vary in the training inputs X, by index.

        These columns do not enter the model.
        """
        return {int(at): float(X[0, at]) for at in np.setdiff1d(np.arange(X.shape[1]), self.kept)}

    def far(self, X: np.ndarray) -> np.ndarray:
        """Return which values are far outside the training range of their column, boolean (m, kept).

        Args:
            X: Inputs in the user's units, (m, d).
        """
        if self.lower is None or self.upper is None:
            return np.zeros((len(X), len(self.kept)), dtype=bool)
        values = X[:, self.kept]
        margin = _MARGIN * (self.upper - self.lower)
        outside: np.ndarray = (values < self.lower - margin) | (values > self.upper + margin)
        return outside

    def responses(self, y: np.ndarray) -> np.ndarray:
        """Standardise responses, (n,) or (n, K)."""
        shift = self.shift[0] if y.ndim == 1 else self.shift
        unit = self.unit[0] if y.ndim == 1 else self.unit
        standardised: np.ndarray = (y - shift) / unit
        return standardised

    def predictions(self, f: np.ndarray) -> np.ndarray:
        """Convert predictions of the model, (m, K), to the user's units."""
        predictions: np.ndarray = self.shift + self.unit * f
        return predictions

    def check(self, x: Any, X: np.ndarray) -> np.ndarray:
        """Check test inputs against the training inputs X; both are in the user's units.

        The columns of a data frame are matched by name, in any order.

        Raises:
            InputError: For another number of columns, other names, text, or numbers that are not finite. Names the
                columns and rows.

        Warns:
            TableWarning: If a column that was constant in training has another value at some point.
            SupportWarning: If a column is far outside its training range at some point.
        """
        validate.refuse_text(x)
        matched = match_columns("x", x, self.columns)
        if column_names(matched) is not None:  # mixed booleans and numbers, or nullable numbers
            matched = matched.to_numpy(dtype=np.float64, na_value=np.nan)
        rows = as_numbers("x", matched)
        d = X.shape[1]
        if rows.ndim != 2 or rows.shape[1] != d:
            hint = " For a single point give x[None]." if rows.shape == (d,) else ""
            raise InputError(
                f"x has shape {rows.shape}; the training inputs have {d} columns, so give (points, {d}).{hint}"
            )
        validate.refuse_missing(rows, self.columns)
        validate.warn_of_moved(rows, self.constants(X), self.columns)
        if self.lower is not None and self.upper is not None:
            validate.warn_of_far(rows, self.far(rows), self.kept, (self.lower, self.upper), self.columns, X)
        return rows


def _moments(column: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation under weights."""
    size = float(np.abs(column).max())
    # Squares of numbers of order one cannot overflow.
    scaled = column / size
    mean = float(np.average(scaled, weights=weights))
    return size * mean, size * float(np.sqrt(np.average((scaled - mean) ** 2, weights=weights)))
