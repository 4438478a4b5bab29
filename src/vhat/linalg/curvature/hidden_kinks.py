"""Kinks that derivatives cannot show: parameters at rest where a unit switches.

At ``w = v = 0`` the gradient of ``v relu(w x)`` is zero and, with ``relu'(0) = 0``, so is every second derivative that
automatic differentiation gives, although the function rises and falls around there. Only its values tell.
"""

from __future__ import annotations

import numpy as np

from vhat.models.problem import Problem

__all__ = ["UNEXPLAINED", "unexplained_change"]

UNEXPLAINED = 0.1
"""A share of the penalty that a change of the loss must stay below, to be rounding or a third derivative."""
_ABOVE_ROUNDING = 1e4
"""How far above the rounding of the objective the penalty of a move is, so that its change is known to four digits."""
_DIRECTIONS = 4
"""Random moves: each crosses about half of the hidden kinks, and four miss one in sixteen."""


def unexplained_change(problem: Problem, seed: int = 0) -> float:
    """Move the parameters that no training prediction depends on to first order, and compare with the derivatives.

    Args:
        problem: The training problem, at its parameters.
        seed: Draws the directions.

    Returns:
        The largest part of a change of the loss that slope and Hessian do not give, as a share of what the same move
        costs in penalty; without unit. Zero where every parameter is seen, or what is not seen has no decay.
    """
    decay = problem.numpy(problem.decay)
    unseen = (problem.numpy(problem.diagonal()) == 0) & (decay > 0)
    if not unseen.any():
        return 0.0
    theta, loss = problem.numpy(problem.theta), problem.objective()
    total = loss + 0.5 * float(decay @ theta**2)
    if not total > 0:
        return 0.0
    # short, and its cost far above the rounding of the objective
    step = np.sqrt(_ABOVE_ROUNDING * problem.facts().accuracy * 2.0 * total / unseen.sum())
    rng = np.random.default_rng(seed)
    worst = 0.0
    for _ in range(_DIRECTIONS):
        move = np.zeros_like(theta)
        move[unseen] = step / np.sqrt(decay[unseen]) * rng.standard_normal(int(unseen.sum()))
        native = problem.native(move)
        slope = float(problem.gradient() @ native)
        bend = float(native @ problem.product(native[None, :], "hessian")[0, :])
        change = problem.at(problem.theta + native).objective() - loss
        cost = 0.5 * float(decay @ move**2)
        if cost > 0:  # an objective that has vanished to the last digit costs nothing
            worst = max(worst, abs(change - slope - 0.5 * bend) / cost)
    return worst
