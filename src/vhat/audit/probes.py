"""Checks that move the parameters: are there kinks within reach of the noise, does the minimum follow the data?"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vhat.audit.line import Line
from vhat.errors import VhatError
from vhat.norm import contract
from vhat.polish import polish

if TYPE_CHECKING:
    from vhat.noise import Noise
    from vhat.problem import Array, Curvature, Problem
    from vhat.solve import Prepared
    from vhat.workspace import Workspace

__all__ = ["basin_line", "noise_moves", "smoothness_line"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_DIRECTIONS = 3
_KINK = 1e-3
_FOLLOWED = 0.5
NAN = float("nan")


def noise_moves(
    problem: Problem, prepared: Prepared, sigma: np.ndarray, seed: int, count: int
) -> tuple[Array, np.ndarray]:
    """Return ``count`` moves that one redraw of the noise gives the parameters, to first order, and the redraws.

    ``d theta = -A^-1 J' (cross sigma z) / n``, p-space (count, p); the redraws ``sigma z`` are (count, n, K).
    """
    z = np.random.default_rng(seed).standard_normal((count, problem.n, problem.outputs)) * sigma
    cross = problem.loss_derivatives.cross
    pushed = contract(z, cross if cross.ndim == 2 else cross.transpose(0, 2, 1))
    return -prepared.solve(problem.vjp(pushed)).h / problem.n, z


def smoothness_line(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """Compare the change of the gradient along a move with the integral of the Hessian along it.

    For a smooth model the two agree (fundamental theorem, eight Gauss-Legendre nodes); a kink that is crossed changes
    the gradient and is in no Hessian. The moves are those that a redraw of the noise makes.
    """
    problem = work.problem
    sigma = level.values if level is not None else np.full((problem.n, problem.outputs), _fallback(problem))
    moves, _ = noise_moves(problem, work.own_solver(curvature), sigma, seed, _DIRECTIONS)
    worst = 0.0
    for i in range(_DIRECTIONS):
        gap = _gap(work, moves[i, :], 1)
        if gap > _KINK:  # curved rather than kinked? a finer rule tells
            gap = min(gap, _gap(work, moves[i, :], 4))
        worst = max(worst, gap)
    holds = worst <= _KINK
    remedy = (
        "No kink within reach of the noise."
        if holds
        else "The model has kinks (relu, abs, max): the Hessian is blind to them. Use tanh, softplus, gelu or silu."
    )
    meaning = "change of the gradient along a noise-sized move that the Hessian does not explain"
    return Line("smoothness", worst, _KINK, "holds" if holds else "fails", remedy, meaning)


def _fallback(problem: Problem) -> float:
    """A thousandth of the responses' size: what to move by where the noise is unknown."""
    return 1e-3 * float(np.sqrt(np.mean(problem.targets**2))) or 1e-3


def _gap(work: Workspace, move: Array, pieces: int) -> float:
    """``|grad(1) - grad(-1) - integral H dtheta| / |grad(1) - grad(-1)|`` in the unit-free metric."""
    problem, theta, s = work.problem, work.problem.theta, work.problem.numpy(work.scale())

    def norm(a: np.ndarray) -> float:
        return float(np.linalg.norm(a / s))

    change = problem.numpy(problem.at(theta + move).gradient() - problem.at(theta - move).gradient())
    integral = np.zeros(problem.p)
    edges = np.linspace(-1.0, 1.0, pieces + 1)
    for left, right in pairwise(edges):
        half, middle = (right - left) / 2, (right + left) / 2
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            there = problem.at(theta + float(middle + half * node) * move)
            integral += weight * half * problem.numpy(there.product(move[None, :], "hessian"))[0]
    size = norm(change)
    return norm(change - integral) / size if size > 0 else 0.0


def basin_line(work: Workspace, curvature: Curvature, level: Noise | None, refits: int, seed: int) -> Line:
    """Perturb the responses by fresh noise, refit, and see whether predictions moved as forecast."""
    meaning = "share of refits under perturbed responses whose predictions moved as the theory forecasts"
    if refits < 1 or level is None:
        remedy = "Ask for audit(refits=10) to probe that the minimum follows the data; it cannot be proved."
        return Line("basin", NAN, NAN, "assumed", remedy, meaning)
    problem = work.problem
    moves, z = noise_moves(problem, work.own_solver(curvature), level.values, seed + 1, refits)
    forecast = problem.jvp(moves)
    followed = 0
    for i in range(refits):
        try:
            there = polish(problem.with_targets(problem.targets + z[i]), warmup=0, seed=seed).problem
        except VhatError:
            continue
        moved = there.fitted_values - problem.fitted_values
        followed += bool(np.linalg.norm(moved - forecast[i]) <= _FOLLOWED * np.linalg.norm(forecast[i]))
    share = followed / refits
    holds = share >= 0.9
    remedy = (
        "The minimum follows the data."
        if holds
        else "The minimum jumps or bends under the noise: intervals miss that. More weight decay, or a simpler model."
    )
    return Line("basin", share, 0.9, "holds" if holds else "fails", remedy, meaning)
