"""The minimum of a linear model under the square loss, by one linear solve."""

from __future__ import annotations

from vhat.errors import MemoryBudgetError, NotPositiveDefinite
from vhat.evidence.minimise.stationarity import Point, evaluate
from vhat.linalg.curvature import scale
from vhat.linalg.solvers.gram import make_gram

__all__ = ["normal_equations"]

_MOST_PARAMETERS = 4000
"""Largest p for which the matrix is formed: 21 Gflop to factorise, about a second."""
_STEPS = 3
"""Largest number of solves: the first finds the minimum, the others remove what rounding left of the gradient."""
_GAIN = 0.1
"""Factor by which a solve must lower the gradient for another one to follow."""


def normal_equations(start: Point) -> Point:
    """Return the minimum of ``1/(2n) sum_i w_i |f_i - y_i|^2 + 1/2 sum_j lam_j theta_j^2`` where f is linear in theta.

    One Newton step, ``theta - (J'WJ/n + lam)^-1 grad``, leads from any theta to the minimum. The start is returned
    where the model is not linear by structure, the loss is not the square loss, or the matrix does not fit into memory
    or cannot be factorised.
    """
    problem = start.problem
    if not (problem.linear and problem.loss_derivatives.square) or problem.p > _MOST_PARAMETERS:
        return start
    try:
        gram = make_gram(problem, scale(problem))
    except (MemoryBudgetError, NotPositiveDefinite):
        return start
    here = start
    for _ in range(_STEPS):
        step = gram.solve(here.gradient[None, :])[0, :]
        there = evaluate(problem.at(here.problem.theta - step))
        if not there.finite or there.gradient_norm >= here.gradient_norm:
            return here
        at_rounding = there.gradient_norm > _GAIN * here.gradient_norm
        here = there
        if at_rounding:
            return here
    return here
