"""Checks that move the parameters: are there kinks within reach of the noise, does the minimum follow the data?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import VhatError
from vhat.evidence.audit.line import Line, Verdict
from vhat.evidence.minimise.polish import polish
from vhat.linalg.curvature.hidden_kinks import UNEXPLAINED, unexplained_change
from vhat.linalg.solvers import Status
from vhat.variance.weighted_norm import contract

if TYPE_CHECKING:
    from vhat.linalg.solvers import Prepared
    from vhat.models.problem import Array, Curvature, Problem
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["basin_line", "noise_moves", "noise_pushes", "residual_curvature_line", "smoothness_line"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_DIRECTIONS = 3
_PIECES = (1, 4, 16)
_KINK = 1e-3
_SHRINKS = 0.5
_ROUNDED = 1e-9
"""Moves by less noise than this share of the responses would show rounding only."""
_FOLLOWED = 0.5
_MOST = 0.9
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


def residual_curvature_line(work: Workspace, curvature: Curvature, seed: int) -> Line:
    """``|R d| / |A d|`` in the metric of ``A^-1``, for moves ``d`` that the noise makes.

    Where H is nearly singular a small R changes V much, and there the noise moves furthest: random directions would
    not see it. V changes by about twice this share.
    """
    problem, prepared = work.problem, work.own_solver(curvature)
    moves, _ = noise_moves(problem, prepared, work.shape, seed, _DIRECTIONS)
    full, gauss = problem.product(moves, "hessian"), problem.product(moves, "ggn")
    bent = full - gauss
    pushed = (full if curvature == "hessian" else gauss) + problem.decay * moves
    back = prepared.solve(bent)
    sizes = [float(np.sum(problem.numpy(a * b))) for a, b in ((bent, back.h), (moves, pushed))]
    known = bool(np.all(back.status == Status.CONVERGED)) and sizes[1] > 0
    value = float(np.sqrt(max(sizes[0], 0.0) / sizes[1])) if known else NAN
    remedy = "Gauss-Newton would do." if value < 0.01 else 'Intervals by curvature="ggn" differ from the exact ones.'
    meaning = "size of R against H + lam along the moves that the noise makes"
    return Line("residual curvature", value, NAN, "noted", remedy, meaning)


def smoothness_line(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """Compare the change of the gradient along a move with the integral of the Hessian along it.

    For a smooth model the two agree (fundamental theorem, Gauss-Legendre nodes); a kink that is crossed changes
    the gradient and is in no Hessian. The moves are those that a redraw of the noise makes; they leave parameters at
    rest that no prediction depends on, and these are moved by themselves.
    """
    problem, size = work.problem, _response_size(work.problem)
    sigma = np.full((problem.n, problem.outputs), 1e-3 * size)  # where the noise is unknown
    if level is not None:
        sigma = np.maximum(level.values, _ROUNDED * size)
    moves, _ = noise_moves(problem, work.own_solver(curvature), sigma, seed, _DIRECTIONS)
    found = []
    for i in range(_DIRECTIONS):
        found.append(_gap(work, moves[i, :]))
        if found[-1].verdict == "fails":
            break
    hidden = unexplained_change(problem, seed)
    if hidden > UNEXPLAINED:
        found.append(_Gap(hidden, shrinking=False))
    worst = max(found, key=lambda gap: ("holds", "undecided", "fails").index(gap.verdict))
    value = float(np.max([gap.size for gap in found]))  # NaN stays NaN
    meaning = "change of the gradient along a noise-sized move that the Hessian does not explain"
    return Line("smoothness", value, _KINK, worst.verdict, worst.remedy, meaning)


@dataclass(frozen=True)
class _Gap:
    """What the Hessian does not explain along one move.

    Attributes:
        size: Relative to the whole change; NaN where there are no finite derivatives.
        shrinking: Whether it falls as the rule is refined: then it is curvature, and not a kink.
    """

    size: float
    shrinking: bool

    @property
    def verdict(self) -> Verdict:
        """What follows for the line."""
        if self.size <= _KINK:
            return "holds"
        return "undecided" if self.shrinking or not np.isfinite(self.size) else "fails"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if not np.isfinite(self.size):
            return (
                "The model has no finite derivatives within reach of the noise (the edge of a logarithm's or a root's "
                "domain?). Reparametrise it, or raise weight_decay."
            )
        return {
            "holds": "No kink within reach of the noise.",
            "undecided": "The model or the loss bends so sharply within reach of the noise that a kink cannot be told "
            "from it. Raise weight_decay, or use a smoother one.",
            "fails": "The model or the loss has kinks (relu, abs, max): the Hessian is blind to them. Use tanh, "
            "softplus, gelu or silu.",
        }[self.verdict]


def _gap(work: Workspace, move: Array) -> _Gap:
    """Measure along one move, by finer rules until the change is explained."""
    size, before = np.inf, np.inf
    for pieces in _PIECES:
        size, before = _unexplained(work, move, pieces), size
        if not size > _KINK:
            break
    return _Gap(size, size < _SHRINKS * before)


def _response_size(problem: Problem) -> float:
    return float(np.sqrt(np.mean(problem.targets**2))) or 1.0


def _unexplained(work: Workspace, move: Array, pieces: int) -> float:
    """``|grad(1) - grad(-1) - integral H dtheta| / |grad(1) - grad(-1)|`` in the unit-free metric, or NaN."""
    problem, s = work.problem, work.problem.numpy(work.scale())
    try:
        with np.errstate(all="ignore"):
            change, integral = _changes(problem, move, pieces)
            size, gap = (float(np.linalg.norm(a / s)) for a in (change, change - integral))
    except VhatError:  # a step outside the model's domain
        return NAN
    if np.isfinite(size) and np.isfinite(gap):
        return gap / size if size > 0 else 0.0
    return NAN


def _changes(problem: Problem, move: Array, pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``grad(1) - grad(-1)`` and the integral of ``H dtheta``, ``pieces`` rules of eight nodes."""
    theta = problem.theta
    change = problem.numpy(problem.at(theta + move).gradient() - problem.at(theta - move).gradient())
    integral = np.zeros(problem.p)
    edges = np.linspace(-1.0, 1.0, pieces + 1)
    for left, right in pairwise(edges):
        half, middle = (right - left) / 2, (right + left) / 2
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            there = problem.at(theta + float(middle + half * node) * move)
            integral += weight * half * problem.numpy(there.product(move[None, :], "hessian"))[0]
    return change, integral


