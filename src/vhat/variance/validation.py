"""Validation rows, which training did not fit, and the noise level estimated from them.

An error ``r = f(x) - y`` at such a row has the variance ``sigma^2 (1 + V(x)/n)``: that of the response plus that of the
prediction. The noise level is therefore estimated by ``sigma^2 = mean of r^2 / (1 + V/n)``. It includes the bias of the
model at these rows. Rows that only decided when training stopped may be used, because they were not fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.checks import check_targets
from vhat.errors import InputError, NoiseError
from vhat.linalg.solvers import Prepared, Status, choose
from vhat.models.loaders import is_loader, read_pair
from vhat.models.problem import Problem
from vhat.variance.noise import Noise, held_out_noise
from vhat.variance.repeated_rows import refuse_training_rows
from vhat.variance.weighted_norm import gradient_blocks, measure

__all__ = ["Validation", "check_validation", "measure_held_out", "require_location", "rows_to_solve"]

_BUDGET = 1000.0
"""Largest cost of V at validation rows, in gradients of the loss: that of intervals for a few hundred points."""
_FEWEST_SOLVED = 100
"""Smallest number of validation rows at which V is computed, however expensive."""
_MOST_SOLVED = 400
"""Largest number of validation rows at which V is computed. V only determines the ratio of the noise to the total
error; all rows determine the error. If V/n varies by 0.1 among rows, the ratio has a standard error of 1% with 400
rows, and the level half of that."""
_ROUNDS = 3
"""Iterations for the levels of several outputs."""
_CONVERGED = 0.02
"""Relative change of a level in the last iteration above which the levels of several outputs are reported as too large:
they decrease from iteration to iteration."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Rows that training did not fit.

    Attributes:
        inputs: Checked inputs, in the user's units.
        targets: Their responses, (m, K).
        repeated: Number of rows that equal a training row in input and response.
    """

    inputs: Any
    targets: np.ndarray
    repeated: int = 0

    @property
    def rows(self) -> int:
        """Number of rows, m."""
        return len(self.targets)

    def errors(self, problem: Problem) -> np.ndarray:
        """Return ``f(x) - y`` of each row, (m, K)."""
        return problem.predict(self.inputs) - self.targets

    def relative_noise(self, problem: Problem) -> np.ndarray:
        """Return the noise of each row relative to the root mean square over the training rows, (m, K).

        A model with a variance head predicts it. Otherwise it is unknown and assumed to be one.
        """
        own = problem.own_noise(self.inputs)
        if own is None:
            return np.ones_like(self.targets)
        trained = problem.own_noise(problem.X)
        assert trained is not None
        relative: np.ndarray = own / np.sqrt(np.mean(trained**2, axis=0))
        return relative

    def sample(self, problem: Problem, most: int) -> tuple[Any, np.ndarray]:
        """Return the inputs of at most ``most`` rows, drawn with a fixed seed, and the indices of these rows."""
        if self.rows <= most:
            return self.inputs, np.arange(self.rows)
        index = np.sort(np.random.default_rng(0).choice(self.rows, size=most, replace=False))
        if problem.scaling is not None:
            return self.inputs[index], index
        return problem.autodiff.take(self.inputs, index), index


def check_validation(problem: Problem, X: Any, y: Any = None, *, name: str = "validation") -> Validation:
    """Return validation rows, after checking them and comparing them with the training rows.

    Args:
        problem: The training problem.
        X: Inputs, shaped like the training inputs. Without ``y``: a pair ``(X, y)`` or, for a torch module, a
            DataLoader or Dataset.
        y: Their responses.
        name: Name of the rows in messages.

    Raises:
        InputError: For rows that cannot be used, or that are training rows.

    Warns:
        CalibrationWarning: If a few of them equal training rows, as in a table of rounded numbers.
    """
    require_location(problem)
    X, y = _pair(problem, X, y, name)
    try:
        inputs = problem.inputs(X)
        count = problem.count(inputs)
        targets = check_targets(y, (count,) if problem.squeeze else (count, problem.outputs))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    repeated = refuse_training_rows(problem, inputs, targets, kind=name, remedy="Give rows that training did not fit.")
    return Validation(inputs, targets, repeated)


def require_location(problem: Problem) -> None:
    """Refuse validation rows if the loss is not a function of the error ``f - y``.

    Raises:
        InputError: For such a loss.
    """
    if not problem.loss_derivatives.location:
        raise InputError(
            "validation rows are compared with the predictions, and this loss is not a function of f - y, so that "
            "there is no error to measure. Leave them out, and give interval(..., noise=)."
        )


def _pair(problem: Problem, X: Any, y: Any, name: str) -> tuple[Any, Any]:
    """Return inputs and responses; without y, from a pair or a DataLoader."""
    if y is not None and not is_loader(X):
        return X, y
    if is_loader(X):
        return read_pair(problem, X, y, call=f"{name}=(X, y)")
    if isinstance(X, tuple | list) and len(X) == 2:
        return X[0], X[1]
    if isinstance(X, tuple | list) and len(X) == 3 and _is_column(X[2], len_of=X[1]):
        raise InputError(
            f"{name} has three parts, of which the third looks like weights: {name} rows take no weights. Give the "
            "pair (X, y), without rows that should not count. Rows of unequal noise need a model that tells its size "
            "in each of them: a torch module with a variance head, loss='gaussian_nll'."
        )
    raise InputError(f"{name} has no responses. Give the pair (X, y), or, for a torch module, a DataLoader.")


def _is_column(part: Any, *, len_of: Any) -> bool:
    """Whether a part holds one number a row of another."""
    try:
        shape = np.shape(part)
        rows = len(len_of)
    except (TypeError, ValueError):
        return False
    return shape in ((rows,), (rows, 1))


def measure_held_out(
    problem: Problem, prepared: Prepared, validation: Validation, shape: np.ndarray, *, equal: bool = False
) -> Noise:
    """Return the noise estimated from the errors at validation rows.

    With many rows, V is computed at a sample of them. All rows determine the size of the errors.

    Args:
        problem: The training problem.
        prepared: A solver for its curvature.
        validation: The rows.
        shape: Relative noise of each training response, (n, K). Validation rows have the noise that the model predicts,
            if it does; otherwise they are assumed to have the root mean square of the training rows.
        equal: Whether the user said that all rows have equal noise, whatever the model predicts.

    Raises:
        NoiseError: If the model predicts the rows without error, or V could not be computed at any of them.
    """
    relative = np.ones_like(validation.targets) if equal else validation.relative_noise(problem)
    errors = validation.errors(problem) / relative
    squares = np.mean(errors**2, axis=0)
    if not np.all(squares > 0):
        raise NoiseError(
            "the model predicts every validation response without error, so that they do not determine the noise. Give "
            "noise=."
        )
    inputs, index = validation.sample(problem, rows_to_solve(problem))
    level = np.sqrt(squares)
    previous = level
    # V of one output depends on the noise of the others, so that several outputs need a fixed-point iteration.
    for _ in range(1 if problem.outputs == 1 else _ROUNDS):
        variance = _variance(problem, prepared, inputs, shape * level, len(index))
        inflation = 1.0 + variance / (level * relative[index]) ** 2  # 1 + V/n
        known = np.isfinite(inflation).all(axis=1)
        if not known.any():
            raise NoiseError("V could not be computed at any validation row. Give noise=, or another solver.")
        part = errors[index][known] ** 2
        previous = level
        level = np.sqrt(squares * np.sum(part / inflation[known], axis=0) / np.sum(part, axis=0))
    # V at a sample gives the ratio of the noise to the total error; all rows give the total error.
    predicted = not equal and problem.own_noise(problem.X) is not None
    found = held_out_noise(level, shape, validation.rows, predicted=predicted)
    if problem.outputs > 1 and np.any(np.abs(level / previous - 1.0) > _CONVERGED):
        # The errors of an output with little noise are mostly the effect of the other outputs' noise on its prediction.
        return replace(found, source=f"{found.source}, TOO LARGE for outputs with less noise than others (give noise=)")
    return found


def _variance(problem: Problem, prepared: Prepared, inputs: Any, sigma: np.ndarray, rows: int) -> np.ndarray:
    """Return the variance of each prediction under noise sigma, (rows, K); NaN if its solve failed."""
    found = measure(problem, prepared, gradient_blocks(problem, inputs), sigma)
    variance = np.where(found.status == Status.CONVERGED, found.variance, np.nan)
    return variance.reshape(rows, problem.outputs) / problem.n


def rows_to_solve(problem: Problem) -> int:
    """Return the number of validation rows at which V is computed, within the budget."""
    each = problem.outputs * max(1.0, choose(problem).solver.cost(problem, "ggn").each.gradients)
    return int(np.clip(_BUDGET / each, _FEWEST_SOLVED, _MOST_SOLVED))
