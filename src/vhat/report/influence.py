"""The training responses that each prediction leans on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.evidence.leave_one_out import LeaveOneOut
from vhat.models.problem import Problem
from vhat.report.numbers import plain

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["LEANED", "influence"]

LEANED = 8
"""Training rows that are named for each prediction."""
_AT_ONCE = 2**23
"""Sensitivities that are held at a time."""


def influence(
    fitted: FittedModel, points: Any, rows: np.ndarray, left_out: LeaveOneOut | None
) -> list[dict[str, list[Any]]]:
    """Return, for each output, the training rows that each prediction leans on most.

    Args:
        fitted: The model.
        points: From rows of a table to inputs of the model.
        rows: The points, (m, columns).
        left_out: The training rows left out in turn, or None.

    Returns:
        For each output ``row``, ``sensitivity``, ``without`` (by how much the prediction moves without that row, or
        None where that is not known to first order) and ``share`` (of the sum of squared sensitivities, in all named
        rows together); one entry a point.
    """
    problem = fitted.problem
    n, K = problem.n, problem.outputs
    step = max(1, _AT_ONCE // (n * K * K))
    found: list[dict[str, list[Any]]] = [{"row": [], "sensitivity": [], "without": [], "share": []} for _ in range(K)]
    residual = None if left_out is None or not _is_square(problem) else left_out.residual
    for start in range(0, len(rows), step):
        part = fitted.sensitivity(points(rows[start : start + step])).reshape(-1, K, n, K)
        moved = None if residual is None else -np.einsum("mknj,nj->mkn", part, residual.reshape(n, K))
        for k in range(K):
            _name(found[k], part[:, k, :, k], None if moved is None else moved[:, k])
    return found


def _name(found: dict[str, list[Any]], sensitivity: np.ndarray, moved: np.ndarray | None) -> None:
    """Add the rows that each point leans on most, the most important first."""
    most = np.argsort(-np.abs(sensitivity), axis=1, kind="stable")[:, :LEANED]
    squares = sensitivity**2
    share = np.take_along_axis(squares, most, axis=1).sum(axis=1) / squares.sum(axis=1)
    found["row"] += most.tolist()
    found["sensitivity"] += plain(np.take_along_axis(sensitivity, most, axis=1))
    found["share"] += plain(share)
    found["without"] += [None] * len(most) if moved is None else plain(np.take_along_axis(moved, most, axis=1))


def _is_square(problem: Problem) -> bool:
    """Whether the loss is the square, weighted or not: then a row's absence is its residual left out, no more."""
    loss = problem.loss_derivatives
    if not loss.location or loss.curvature.ndim != 2:
        return False
    linear = loss.curvature * (problem.fitted_values - problem.targets)
    return bool(np.allclose(loss.first, linear, rtol=1e-8, atol=1e-10 * np.abs(loss.first).max()))
