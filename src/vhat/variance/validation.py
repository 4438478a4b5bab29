"""Rows that training did not fit, and the noise level that they tell.

An error ``r = f(x) - y`` at such a row has the variance ``sigma^2 (1 + V(x)/n)``: that of the response and that of the
prediction. The noise level is therefore read off as ``sigma^2 = mean of r^2 / (1 + V/n)``. It includes the bias of the
model at these rows. Rows that only decided when training stopped may be used: they were not fitted.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.checks import check_targets
from vhat.errors import CalibrationWarning, InputError, NoiseError, name_rows, outside
from vhat.linalg.solvers import Prepared, Status, choose
from vhat.models.loaders import is_loader, read_pair
from vhat.models.problem import Problem
from vhat.variance.noise import Noise, held_out_noise
from vhat.variance.repeated_rows import repeated_rows
from vhat.variance.weighted_norm import gradient_blocks, measure

__all__ = ["Validation", "check_validation", "measure_held_out", "require_location", "rows_to_solve"]

_BUDGET = 1000.0
"""Cost of V at validation rows, in gradients of the loss: no more than the intervals of some hundred points take."""
_FEWEST_SOLVED, _MOST_SOLVED = 100, 400
"""Validation rows at which V is computed: they tell the ratio of the noise to the whole error, not the error itself.
Where V/n varies by 0.1 among rows, that ratio has a standard error of 1% after 400 rows, the level of half that."""

_SETTLED = 0.02
"""Relative change of a level in the last round above which the levels of several outputs are said to be too large: they
fall from round to round."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Rows that training did not fit.

    Attributes:
        inputs: Checked inputs, in the user's units.
        targets: Their responses, (m, K).
        repeated: How many of them are training rows too, input and response alike.
    """

    inputs: Any
    targets: np.ndarray
    repeated: int = 0

    @property
    def rows(self) -> int:
        """How many rows there are, m."""
        return len(self.targets)

    def errors(self, problem: Problem) -> np.ndarray:
        """Return ``f(x) - y`` of each row, (m, K)."""
        return problem.predict(self.inputs) - self.targets

    def relative_noise(self, problem: Problem) -> np.ndarray:
        """Return the noise of each row relative to that of an average training row, (m, K).

        A model with a variance head predicts it; otherwise it is not known, and taken to be one.
        """
        own = problem.own_noise(self.inputs)
        if own is None:
            return np.ones_like(self.targets)
        trained = problem.own_noise(problem.X)
        assert trained is not None
        relative: np.ndarray = own / np.sqrt(np.mean(trained**2, axis=0))
        return relative

    def sample(self, problem: Problem, most: int) -> tuple[Any, np.ndarray]:
        """Return the inputs of at most so many rows, drawn with a fixed seed, and the numbers of these rows."""
        if self.rows <= most:
            return self.inputs, np.arange(self.rows)
        index = np.sort(np.random.default_rng(0).choice(self.rows, size=most, replace=False))
        if problem.scaling is not None:
            return self.inputs[index], index
        return problem.autodiff.take(self.inputs, index), index


def check_validation(problem: Problem, X: Any, y: Any = None, *, name: str = "validation") -> Validation:
    """Check validation rows; those that are training rows too are noticed.

    Args:
        problem: The training problem.
        X: Inputs, shaped like the training inputs; or, with no ``y``, a pair ``(X, y)`` or, for a torch module, a
            DataLoader or Dataset.
        y: Their responses.
        name: What messages call them.

    Raises:
        InputError: For rows that cannot be used, or that are all training rows.

    Warns:
        CalibrationWarning: Of some that are training rows.
    """
    require_location(problem)
    X, y = _pair(problem, X, y, name)
    try:
        inputs = problem.inputs(X)
        count = problem.count(inputs)
        targets = check_targets(y, (count,) if problem.squeeze else (count, problem.outputs))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    same = repeated_rows(problem, inputs, targets)
    if same and len(same) == count:
        raise InputError(
            f"{name}: every row is also a training row, input and response alike: its error says nothing of the noise. "
            "Give rows that training did not fit."
        )
    if same:
        warnings.warn(
            f"{len(same)} of {count} validation rows are also training rows, input and response alike "
            f"({name_rows(same)}). If training fitted them, leave them out: their errors are too small.",
            CalibrationWarning,
            stacklevel=outside(),
        )
    return Validation(inputs, targets, len(same))


def require_location(problem: Problem) -> None:
    """Refuse validation rows where the loss does not measure a distance from the response."""
    if not problem.loss_derivatives.location:
        raise InputError(
            "validation rows are compared with the predictions, and this loss is not a function of f - y, so that "
            "there is no error to measure. Leave them out, and give interval(..., noise=)."
        )


def _pair(problem: Problem, X: Any, y: Any, name: str) -> tuple[Any, Any]:
    """Return inputs and responses, taken out of a pair or read from a DataLoader where no responses were given."""
    if y is not None and not is_loader(X):
        return X, y
    if is_loader(X):
        return read_pair(problem, X, y, call=f"{name}=(X, y)")
    if isinstance(X, tuple | list) and len(X) == 2:
        return X[0], X[1]
    raise InputError(f"{name} has no responses. Give the pair (X, y), or, for a torch module, a DataLoader.")


def measure_held_out(problem: Problem, prepared: Prepared, validation: Validation, shape: np.ndarray) -> Noise:
    """Return the noise level that the errors at validation rows tell.

    Of many rows, V is computed at a sample; all of them tell the size of the errors.

    Args:
        problem: The training problem.
        prepared: A solver for its curvature.
        validation: The rows.
        shape: Relative noise of each training response, (n, K). That of validation rows is known where the model
            predicts it; otherwise they are taken to have the root mean square of the training rows.

    Raises:
        NoiseError: Where the model predicts the rows without error, or V could not be computed at any of them.
    """
    relative = validation.relative_noise(problem)
    errors = validation.errors(problem) / relative
    squares = np.mean(errors**2, axis=0)
    if not np.all(squares > 0):
        raise NoiseError(
            "the model predicts every validation response without error, which tells nothing of the noise. Give noise=."
        )
    inputs, index = validation.sample(problem, rows_to_solve(problem))
    level = np.sqrt(squares)
    before = level
    for _ in range(1 if problem.outputs == 1 else 3):
        # Several outputs: V of one output holds the noise of the others, so that their levels are found in turn.
        variance = _variance(problem, prepared, inputs, shape * level, len(index))
        spread = 1.0 + variance / (level * relative[index]) ** 2
        known = np.isfinite(spread).all(axis=1)
        if not known.any():
            raise NoiseError("V could not be computed at any validation row. Give noise=, or another solver.")
        part = errors[index][known] ** 2
        before = level
        level = np.sqrt(squares * np.sum(part / spread[known], axis=0) / np.sum(part, axis=0))
    predicted = problem.own_noise(problem.X) is not None
    found = held_out_noise(level, shape, validation.rows, predicted=predicted)
    if problem.outputs > 1 and np.any(np.abs(level / before - 1.0) > _SETTLED):
        # The errors of a quiet output are mostly what the noise of the others does to its predictions.
        return replace(found, source=f"{found.source}, TOO LARGE for outputs with less noise than others (give noise=)")
    return found


def _variance(problem: Problem, prepared: Prepared, inputs: Any, sigma: np.ndarray, rows: int) -> np.ndarray:
    """Return the variance of each prediction under noise sigma, (rows, K); NaN where its solve failed."""
    found = measure(problem, prepared, gradient_blocks(problem, inputs), sigma)
    variance = np.where(found.status == Status.CONVERGED, found.variance, np.nan)
    return variance.reshape(rows, problem.outputs) / problem.n


def rows_to_solve(problem: Problem) -> int:
    """Return at how many validation rows V is computed, by what one costs."""
    each = problem.outputs * max(1.0, choose(problem).solver.cost(problem, "ggn").each.gradients)
    return int(np.clip(_BUDGET / each, _FEWEST_SOLVED, _MOST_SOLVED))
