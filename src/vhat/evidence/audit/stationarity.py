"""The audit's line on stationarity: are the parameters a stationary point of the objective that was described?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace

from vhat.evidence.audit.noise_moves import noise_pushes
from vhat.evidence.audit.remedies import reach_minimum
from vhat.evidence.audit.result import Line
from vhat.evidence.minimise.stationarity import evaluate, relative_gradient, units
from vhat.linalg.solvers import Status

if TYPE_CHECKING:
    from vhat.models.problem import Curvature
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["gradient_line", "stationarity_line"]

_STATIONARY = 0.01
"""Largest distance to the minimum, as a share of the spread that the noise gives the parameters."""
_STATIONARY_WITHOUT_NOISE = 1e-6
"""Largest relative gradient, where there is no noise level to compare with."""
_REDRAWS = 8
"""Redraws of the noise that measure this spread."""
_FEW_RESPONSES = 128
"""Number of responses up to which the spread is exact: each response is moved alone, by its own noise."""
NAN = float("nan")


def stationarity_line(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """Return the line, measured once for each curvature, noise and seed."""
    key = ("stationarity", curvature, None if level is None else level.digest, seed)
    return work.keep(key, lambda: _measure(work, curvature, level, seed))


def gradient_line(work: Workspace) -> Line:
    """Return the line by the relative gradient alone, where there is no noise to compare with."""
    meaning = "the gradient relative to its terms, without unit"
    value = relative_gradient(evaluate(work.problem), units(work.problem))
    return _judge(work, value, _STATIONARY_WITHOUT_NOISE, meaning)


def _measure(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """Compare the distance to the minimum with the spread that the noise gives the parameters.

    Let ``d = A^-1 grad`` be the step to the minimum and ``e`` the step that a redraw of the noise makes. The value is
    the largest of ``|d|_A / |e|_A`` and, for each output, ``|J d| / |J e|``, with root mean squares over redraws (exact
    for few responses). Without decay the first is the relative offset of Bates and Watts: the length of the projection
    of the residuals on the tangent plane over ``sigma sqrt(p)``. Weights, losses and the units of y, of each output and
    of the parameters cancel.
    """
    problem = work.problem
    if level is None:
        return gradient_line(work)
    point = evaluate(problem)
    solver = work.own_solver(curvature)
    pushed, _, times = noise_pushes(problem, level.values, seed, _REDRAWS, few=_FEW_RESPONSES)

    # One block of right-hand sides: the gradient first, then the pushes of the noise.
    xp = array_namespace(point.gradient)
    sides = xp.concat([point.gradient[None, :], pushed], axis=0)
    solution = solver.solve(sides)
    if np.any(solution.status != Status.CONVERGED):
        return _without_comparison(work)
    energy = problem.numpy(xp.sum(sides * solution.h, axis=1))  # |d|_A^2, then |e|_A^2
    images = np.mean(problem.jvp(solution.h) ** 2, axis=1)  # |J d|^2, then |J e|^2, by output
    ratios = [_ratio(energy[0], times * np.mean(energy[1:]))]
    ratios += [_ratio(images[0, k], times * np.mean(images[1:, k])) for k in range(problem.outputs)]
    if not np.isfinite(ratios).any():  # the noise moves nothing: the loss does not depend on the responses
        return gradient_line(work)
    meaning = "the distance to the minimum over the spread that the noise gives the parameters"
    return _judge(work, float(np.nanmax(ratios)), _STATIONARY, meaning)


def _ratio(square: float, reference: float) -> float:
    return float(np.sqrt(max(square, 0.0) / reference)) if reference > 0 else NAN


def _without_comparison(work: Workspace) -> Line:
    """Return the line where the solves that compare the gradient with the noise did not converge.

    A gradient that vanishes to rounding needs no comparison. Whether any other matters is unknown.
    """
    line = gradient_line(work)
    if line.verdict == "holds":
        return line
    remedy = (
        "Whether this gradient matters is not known: the solves that compare it with the noise did not converge. Raise "
        f"weight_decay. {reach_minimum(work)}"
    )
    return replace(line, verdict="undecided", remedy=remedy)


def _judge(work: Workspace, value: float, threshold: float, meaning: str) -> Line:
    if value <= threshold:
        return Line("stationarity", value, threshold, "holds", "The gradient vanishes for all purposes.", meaning)
    remedy = (
        "The parameters are not a minimum of the objective described: check loss and weight_decay against the "
        f"alignment line. {reach_minimum(work)}"
    )
    return Line("stationarity", value, threshold, "fails", remedy, meaning)
