"""The first steps of every computation of V: curvature, solver, evidence of a minimum, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np

from vhat.errors import ConvergenceWarning, InputError, NoiseWarning, NotMinimumWarning, name_rows, outside
from vhat.evidence.audit import Line, stationarity_line
from vhat.linalg.solvers import Prepared, Solver, Status
from vhat.linalg.solvers.interface import Stopped
from vhat.models.problem import Array, Problem
from vhat.progress import announce
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import Measured, Recorder, measure
from vhat.variance.workspace import Chosen, Workspace

__all__ = [
    "at_minimum",
    "measured",
    "nothing_yet",
    "ready",
    "require_residuals",
    "warn_of_failed",
    "warn_of_weights",
]

_LONG = 2000
"""Cost, in gradients of the loss, above which the plan is shown before the work begins."""


def ready(work: Workspace, solver: Solver | str, curvature: str, rows: int) -> tuple[Chosen, Prepared]:
    """Choose curvature and solver for a number of right-hand sides, and show the plan of long work.

    Raises:
        MemoryBudgetError: When the solver would not fit, before any work.
    """
    work = work.for_solver(solver)
    plan = work.plan(rows, solver, curvature)
    plan.require_memory()
    if plan.gradients > _LONG and work.first(f"announced {plan.solver!r} {rows}"):
        announce(str(plan))
    chosen = work.choose_curvature(curvature)
    return chosen, work.prepared(plan.solver, chosen.curvature)


def nothing_yet(shape: tuple[int, ...], solver: Solver | str, curvature: str) -> Recorder:
    """Return the record of predictions none of which is finished."""
    return Recorder(np.ones(()), shape, curvature, str(getattr(solver, "name", solver)))


def measured(
    work: Workspace,
    prepared: Prepared,
    blocks: Iterable[Array],
    sigma: np.ndarray,
    recorder: Recorder,
    *,
    rows: bool = False,
) -> Measured:
    """Measure V of every row. Ctrl-C raises Interrupted with the finished rows in its record."""
    try:
        return measure(work.problem, prepared, blocks, sigma, rows=rows)
    except Stopped as stop:
        raise recorder.interrupt(stop) from None


def at_minimum(work: Workspace, level: Noise | None, chosen: Chosen, seed: int) -> Line:
    """Return the audit's line on stationarity, and warn once unless it holds."""
    line = stationarity_line(work, chosen.curvature, level, seed)
    if line.verdict != "holds" and work.first("warned stationarity"):
        warnings.warn(f"{line}", NotMinimumWarning, stacklevel=outside())
    return line


def warn_of_failed(problem: Problem, found: Measured) -> None:
    """Warn of rows whose solve failed, with their numbers and the remedy."""
    failed = np.flatnonzero(found.status != Status.CONVERGED)
    if failed.size:
        kinds = dict.fromkeys(found.status[failed])
        told = "; ".join(f"{kind}: {Status(kind).remedy}" for kind in kinds)
        outputs = 1 if problem.squeeze else problem.outputs
        rows = np.unique(failed // outputs)
        warnings.warn(
            f"{failed.size} of {found.status.size} predictions have no interval ({name_rows(rows)}) and are NaN. "
            f"{told}.",
            ConvergenceWarning,
            stacklevel=outside(),
        )


def warn_of_weights(work: Workspace) -> None:
    """Warn once where sample weights vary and the noise was not described.

    Warns:
        NoiseWarning: Naming the possible answers.
    """
    if work.weights_vary and work.first("warned weights"):
        warnings.warn(
            "the sample weights vary, and nothing was said of the noise: it is estimated as equal in every row. If the "
            'weights are inverse variances of the responses, pass noise="weights"; if the noise is equal in every row '
            'all the same (counts, importance), pass noise="equal"; or give noise=, one standard deviation a row.',
            NoiseWarning,
            stacklevel=outside(),
        )


def require_residuals(problem: Problem) -> None:
    """Refuse intervals for a response where the loss is not a function of its distance from the prediction."""
    if not problem.loss_derivatives.location:
        raise InputError(
            "target='observation' needs a prediction on the scale of y, and this loss is not a function of f - y: what "
            "f predicts is not the mean of a response. Ask for target='mean', and map it to responses yourself."
        )
