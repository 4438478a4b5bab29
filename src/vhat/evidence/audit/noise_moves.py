"""First-order moves of the parameters under redrawn noise, along which several lines of the audit probe the model."""

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
    """Return the first-order moves of the parameters under redraws of the noise, and the redraws.

    Args:
        problem: The training problem.
        prepared: The solver of ``A = H + lam``.
        sigma: Noise of each response, (n, K).
        seed: Seed of the redraws.
        count: Number of redraws.

    Returns:
        ``d theta = -A^-1 J' (cross sigma z) / n``, p-space (count, p), NaN where the solve failed; and ``sigma z``,
        (count, n, K).
    """
    pushed, z, _ = noise_pushes(problem, sigma, seed, count)
    solution = prepared.solve(pushed)
    usable = np.where(solution.status == Status.CONVERGED, 1.0, NAN)[:, None]
    return solution.h * problem.native(usable), z


def noise_pushes(
    problem: Problem, sigma: np.ndarray, seed: int, count: int, few: int = 0
) -> tuple[Array, np.ndarray, int]:
    """Return the change of minus the gradient under redraws of the noise, ``-J' (cross sigma z) / n``.

    Args:
        problem: The training problem.
        sigma: Noise of each response, (n, K).
        seed: Seed of the redraws.
        count: Number of redraws.
        few: Number of responses up to which each is moved alone instead, by its own noise.

    Returns:
        The changes (p-space); the moves of the responses; and the factor that makes the mean of squares over them that
        of a redraw: the number of responses where each is moved alone, else 1.
    """
    size = problem.n * problem.outputs
    alone = size <= few
    if alone:
        z = np.diag(sigma.ravel()).reshape(size, problem.n, problem.outputs)
    else:
        z = np.random.default_rng(seed).standard_normal((count, problem.n, problem.outputs)) * sigma
    cross = problem.loss_derivatives.cross
    pushed = contract(z, cross if cross.ndim == 2 else cross.transpose(0, 2, 1))
    return -problem.vjp(pushed) / problem.n, z, size if alone else 1
