"""Residuals at rows that training did not fit, in units of their predicted standard deviation.

``z = (y - f(x)) / sqrt(sigma^2 + sigma^2 V(x) / n)`` at each validation row. The errors of two rows have the noise of
the training responses in common. Redraws of it pass through the sensitivities of this fit, where memory allows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vhat.evidence.audit.standardised_residuals import REDRAWS, NotTested, Residuals
from vhat.linalg.solvers import Status
from vhat.models.problem import Curvature, Problem
from vhat.variance.noise import Noise
from vhat.variance.validation import Validation, rows_to_solve
from vhat.variance.weighted_norm import gradient_blocks, measure
from vhat.variance.workspace import Workspace

__all__ = ["as_problem", "validation_residuals"]

_OWN_SHARE = 1 / 8
"""Share of the memory budget that sensitivities and redraws of all responses may take; beyond it redraws are
independent from row to row."""


def as_problem(problem: Problem, rows: Validation) -> Problem:
    """Return the problem with validation rows in place of its training rows, for grouping and naming their columns."""
    return replace(problem, X=rows.inputs, targets=rows.targets, weights=np.ones(rows.rows))


def validation_residuals(
    work: Workspace, rows: Validation, curvature: Curvature, level: Noise | None, seed: int
) -> Residuals | NotTested:
    """Return the standardised residuals of validation rows, or why there are none.

    Args:
        work: The fit.
        rows: The validation rows.
        curvature: The curvature that the audit uses.
        level: The noise level; None where there is none.
        seed: Seed of the redraws.
    """
    problem = work.problem
    if level is None:
        return NotTested("there is no noise level to compare residuals with. Give noise=.", "undecided")
    n, K = problem.n, problem.outputs
    inputs, index = rows.sample(problem, rows_to_solve(problem))
    m = len(index)
    shared = 8 * n * K * (m * K + REDRAWS) <= _OWN_SHARE * problem.memory
    solver = work.own_solver(curvature)
    found = measure(problem, solver, gradient_blocks(problem, inputs), level.values, rows=shared)
    known = (found.status == Status.CONVERGED).reshape(m, K).all(axis=1)
    size = np.sqrt(level.level**2 + found.variance.reshape(m, K) / n)
    predictions = problem.predict(inputs)
    values = (rows.targets[index] - predictions) / size
    rng = np.random.default_rng(seed)
    redraws = rng.standard_normal((m, K, REDRAWS))
    if shared and found.sensitivity is not None:
        moves = (found.sensitivity * level.values).reshape(m * K, n * K) @ rng.standard_normal((n * K, REDRAWS))
        redraws = (redraws * level.level[:, None] - moves.reshape(m, K, REDRAWS)) / size[:, :, None]
    everywhere = np.full((rows.rows, K), np.nan)
    everywhere[index[known]] = values[known]
    return Residuals(
        index[known],
        values[known],
        redraws[known],
        predictions[known],
        None,
        everywhere,
        left_out=True,
        eligible=rows.rows,
        validation=True,
    )
