"""A model that was fitted to standardised data, in the units of the user.

The network sees ``z = (x - center) / spread`` and learns ``t = (y - shift) / unit``. Skewed columns are transformed in
between (:mod:`vhat.models.yeo_johnson`) and standardised once more. The user asks at x and wants an
answer in the unit of y: ``f_user(x) = shift + unit f(z)``. As a function of the parameters, the objective is the same,

    1/n sum_i w_i |(f_user(x_i) - y_i) / unit|^2 / 2  +  lam/2 |theta|^2,

so gradients, curvature, decay and minimum are those of the standardised problem; only what belongs to predictions and
responses changes its unit.
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
"""How far beyond the training range, in widths of that range, a value is far outside. Fresh rows of the same population
seldom lie so far: one in 10,000 of a normal column of 30 training rows, one in 800 of an exponential column of 100."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How inputs and responses are standardised.

    Attributes:
        kept: The columns that the model sees, as indices.
        center: Their means.
        spread: Their standard deviations.
        power: The power by which each is then transformed, 1 for no change; None where no column is.
        power_center: The means after that.
        power_spread: The standard deviations after that.
        lower: The smallest value of each column that the model sees, in the user's units; None where it is not known.
        upper: The largest value of each.
        shift: The mean of each response, (K,).
        unit: The standard deviation of each response, (K,).
        columns: The names of all columns, or None.
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
        """Measure means and standard deviations over weighted rows and, with ``powers``, transform skewed columns.

        Args:
            X: Inputs, (n, d).
            y: Responses, (n,) or (n, K).
            weights: How much each row counts.
            kept: The columns that the model sees, as indices.
            powers: Whether skewed columns are transformed.
            spreads: What to divide columns by in place of their standard deviations, (d,), NaN for these. Such columns
                are 0 and 1, which are never transformed.
        """
        moments = [_moments(column, weights) for column in X[:, kept].T]
        responses = [_moments(column, weights) for column in y.reshape(len(y), -1).T]
        center, spread = (np.array(part) for part in zip(*moments, strict=True))
        shift, unit = (np.array(part) for part in zip(*responses, strict=True))
        given = np.full(len(kept), np.nan) if spreads is None else spreads[kept]
        seen = X[:, kept][weights > 0]
        lower = seen.min(axis=0)
        upper = seen.max(axis=0)
        found = cls(kept, center, np.where(np.isnan(given), spread, given), shift, unit, lower=lower, upper=upper)
        return found._with_powers(X, weights) if powers else found

    def _with_powers(self, X: np.ndarray, weights: np.ndarray) -> Scaling:
        """Return the same with the powers of skewed columns."""
        z = self.inputs(X)
        power = np.array([choose_power(column, weights) for column in z.T])
        if np.all(power == 1.0):
            return self
        moments = [
            (0.0, 1.0) if each == 1.0 else _moments(column, weights)
            for each, column in zip(power, transform(z, power).T, strict=True)
        ]
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
        """The columns that are transformed, as indices."""
        return self.kept[[] if self.power is None else np.flatnonzero(self.power != 1.0)]

    def constants(self, X: np.ndarray) -> dict[int, float]:
        """Columns that do not vary in the training inputs X, by number, and their value: the model leaves them out."""
        return {int(at): float(X[0, at]) for at in np.setdiff1d(np.arange(X.shape[1]), self.kept)}

    def far(self, X: np.ndarray) -> np.ndarray:
        """Return where a value is far outside the range that its column had in training, (m, kept).

        Args:
            X: Inputs in the user's units, (m, d).
        """
        if self.lower is None or self.upper is None:
            return np.zeros((len(X), len(self.kept)), dtype=bool)
        values = X[:, self.kept]
        margin = _MARGIN * (self.upper - self.lower)
        found: np.ndarray = (values < self.lower - margin) | (values > self.upper + margin)
        return found

    def responses(self, y: np.ndarray) -> np.ndarray:
        """Standardise responses, (n,) or (n, K)."""
        shift, unit = (self.shift[0], self.unit[0]) if y.ndim == 1 else (self.shift, self.unit)
        standardised: np.ndarray = (y - shift) / unit
        return standardised

    def predictions(self, f: np.ndarray) -> np.ndarray:
        """Bring predictions of the model, (m, K), to the units of the user."""
        found: np.ndarray = self.shift + self.unit * f
        return found

    def check(self, x: Any, X: np.ndarray) -> np.ndarray:
        """Check test inputs against the training inputs X; both are in the user's units.

        A data frame is matched by the names of its columns, in any order.

        Raises:
            InputError: For another number of columns, other names, text, or numbers that are not finite, naming the
                columns and rows.

        Warns:
            TableWarning: Of points at which a column differs that was constant in training.
            SupportWarning: Of points at which a column is far outside the range that it had in training.
        """
        validate.refuse_text(x)
        matched = match_columns("x", x, self.columns)
        if column_names(matched) is not None:  # yes and no beside numbers, and numbers that may be missing
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
            validate.warn_of_far(rows, self.far(rows), self.kept, (self.lower, self.upper), self.columns)
        return rows


def _moments(column: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation; taken of numbers of order one, so that no square overflows."""
    size = float(np.abs(column).max())
    scaled = column / size
    mean = float(np.average(scaled, weights=weights))
    return size * mean, size * float(np.sqrt(np.average((scaled - mean) ** 2, weights=weights)))
