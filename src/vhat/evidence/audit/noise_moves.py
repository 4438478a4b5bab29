"""Moves of the parameters that a redraw of the noise makes, to first order: what several checks probe along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.linalg.solvers import Status
from vhat.linalg.solvers.interface import contract

if TYPE_CHECKING:
    from vhat.linalg.solvers import Prepared
    from vhat.models.problem import Array, Problem

__all__ = ["noise_moves", "noise_pushes"]

NAN = float("nan")


def noise_moves(
    problem: Problem, prepared: Prepared, sigma: np.ndarray, seed: int, count: int
) -> tuple[Array, np.ndarray]:
    """Return ``count`` moves that one redraw of the noise gives the parameters, to first order, and the redraws.

    ``d theta = -A^-1 J' (cross sigma z) / n``, p-space (count, p), NaN where the solve failed; the redraws
    ``sigma z`` are (count, n, K).
    """
    pushed, z, _ = noise_pushes(problem, sigma, seed, count)
    solution = prepared.solve(pushed)
    usable = np.where(solution.status == Status.CONVERGED, 1.0, NAN)[:, None]
    return solution.h * problem.native(usable), z


def noise_pushes(
    problem: Problem, sigma: np.ndarray, seed: int, count: int, few: int = 0
) -> tuple[Array, np.ndarray, int]:
    """Return what redraws of the noise do to minus the gradient, ``-J' (cross sigma z) / n``.

    Args:
        problem: The training problem.
        sigma: Noise of each response, (n, K).
        seed: Seed of the redraws.
        count: How many.
        few: Up to so many responses each is moved alone instead, by its own noise.

    Returns:
        The pushes (p-space), the moves of the responses, and the factor of the mean of a square over them.
    """
    size = problem.n * problem.outputs
    if size <= few:
        z = np.diag(sigma.ravel()).reshape(size, problem.n, problem.outputs)
    else:
        z = np.random.default_rng(seed).standard_normal((count, problem.n, problem.outputs)) * sigma
    cross = problem.loss_derivatives.cross
    pushed = contract(z, cross if cross.ndim == 2 else cross.transpose(0, 2, 1))
    return -problem.vjp(pushed) / problem.n, z, size if size <= few else 1
