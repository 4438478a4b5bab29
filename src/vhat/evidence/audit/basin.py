"""The audit's line on the basin: does the minimum move continuously when the noise of the responses is redrawn?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import VhatError
from vhat.evidence.audit.noise_moves import noise_moves
from vhat.evidence.audit.remedies import settle_first
from vhat.evidence.audit.result import Line, Verdict
from vhat.evidence.minimise.polish import polish
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.models.problem import Curvature
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["basin_line"]

_FOLLOWED = 0.5
"""Largest difference of a refit's predictions from the first-order forecast, as a share of the forecast move."""
_MOST = 0.9
"""Share of the refits that must follow the forecast for the line to hold."""
NAN = float("nan")


def basin_line(
    work: Workspace,
    curvature: Curvature,
    level: Noise | None,
    refits: int,
    seed: int,
    *,
    stationary: Line,
    near_fold: bool,
) -> Line:
    """Perturb the responses by fresh noise, refit, and compare the moves of the predictions with their forecast.

    Args:
        work: The fit.
        curvature: The curvature that the audit uses.
        level: The noise level; None where there is none.
        refits: Number of refits; 0 leaves them out.
        seed: Seed of the redraws.
        stationary: The line on stationarity. Refits start from the parameters, and mean nothing where it fails.
        near_fold: Whether ``|I - S|_F^2`` is well above its Gauss-Newton value. Some fitted values then move further
            than the responses that they follow, as they do where a minimum is about to vanish.
    """
    meaning = "share of refits under perturbed responses whose predictions moved as the theory forecasts"
    minimum = stationary.verdict == "holds"
    if refits < 1:
        verdict: Verdict = "undecided" if near_fold else "assumed"
        if not minimum:
            remedy = f"{settle_first(stationary)} Refits begin at the minimum."
        elif near_fold:
            remedy = (
                "Predictions move further than the data: the minimum may be near a fold. Probe it with "
                "audit(refits=10)."
            )
        else:
            remedy = "Ask for audit(refits=10) to probe that the minimum follows the data; it cannot be proved."
        return Line("basin", NAN, NAN, verdict, remedy, meaning)
    if not minimum:
        remedy = "Not probed, because refits begin at a minimum: settle stationarity first."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    if level is None:
        remedy = "Not probed, because there is no noise level to redraw. Give noise=."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    if work.kinks.verdict == "kinked":
        remedy = f"Not probed, because the model has {work.kinks.told}: no refit reaches a certified minimum."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)

    share = _share_followed(work, curvature, level, refits, seed)
    if share >= _MOST:
        return Line("basin", share, _MOST, "holds", "The minimum follows the data.", meaning)
    remedy = "The minimum jumps or bends under the noise: intervals miss that. More weight decay, or a simpler model."
    return Line("basin", share, _MOST, "fails", remedy, meaning)


def _share_followed(work: Workspace, curvature: Curvature, level: Noise, refits: int, seed: int) -> float:
    """Return the share of refits whose predictions move as the first-order forecast says."""
    problem = work.problem
    moves, z = noise_moves(problem, work.own_solver(curvature), level.values, seed + 1, refits)
    forecast = problem.jvp(moves)
    followed = 0
    with bar("refits", refits) as advance:
        for i in range(refits):
            advance("")
            try:
                there = polish(problem.with_targets(problem.targets + z[i]), warmup=0, seed=seed).problem
            except VhatError:  # no minimum was reached: it did not follow
                continue
            moved = there.fitted_values - problem.fitted_values
            followed += bool(np.linalg.norm(moved - forecast[i]) <= _FOLLOWED * np.linalg.norm(forecast[i]))
    return followed / refits
