"""The audit's line on the basin: does the minimum follow the responses when their noise is redrawn?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import VhatError
from vhat.evidence.audit.noise_moves import noise_moves
from vhat.evidence.audit.remedies import settle_first
from vhat.evidence.audit.result import Line
from vhat.evidence.minimise.polish import polish
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.models.problem import Curvature
    from vhat.variance.noise import Noise
    from vhat.variance.workspace import Workspace

__all__ = ["basin_line"]

_FOLLOWED = 0.5
"""A refit follows the forecast if its predictions differ from it by at most this share of the forecast move."""
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
    """Perturb the responses by fresh noise, refit, and see whether predictions moved as forecast.

    Refits start from the parameters, so that they tell nothing where these are not ``stationary``. ``near_fold`` says
    that ``|I - S|_F^2`` is well above its Gauss-Newton count: some fitted values move further than the responses they
    follow, as they do where a minimum is about to vanish.
    """
    meaning = "share of refits under perturbed responses whose predictions moved as the theory forecasts"
    minimum = stationary.verdict == "holds"
    if refits < 1 and not minimum:
        remedy = f"{settle_first(stationary)}: refits begin at the minimum."
        return Line("basin", NAN, NAN, "undecided" if near_fold else "assumed", remedy, meaning)
    if refits < 1 and near_fold:
        remedy = (
            "Predictions move further than the data: the minimum may be near a fold. Probe it with audit(refits=10)."
        )
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    if refits < 1:
        remedy = "Ask for audit(refits=10) to probe that the minimum follows the data; it cannot be proved."
        return Line("basin", NAN, NAN, "assumed", remedy, meaning)
    if not minimum:
        remedy = "Not probed, because the parameters are not known to be a minimum: settle stationarity first."
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    if level is None or work.kinks.verdict == "kinked":
        remedy = (
            "Not probed, because there is no noise level to redraw. Give noise=."
            if level is None
            else f"Not probed, because the model has {work.kinks.told}: no refit reaches a certified minimum."
        )
        return Line("basin", NAN, NAN, "undecided", remedy, meaning)
    problem = work.problem
    moves, z = noise_moves(problem, work.own_solver(curvature), level.values, seed + 1, refits)
    forecast = problem.jvp(moves)
    followed = 0
    with bar("refits", refits) as advance:
        for i in range(refits):
            advance("")
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
