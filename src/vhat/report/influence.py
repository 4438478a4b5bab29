"""The training rows with the most influence on each prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.evidence.leave_one_out import LeaveOneOut
from vhat.models.problem import Problem
from vhat.report.numbers import plain

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["NAMED_ROWS", "influence"]

NAMED_ROWS = 8
"""Number of training rows that are named for each prediction."""
_MAX_NUMBERS = 2**23
"""Number of sensitivities that are in memory at a time: 64 MB."""


def influence(
    fitted: FittedModel, points: Any, rows: np.ndarray, left_out: LeaveOneOut | None
) -> list[dict[str, list[Any]]]:
    """Return the training rows with the largest sensitivities for each output and prediction.

    Args:
        fitted: The model.
        points: Function from rows of a table to inputs of the model.
        rows: The points, (m, columns).
        left_out: The training rows left out in turn, or None.

    Returns:
        For each output a dict with one entry per point: ``row``, the indices of the training rows; ``sensitivity``,
        their sensitivities df(x)/dy_i; ``without``, the change of the prediction without each row, or None if it is
        not known to first order; ``share``, the share of these rows in the sum of squared sensitivities.
    """
    problem = fitted.problem
    n = problem.n
    K = problem.outputs
    step = max(1, _MAX_NUMBERS // (n * K * K))
    result: list[dict[str, list[Any]]] = [{"row": [], "sensitivity": [], "without": [], "share": []} for _ in range(K)]
    residual = None
    if left_out is not None and _is_squared_error(problem):
        residual = left_out.residual
    for start in range(0, len(rows), step):
        sensitivity = fitted.sensitivity(points(rows[start : start + step])).reshape(-1, K, n, K)
        change = None
        if residual is not None:
            # Without row i, the prediction changes by -sum_j df_k(x)/dy_ij r_ij, with the left-out residual r.
            change = -np.einsum("mknj,nj->mkn", sensitivity, residual.reshape(n, K))
        for k in range(K):
            _add_points(result[k], sensitivity[:, k, :, k], None if change is None else change[:, k])
    return result


def _add_points(result: dict[str, list[Any]], sensitivity: np.ndarray, change: np.ndarray | None) -> None:
    """Add the most influential rows of some points to a result, the most influential first.

    Args:
        result: The result of one output.
        sensitivity: Sensitivities of the points to the responses, (points, n).
        change: Changes of the predictions without each training row, (points, n), or None.
    """
    largest = np.argsort(-np.abs(sensitivity), axis=1, kind="stable")[:, :NAMED_ROWS]
    squares = sensitivity**2
    share = np.take_along_axis(squares, largest, axis=1).sum(axis=1) / squares.sum(axis=1)
    result["row"] += largest.tolist()
    result["sensitivity"] += plain(np.take_along_axis(sensitivity, largest, axis=1))
    result["share"] += plain(share)
    if change is None:
        result["without"] += [None] * len(largest)
    else:
        result["without"] += plain(np.take_along_axis(change, largest, axis=1))


def _is_squared_error(problem: Problem) -> bool:
    """Return whether the loss is the squared error, weighted or not.

    Only then does leaving a row out change the prediction by its sensitivity times its left-out residual.
    """
    loss = problem.loss_derivatives
    if not loss.location or loss.curvature.ndim != 2:
        return False
    linear = loss.curvature * (problem.fitted_values - problem.targets)
    return bool(np.allclose(loss.first, linear, rtol=1e-8, atol=1e-10 * np.abs(loss.first).max()))
