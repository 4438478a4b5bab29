"""The audit's line on smoothness: are there kinks within a move of the parameters that the noise makes?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import VhatError
from vhat.evidence.audit.noise_moves import noise_moves
from vhat.evidence.audit.remedies import with_own_validation
from vhat.evidence.audit.result import Line, Verdict
from vhat.linalg.curvature.hidden_kinks import UNEXPLAINED, unexplained_change
from vhat.linalg.curvature.kinks import way_on

if TYPE_CHECKING:
    from vhat.models.problem import Array, Curvature, Problem
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["smoothness_line"]

_KINK = 1e-3
"""Threshold of the line: share of the gradient's change along a noise-sized move that the Hessian may leave
unexplained. Parameters that such moves do not change have a threshold of their own: ``hidden_kinks.UNEXPLAINED``."""
_SHRINKS = 0.5
"""Factor by which an unexplained share must fall as the rule is refined to count as curvature and not as a kink."""
_ROUNDED = 1e-9
"""Smallest noise of a move, as a share of the responses: smaller moves would show rounding only."""
_UNKNOWN_NOISE = 1e-3
"""Noise of a move where the level is not known, as a share of the responses."""
_DIRECTIONS = 3
"""Number of redraws of the noise that are tried."""
_PIECES = (1, 4, 16)
"""Pieces of a move over which the Hessian is integrated, coarse to fine, by eight Gauss-Legendre nodes each."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
NAN = float("nan")


def smoothness_line(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """Compare the change of the gradient along a move with the integral of the Hessian along it.

    For a smooth model both agree, by the fundamental theorem of calculus with Gauss-Legendre nodes. A kink that is
    crossed changes the gradient and appears in no Hessian. The moves are those that redraws of the noise make. They do
    not change parameters on which no prediction depends; these are moved separately.
    """
    if work.kinks.verdict == "kinked":
        return _kinked_line(work)
    problem = work.problem
    size = _response_size(problem)
    sigma = np.full((problem.n, problem.outputs), _UNKNOWN_NOISE * size)
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


def _kinked_line(work: Workspace) -> Line:
    """Return the line of a model whose kinks were found without derivatives."""
    remedy = (
        f"The model has {work.kinks.told}: its derivatives jump near the parameters, and first-order theory holds "
        f"between the jumps only. {with_own_validation(work, way_on(work.problem))} Networks with tanh, softplus, gelu "
        "or silu have no kinks."
    )
    meaning = "a jump in the slope of a prediction, within a tenth of the parameters, over its largest slope"
    return Line("smoothness", work.kinks.jump, NAN, "fails", remedy, meaning)


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
            "fails": "The model or the loss has kinks (relu, abs, max): the Hessian is blind to them. "
            "fitted.linearised(validation=(X, y)) takes a model with kinks as it is; tanh, softplus, gelu and silu "
            "have none.",
        }[self.verdict]


def _gap(work: Workspace, move: Array) -> _Gap:
    """Measure along one move, by finer rules until the change is explained."""
    size = np.inf
    before = np.inf
    for pieces in _PIECES:
        before = size
        size = _unexplained(work, move, pieces)
        if not size > _KINK:
            break
    return _Gap(size, size < _SHRINKS * before)


def _response_size(problem: Problem) -> float:
    return float(np.sqrt(np.mean(problem.targets**2))) or 1.0


def _unexplained(work: Workspace, move: Array, pieces: int) -> float:
    """Return ``|grad(1) - grad(-1) - integral H dtheta| / |grad(1) - grad(-1)|`` in the unit-free metric, or NaN."""
    problem = work.problem
    s = problem.numpy(work.scale())
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
    """Return ``grad(1) - grad(-1)`` and the integral of ``H dtheta`` between, by eight nodes in each of the pieces."""
    theta = problem.theta
    change = problem.numpy(problem.at(theta + move).gradient() - problem.at(theta - move).gradient())
    integral = np.zeros(problem.p)
    edges = np.linspace(-1.0, 1.0, pieces + 1)
    for left, right in pairwise(edges):
        half = (right - left) / 2
        middle = (right + left) / 2
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            there = problem.at(theta + float(middle + half * node) * move)
            integral += weight * half * problem.numpy(there.product(move[None, :], "hessian"))[0]
    return change, integral
