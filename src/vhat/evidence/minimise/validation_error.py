"""Whether a minimum predicts rows that training did not fit worse than the model that it replaces."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from vhat.errors import EarlyStoppingWarning, PolishError, outside
from vhat.models.problem import Problem
from vhat.variance.validation import Validation

__all__ = ["CERTAIN", "WORSE", "Comparison", "ValidationWatch", "compare_errors", "told_size", "warn_of_worse"]

WORSE = 1.01
"""Factor on the root mean square of validation errors from which a model is called worse."""
CERTAIN = 2.0
"""Standard errors of the mean rise from which chance is no explanation, in the audit and in warnings."""
_CLEARLY_WORSE = 1.05
"""The same on the way to a minimum, where the error may rise for a while and fall again."""
_LEVEL = 0.99
"""Level of Student's t that the mean rise must exceed, in its own standard errors, to be clear."""
_PATIENCE = 5
"""Iterates in a row at which the rise must be clear before the descent is given up."""
_FEWEST_WATCHED = 1000
"""Validation rows that are watched, where there are more of them than training rows."""


@dataclass(frozen=True)
class Comparison:
    """Squared errors of two models at the same rows, each output in units of its own error before.

    Attributes:
        ratio: Root mean square after over that before.
        rise: Mean difference of the squared errors, row by row.
        standard_error: Of that mean.
        rows: How many rows there are.
    """

    ratio: float
    rise: float
    standard_error: float
    rows: int

    @property
    def in_standard_errors(self) -> float:
        """The rise over its standard error; 0 where one row alone has none."""
        if self.rows < 2 or self.rise <= 0:
            return 0.0
        return self.rise / self.standard_error if self.standard_error > 0 else np.inf


def compare_errors(before: np.ndarray, after: np.ndarray) -> Comparison:
    """Compare errors (m, K) of two models at the same rows."""
    unit = np.sqrt(np.mean(before**2, axis=0))
    unit = np.where(unit > 0, unit, 1.0)
    rise = np.mean((after / unit) ** 2 - (before / unit) ** 2, axis=1)
    size = float(np.mean((before / unit) ** 2))
    ratio = float(np.sqrt(np.mean((after / unit) ** 2) / size)) if size > 0 else np.inf
    return Comparison(ratio, float(np.mean(rise)), _standard_error(rise), len(rise))


def _standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean; 0 for one value, which has none."""
    return float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def told_size(errors: np.ndarray) -> str:
    """Return the root mean square of errors (m, K) in words, one number an output."""
    size = np.sqrt(np.mean(errors**2, axis=0))
    return f"{float(size[0]):.3g}" if size.size == 1 else np.array2string(size, precision=3)


class ValidationWatch:
    """Refuses a descent along which the validation error rises clearly above that of the model it began from.

    A look costs one prediction of the validation rows. The error may rise and fall again on the way down: only a rise
    that is clear at several iterates in a row, or at the end, is a reason to stop.
    """

    def __init__(self, start: Problem, rows: Validation) -> None:
        self._inputs, index = rows.sample(start, max(start.n, _FEWEST_WATCHED))
        self._targets = rows.targets[index]
        self._before = self._errors(start)
        self._clear = 0
        self._steps = 0

    def look(self, problem: Problem) -> None:
        """Look at one iterate of the descent.

        Raises:
            PolishError: When the error has been clearly above that of the start at several iterates in a row.
        """
        self._steps += 1
        errors = self._errors(problem)
        found = compare_errors(self._before, errors)
        self._clear = self._clear + 1 if _clearly_worse(found, _CLEARLY_WORSE) else 0
        if self._clear >= _PATIENCE:
            raise self._refusal(f"polish has stopped after {self._steps} steps", "on the way to the minimum", errors)

    def judge(self, problem: Problem) -> None:
        """Judge the minimum that the descent has reached.

        Raises:
            PolishError: When its error is clearly above that of the start.
        """
        errors = self._errors(problem)
        if _clearly_worse(compare_errors(self._before, errors), WORSE):
            raise self._refusal("polish would make this model worse", "at the minimum", errors)

    def _errors(self, problem: Problem) -> np.ndarray:
        predicted = np.asarray(problem.predict(self._inputs))
        return (predicted - self._targets.reshape(predicted.shape)).reshape(-1, problem.outputs)

    def _refusal(self, what: str, where: str, errors: np.ndarray) -> PolishError:
        found = compare_errors(self._before, errors)
        return PolishError(
            f"{what}: the root mean square of {found.rows:,} validation errors is {told_size(self._before)} for this "
            f"model and {told_size(errors)} {where}, a rise of {found.in_standard_errors:.1f} standard errors. "
            "Training was stopped before that minimum for a reason, and between the two there is no minimum that an "
            "interval could rest on",
            "The model is unchanged: fitted.linearised() takes it as it is, with these validation rows. "
            "fitted.polish(beyond_early_stopping=True) goes on to the minimum all the same.",
        )


def _clearly_worse(found: Comparison, factor: float) -> bool:
    if found.rows < 2 or not found.ratio > factor:  # false for NaN too
        return False
    return found.in_standard_errors > float(stdtrit(found.rows - 1, _LEVEL))


def warn_of_worse(before: Problem, after: Problem, rows: Validation) -> None:
    """Warn where the validation error of any output has risen.

    Args:
        before: The model that was given.
        after: The minimum that takes its place.
        rows: Rows that training did not fit.

    Warns:
        EarlyStoppingWarning: With both errors, naming the call that takes the model as it is.
    """
    errors = [rows.errors(problem) for problem in (before, after)]
    sizes = [np.sqrt(np.mean(each**2, axis=0)) for each in errors]
    if np.all(sizes[1] <= WORSE * sizes[0]):
        return
    found = compare_errors(*errors)
    chance = "" if found.in_standard_errors > CERTAIN else ", which chance may explain"
    warnings.warn(
        f"polish makes this model worse: the root mean square of {rows.rows:,} validation errors is "
        f"{told_size(errors[0])} before and {told_size(errors[1])} at the minimum that it has reached{chance}. "
        "Training was stopped before that minimum for a reason. The model that was polished is unchanged: keep it, and "
        "take it as it is by its linearised(), which uses these validation rows.",
        EarlyStoppingWarning,
        stacklevel=outside(),
    )
