"""Leave-one-out predictions of a fitted model, after the check that its parameters are a minimum."""

from __future__ import annotations

from vhat.errors import NoiseError
from vhat.evidence.leave_one_out import LeaveOneOut, describe, keeping_rows, leave_rows_out
from vhat.intervals.prepare import at_minimum
from vhat.intervals.weighted_norm import squared_levels
from vhat.variance.workspace import Workspace

__all__ = ["find_leave_one_out"]


def find_leave_one_out(work: Workspace, curvature: str, seed: int) -> LeaveOneOut:
    """Leave each training row out in turn: see :meth:`vhat.FittedModel.leave_one_out`."""
    chosen = work.choose_curvature(curvature)
    try:
        level = work.noise(None, chosen.curvature, seed)
    except NoiseError:  # the gradient is then compared with its own terms instead of with the noise
        level = None
    at_minimum(work, level, chosen, seed)
    solver = work.own_solver(chosen.curvature)
    levels = squared_levels(work)
    with keeping_rows(work.problem, levels, chosen.curvature, solver.name):
        found = leave_rows_out(work.problem, solver, work.shape)
    return describe(work.problem, found, levels, chosen.curvature, solver.name)
