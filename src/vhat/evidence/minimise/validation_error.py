"""Whether a minimum predicts rows that training did not fit worse than the model that it replaces.

One rule, :meth:`Comparison.rise`, serves the audit, the descent of polish, its end, and its warning.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from vhat.errors import EarlyStoppingWarning, PolishError, outside
from vhat.models.problem import Problem
from vhat.variance.validation import Validation

__all__ = ["WORSE", "Comparison", "Rise", "ValidationWatch", "compare_errors", "size_in_words", "warn_of_rise"]

Rise = Literal["none", "chance", "clear"]
"""Whether the validation error rises: not at all, by no more than chance explains, or clearly."""

WORSE = 1.01
"""Ratio of root mean square validation errors above which the error counts as risen."""
_WORSE_ON_THE_WAY = 1.05
"""The same on the way to a minimum, where the error may rise for a while and fall again."""
_LEVEL = 0.99
"""Level of the one-sided t test of the mean rise of the squared errors, row by row, above which it is clear."""
_PATIENCE = 5
"""Iterates in a row at which the rise must be clear before the descent is given up."""
_FEWEST_WATCHED = 1000
"""Validation rows that are watched, where there are more of them than training rows."""


@dataclass(frozen=True)
class Comparison:
    """Squared errors of two models at the same rows, each output in units of its own error before.

    Attributes:
        ratio: Root mean square after over that before.
        mean_rise: Mean difference of the squared errors, row by row.
        standard_error: Standard error of that mean.
        rows: Number of rows.
    """

    ratio: float
    mean_rise: float
    standard_error: float
    rows: int

    @property
    def in_standard_errors(self) -> float:
        """The mean rise over its standard error; 0 where one row alone has none."""
        if self.rows < 2 or self.mean_rise <= 0:
            return 0.0
        return self.mean_rise / self.standard_error if self.standard_error > 0 else np.inf

    def rise(self, factor: float = WORSE) -> Rise:
        """Judge whether the second model predicts worse than the first.

        The error has risen where the ratio exceeds ``factor``. The rise is clear where a paired t test of the squared
        errors rejects chance as well. Errors that are NaN have risen, but not clearly.
        """
        if self.ratio <= factor:
            return "none"
        if self.rows < 2:
            return "chance"
        critical = float(stdtrit(self.rows - 1, _LEVEL))
        return "clear" if self.in_standard_errors > critical else "chance"


def compare_errors(before: np.ndarray, after: np.ndarray) -> Comparison:
    """Compare errors (m, K) of two models at the same rows."""
    unit = np.sqrt(np.mean(before**2, axis=0))
    unit = np.where(unit > 0, unit, 1.0)
    squares_before = (before / unit) ** 2
    squares_after = (after / unit) ** 2
    differences = np.mean(squares_after - squares_before, axis=1)
    size = float(np.mean(squares_before))
    ratio = float(np.sqrt(np.mean(squares_after) / size)) if size > 0 else np.inf
    return Comparison(ratio, float(np.mean(differences)), _standard_error(differences), len(differences))


def _standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean; 0 for one value, which has none."""
    return float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def size_in_words(errors: np.ndarray) -> str:
    """Return the root mean square of errors (m, K) in words, one number an output."""
    size = np.sqrt(np.mean(errors**2, axis=0))
    return f"{float(size[0]):.3g}" if size.size == 1 else np.array2string(size, precision=3)


class ValidationWatch:
    """Refuses a descent along which the validation error rises clearly above that of the model it began from.

    Each iterate costs one prediction of the validation rows. The error may rise and fall again on the way down: only a
    rise that is clear at several iterates in a row, or at the end, is a reason to stop.
    """

    def __init__(self, start: Problem, rows: Validation) -> None:
        self._inputs, index = rows.sample(start, max(start.n, _FEWEST_WATCHED))
        self._targets = rows.targets[index]
        self._before = self._errors(start)
        self._clear = 0
        self._steps = 0

    def observe(self, problem: Problem) -> None:
        """Compare one iterate of the descent with the start.

        Raises:
            PolishError: When the error has been clearly above that of the start at several iterates in a row.
        """
        self._steps += 1
        errors = self._errors(problem)
        rise = compare_errors(self._before, errors).rise(_WORSE_ON_THE_WAY)
        self._clear = self._clear + 1 if rise == "clear" else 0
        if self._clear >= _PATIENCE:
            raise self._refusal(f"polish has stopped after {self._steps} steps", "on the way to the minimum", errors)

    def judge(self, problem: Problem, record: Any) -> None:
        """Compare the minimum that the descent has reached with the start.

        Args:
            problem: The problem at the minimum.
            record: The minimum, for the ``record`` of the error.

        Raises:
            PolishError: When its error is clearly above that of the start.
        """
        errors = self._errors(problem)
        if compare_errors(self._before, errors).rise() == "clear":
            raise self._refusal("polish would make this model worse", "at the minimum", errors, record)

    def _errors(self, problem: Problem) -> np.ndarray:
        predicted = np.asarray(problem.predict(self._inputs))
        return (predicted - self._targets.reshape(predicted.shape)).reshape(-1, problem.outputs)

    def _refusal(self, what: str, where: str, errors: np.ndarray, record: Any = None) -> PolishError:
        found = compare_errors(self._before, errors)
        rise = f"a rise of {found.in_standard_errors:.1f} standard errors"
        if record is None:
            onward = "fitted.polish(beyond_early_stopping=True) goes on to the minimum all the same."
        else:
            onward = "To take the minimum all the same: except vhat.PolishError as refusal: refusal.record."
        return PolishError(
            f"{what}: the root mean square of {found.rows:,} validation errors is {size_in_words(self._before)} for "
            f"this model and {size_in_words(errors)} {where}, {rise}. Training was stopped before that minimum for a "
            "reason, and between the two there is no minimum that an interval could rest on",
            f"The model is unchanged: fitted.linearised() takes it as it is, with these validation rows. {onward}",
            record,
        )


def warn_of_rise(before: Problem, after: Problem, rows: Validation) -> None:
    """Warn where the validation error has risen.

    Args:
        before: The model that was given.
        after: The minimum that takes its place.
        rows: Rows that training did not fit.

    Warns:
        EarlyStoppingWarning: With both errors, naming the call that takes the model as it is.
    """
    errors_before = rows.errors(before)
    errors_after = rows.errors(after)
    rise = compare_errors(errors_before, errors_after).rise()
    if rise == "none":
        return
    chance = ", which chance may explain" if rise == "chance" else ""
    warnings.warn(
        f"polish makes this model worse: the root mean square of {rows.rows:,} validation errors is "
        f"{size_in_words(errors_before)} before and {size_in_words(errors_after)} at the minimum that it has "
        f"reached{chance}. Training was stopped before that minimum for a reason. The model that was polished is "
        "unchanged: keep it, and take it as it is by its linearised(), which uses these validation rows.",
        EarlyStoppingWarning,
        stacklevel=outside(),
    )
