"""The audit's line on early stopping: would the minimum of the objective predict validation rows worse?

To first order ``d = A^-1 grad`` is the step to the minimum, at which the validation errors are ``e - g(x)'d``. Where
their root mean square rises, stopping early was right: the model predicts better than the minimum that polish would
reach. The cost is one solve, and one gradient per validation row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.evidence.audit.result import Line
from vhat.evidence.minimise.stationarity import evaluate
from vhat.evidence.minimise.validation_error import WORSE, compare_errors, size_in_words
from vhat.linalg.solvers import Status
from vhat.models.problem import Curvature, Problem
from vhat.variance.validation import Validation
from vhat.variance.weighted_norm import gradient_blocks

if TYPE_CHECKING:
    from vhat.variance.workspace import Workspace

__all__ = ["early_stopping_line", "refit_comparison_line"]

_MOST_ROWS = 1000
"""Largest number of validation rows whose gradients are computed."""
_NAME = "early stopping"
NAN = float("nan")


def early_stopping_line(work: Workspace, rows: Validation, curvature: Curvature, given: Problem | None = None) -> Line:
    """Return the line: validation errors at the minimum over those of the model.

    Args:
        work: The fit.
        rows: The validation rows.
        curvature: The curvature that the audit uses.
        given: The model before it was polished, or None: it is then compared as it is.
    """
    problem = work.problem
    if given is not None:
        before, after = rows.errors(given), rows.errors(problem)
        return _judge(before, after, "as polish has found it")
    inputs, index = rows.sample(problem, _MOST_ROWS)
    before = (problem.predict(inputs) - rows.targets[index]).reshape(-1, problem.outputs)
    step = work.own_solver(curvature).solve(evaluate(problem).gradient[None, :])
    if np.any(step.status != Status.CONVERGED):
        remedy = (
            "Not tested: the step to the minimum could not be computed. Raise weight_decay, or max_steps of vhat.CG."
        )
        return Line(_NAME, NAN, NAN, "undecided", remedy, "validation error at the minimum over that of the model")
    moves = [problem.numpy(block @ step.h[0]) for block in gradient_blocks(problem, inputs)]
    return _judge(before, before - np.concatenate(moves).reshape(before.shape), "to first order")


def refit_comparison_line(work: Workspace, rows: Validation) -> Line:
    """Return the line of a linearised model, which keeps its predictions: validation error over training residual."""
    problem = work.problem
    error = float(np.sqrt(np.mean((rows.errors(problem) / _unit(problem)) ** 2)))
    residual = float(np.sqrt(np.mean(((problem.fitted_values - problem.targets) / _unit(problem)) ** 2)))
    ratio = error / residual if residual > 0 else np.inf
    remedy = "The model keeps its predictions, stopped early or not; the ridge penalty stands for when it stopped."
    return Line(_NAME, ratio, NAN, "by construction", remedy, "validation error over training residual")


def _unit(problem: Problem) -> np.ndarray:
    """Return the standard deviation of each output's responses, (K,), so that all outputs count alike."""
    size = np.std(problem.targets, axis=0)
    return np.where(size > 0, size, 1.0)


def _judge(before: np.ndarray, after: np.ndarray, how: str) -> Line:
    """Return the line that compares errors before and at the minimum, (m, K)."""
    found = compare_errors(before, after)
    rise = found.rise()
    meaning = f"validation error at the minimum over that of the model, {how}"
    sizes = f"{size_in_words(before)} and {size_in_words(after)}"
    if rise == "none":
        remedy = f"The minimum predicts validation rows as well (root mean square {sizes}): polish() loses nothing."
        return Line(_NAME, found.ratio, WORSE, "holds", remedy, meaning)
    told = f"The root mean square of validation errors is {sizes} before and at the minimum"
    if rise == "chance":
        return Line(_NAME, found.ratio, WORSE, "undecided", f"{told}, which chance may explain.", meaning)
    remedy = (
        f"{told}: when training stopped is part of this model, and polish() makes it worse. "
        "fitted.linearised() takes it as it is, with these validation rows."
    )
    return Line(_NAME, found.ratio, WORSE, "fails", remedy, meaning)