def basin_line(
    work: Workspace,
    curvature: Curvature,
    level: Noise | None,
    refits: int,
    seed: int,
    *,
    minimum: bool,
    near_fold: bool,
) -> Line:
    """Perturb the responses by fresh noise, refit, and see whether predictions moved as forecast.

    Refits start from the parameters, so that they tell nothing where these are no ``minimum``. ``near_fold`` says that
    ``|I - S|_F^2`` exceeds n: some fitted values move further than the responses they follow, as they do where a
    minimum is about to vanish.
    """
    meaning = "share of refits under perturbed responses whose predictions moved as the theory forecasts"
    if refits < 1 and not minimum:
        remedy = "Polish first, as stationarity fails: refits begin at the minimum."
        return Line("basin", NAN, NAN, "undecided" if near_fold else "assumed", remedy, meaning)
    if refits < 1 and near_fold:
        remedy = "Predictions move further than the data: the minimum is near a fold. Probe it with audit(refits=10)."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    if refits < 1:
        remedy = "Ask for audit(refits=10) to probe that the minimum follows the data; it cannot be proved."
        return Line("basin", NAN, NAN, "assumed", remedy, meaning)
    if not minimum:
        remedy = "Not probed, because the parameters are not a minimum: settle stationarity first."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    if level is None:
        remedy = "Not probed, because there is no noise level to redraw. Give noise=."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
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
    holds = share >= _MOST
    remedy = (
        "The minimum follows the data."
        if holds
        else "The minimum jumps or bends under the noise: intervals miss that. More weight decay, or a simpler model."
    )
    return Line("basin", share, _MOST, "holds" if holds else "fails", remedy, meaning)
