"""Detect kinks that derivatives do not show: parameters exactly at the kink of a unit.

At ``w = v = 0`` the gradient of ``v relu(w x)`` is zero. With ``relu'(0) = 0``, so is every second derivative by
automatic differentiation, although the function is not flat there. Only values of the function show it.
"""

from __future__ import annotations

import numpy as np

from vhat.models.problem import Problem

__all__ = ["UNEXPLAINED", "unexplained_change"]

UNEXPLAINED = 0.1
"""Unexplained change of the loss, as a share of the penalty, below which it is rounding or a third derivative."""
_ABOVE_ROUNDING = 1e4
"""Penalty of a move in units of the rounding of the objective, so that the change is known to four digits."""
_DIRECTIONS = 4
"""Number of random moves. Each crosses about half of the hidden kinks, so that four miss one in sixteen."""


def unexplained_change(problem: Problem, seed: int = 0) -> float:
    """Return the largest change of the loss that its derivatives do not explain, relative to the penalty of the move.

    The parameters that no training prediction depends on to first order are moved in random directions. A change is
    unexplained if the gradient and the Hessian of the loss do not predict it.

    Args:
        problem: The training problem, at its parameters.
        seed: Seed of the directions.

    Returns:
        The largest ratio, without unit. Zero if the predictions depend on every parameter with decay.
    """
    decay = problem.numpy(problem.decay)
    no_influence = (problem.numpy(problem.diagonal()) == 0) & (decay > 0)
    if not no_influence.any():
        return 0.0
    theta = problem.numpy(problem.theta)
    loss = problem.objective()
    total = loss + 0.5 * float(decay @ theta**2)
    if not total > 0:
        return 0.0
    # A short step whose penalty is far above the rounding of the objective.
    step = np.sqrt(_ABOVE_ROUNDING * problem.facts().accuracy * 2.0 * total / no_influence.sum())
    rng = np.random.default_rng(seed)
    worst = 0.0
    for _ in range(_DIRECTIONS):
        move = np.zeros_like(theta)
        move[no_influence] = step / np.sqrt(decay[no_influence]) * rng.standard_normal(int(no_influence.sum()))
        native = problem.native(move)
        first = float(problem.gradient() @ native)
        second = float(native @ problem.product(native[None, :], "hessian")[0, :])
        change = problem.at(problem.theta + native).objective() - loss
        penalty = 0.5 * float(decay @ move**2)
        if penalty > 0:  # zero if it underflows
            worst = max(worst, abs(change - first - 0.5 * second) / penalty)
    return worst
