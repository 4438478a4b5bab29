"""From a question about predictions to an interval: curvature and solver, noise, evidence, limits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vhat.errors import ConvergenceWarning, InputError, NotMinimumWarning, name_rows, outside
from vhat.evidence.audit import moved_by, stationarity_line
from vhat.intervals import limits
from vhat.intervals.estimated_tail import Redraws, estimate_tail
from vhat.intervals.interval import Interval
from vhat.linalg.solvers import Prepared, Solver, Status, choose
from vhat.linalg.solvers.interface import Stopped
from vhat.models.problem import Array, Problem
from vhat.progress import announce
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import MOSTLY, Measured, Recorder, measure
from vhat.variance.workspace import Chosen, Workspace

__all__ = [
    "Question",
    "answer",
    "at_minimum",
    "measured",
    "nothing_yet",
    "ready",
    "require_residuals",
    "warn_of_failed",
]

_LONG = 2000
"""Gradients of the loss above which the plan is shown before the work begins."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked about, and which interval.

    Attributes:
        options: The options of the interval.
        center: The values themselves: (points,), (points, outputs), or the shape of a functional.
        sides: Their gradients, in blocks, at the parameters of a problem.
        points: The inputs, to keep for plotting.
        index: The labels of the points, where they were a data frame.
        per_output: Whether the values are predictions, each with the noise of its output.
    """

    options: limits.Options
    center: np.ndarray
    sides: Callable[[Problem], Iterable[Array]] = field(repr=False)
    points: np.ndarray | None = field(default=None, repr=False)
    index: Any = field(default=None, repr=False)
    per_output: bool = True


def answer(
    work: Workspace,
    question: Question,
    noise: Any,
    solver: Solver | str,
    curvature: str,
    *,
    given: Problem | None,
) -> Interval:
    """Make the interval.

    Args:
        work: The fitted model.
        question: What is asked.
        noise: The noise as the user gave it; None to estimate it.
        solver: As the user gave it.
        curvature: As the user gave it.
        given: The model before it was polished, or None.
    """
    problem, options, center = work.problem, question.options, question.center
    if options.target == "observation":
        require_residuals(problem)
    with nothing_yet(center.shape, solver, curvature).keeping():
        chosen, prepared = ready(work, solver, curvature, center.size)
        level = work.noise(noise, chosen.curvature, options.seed)
        stationary = at_minimum(work, level, chosen, options.seed)
    reference, df = _of_one_value(level, question.per_output, problem.squeeze)
    recorder = Recorder(reference, center.shape, chosen.curvature, prepared.name)
    keep = options.simultaneous == "sup-t"
    found = measured(work, prepared, question.sides(problem), level.values, recorder, rows=keep)
    if isinstance(options.tail, Redraws):
        _require_minimum(stationary)
        spread = np.broadcast_to(reference, center.shape)
        with recorder.keeping(found):
            tail = estimate_tail(work, chosen.curvature, level, question.sides, spread, options.tail, options.seed)
        options, found = replace(options, tail=tail), tail.mark(found)
    warn_of_failed(problem, found)
    standing = limits.Standing(
        curvature=chosen.curvature,
        solver=prepared.name,
        reason=chosen.reason,
        stationary=stationary,
        definite=chosen.definite.verdict,
        decided=chosen.definite.method != "lanczos",
        moved=None if given is None else moved_by(given, problem, level),
        subject="prediction" if question.per_output else "functional",
        undetermined=_undetermined(work, level, chosen, options.seed),
    )
    return limits.build(
        found, center, level, reference, df, problem.n, options, standing, question.points, question.index
    )


def _of_one_value(level: Noise, per_output: bool, squeeze: bool) -> tuple[np.ndarray, Any]:
    """The noise level in whose unit V is expressed, and its degrees of freedom."""
    if not per_output:
        return np.asarray(level.overall), None if level.df is None else np.asarray(np.min(level.df))
    if squeeze:
        return np.asarray(level.level[0]), None if level.df is None else level.df[0]
    return level.level, level.df


def ready(work: Workspace, solver: Solver | str, curvature: str, rows: int) -> tuple[Chosen, Prepared]:
    """Choose curvature and solver for a number of right-hand sides; long work shows its plan first."""
    plan = choose(work.problem, rows, solver, curvature)
    if plan.gradients > _LONG and work.first(f"announced {plan}"):
        announce(str(plan))
    chosen = work.choose_curvature(curvature)
    return chosen, work.prepared(plan.solver, chosen.curvature)


def nothing_yet(shape: tuple[int, ...], solver: Solver | str, curvature: str) -> Recorder:
    """The record of predictions of which none is finished, under what was asked for."""
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
    """Measure; Ctrl-C on the way leaves what is finished in the record."""
    try:
        return measure(work.problem, prepared, blocks, sigma, rows=rows)
    except Stopped as stop:
        raise recorder.interrupt(stop) from None


def _undetermined(work: Workspace, level: Noise, chosen: Chosen, seed: int) -> float | None:
    """The share of the fit's own freedom that the data leave open, where that is most of it and easily told."""
    if not (level.estimated or work.is_dense()):
        return None  # the traces of the smoother are dear, and nothing else has asked for them
    share = work.residual_freedom(chosen.curvature, seed).undetermined(work.problem.p)
    return share if share > MOSTLY else None


def at_minimum(work: Workspace, level: Noise | None, chosen: Chosen, seed: int) -> bool:
    """Whether the parameters are a minimum; warn once where they are not."""
    line = stationarity_line(work, chosen.curvature, level, seed)
    if line.verdict == "fails" and work.first("warned stationarity"):
        warnings.warn(f"{line}", NotMinimumWarning, stacklevel=outside())
    return line.verdict == "holds"


def warn_of_failed(problem: Problem, found: Measured) -> None:
    """Warn of rows that failed, by name and with the remedy."""
    failed = np.flatnonzero(found.status != Status.CONVERGED)
    if failed.size:
        kinds = dict.fromkeys(found.status[failed])
        told = "; ".join(f"{kind}: {Status(kind).remedy}" for kind in kinds)
        rows = np.unique(failed // (1 if problem.squeeze else problem.outputs))
        warnings.warn(
            f"{failed.size} of {found.status.size} predictions have no interval ({name_rows(rows)}) and are NaN. "
            f"{told}.",
            ConvergenceWarning,
            stacklevel=outside(),
        )


def _require_minimum(stationary: bool) -> None:
    if not stationary:
        raise InputError(
            "tail='estimated' follows the minimum as the responses are redrawn, and these parameters are not a "
            "minimum. Call fitted.polish() first."
        )


def require_residuals(problem: Problem) -> None:
    """Refuse intervals for a response where the loss does not measure the model's distance from one."""
    if not problem.loss_derivatives.location:
        raise InputError(
            "target='observation' needs a prediction on the scale of y, and this loss is not a function of f - y: what "
            "f predicts is not the mean of a response. Ask for target='mean', and map it to responses yourself."
        )
